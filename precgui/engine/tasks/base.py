"""Base class of tasks, and how samples in memory become batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, SequentialSampler

from precgui.engine.device import in_fp64
from precgui.engine.errors import EngineError
from precgui.events import Metric
from precgui.sentences import L_, Sentence, message_of

if TYPE_CHECKING:
    from precgui.config import RunConfig

Batch = tuple[Any, Tensor]
_EVALUATED_AT_ONCE = 512


ACCURACY = Metric("accuracy", L_("Accuracy"), L_("share of the samples whose class is found"))


class Task(Protocol):
    """One training problem. Batches are (inputs, targets) on the CPU; `len(targets)` is the number of samples.

    The loop calls the model with the inputs of a batch and hands what it returns to `loss` and `score`.
    """

    metric: Metric
    steps_per_epoch: int
    facts: Mapping[str, Any]  # what the record should hold about the data, as built-in types

    def model(self) -> nn.Module: ...
    def train_batches(self) -> Iterable[Batch]: ...
    def validation_batches(self) -> Iterable[Batch]: ...

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """The mean over the samples, a single number; `outputs` come in FP32 or FP64 whatever the precision."""
        ...

    def score(self, outputs: Any, targets: Tensor) -> Any:
        """The part of a batch that `result` needs; for most tasks score and best possible score, see `ratio`."""
        ...

    def result(self, scores: Sequence[Any]) -> float:
        """The metric from the scores of all batches of the validation set."""
        ...


class Ratio:
    """A metric that is a ratio of sums over the batches."""

    def result(self, scores: Sequence[Any]) -> float:
        return ratio(scores)


class InMemory(Dataset[Batch]):
    """Samples in memory; indexed by a list, so that one look-up is one batch."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, indices: list[int]) -> Batch:
        return self.inputs[indices], self.targets[indices]


class DatasetTask(Ratio):
    """Training and validation sets that are indexed by lists, in an order that the seed gives."""

    def __init__(self, config: RunConfig, training: Dataset[Batch], validation: Dataset[Batch], samples: int) -> None:
        self.config = config
        self._training, self._validation = training, validation
        order = torch.Generator().manual_seed(config.seed + 1)
        shuffled = RandomSampler(range(samples), generator=order)
        self._train_loader = self._loader(_Limited(shuffled, config.data.batch_size, config.data.epoch_steps))
        self.steps_per_epoch = len(self._train_loader)

    def train_batches(self) -> Iterable[Batch]:
        return _without_wrapping(self._train_loader) if self.config.data.workers else self._train_loader

    def validation_batches(self) -> Iterable[Batch]:
        sampler = BatchSampler(SequentialSampler(self._validation), _EVALUATED_AT_ONCE, drop_last=False)  # type: ignore[arg-type]
        return DataLoader(self._validation, sampler=sampler, batch_size=None)

    def _loader(self, batches: Sampler[list[int]]) -> DataLoader[Batch]:
        workers = self.config.data.workers
        return DataLoader(
            self._training, sampler=batches, batch_size=None, num_workers=workers, persistent_workers=workers > 0
        )


def _without_wrapping(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The sentence of an error in a loader process, of which torch makes a report."""
    try:
        yield from batches
    except EngineError as error:
        if isinstance(message_of(error), Sentence):  # of this process
            raise
        raise EngineError(str(error).rpartition("EngineError: ")[2].strip()) from None


class _Limited(Sampler[list[int]]):
    """Batches of a shuffled order, at most so many in an epoch."""

    def __init__(self, order: Sampler[int], batch_size: int, most: int | None) -> None:
        self._batches = BatchSampler(order, batch_size, drop_last=False)
        self._count = min(len(self._batches), most or len(self._batches))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(self._batches, self._count)


class Classification:
    """Loss and metric of choosing one of several classes; `outputs` are logits [batch, classes]."""

    metric = ACCURACY

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy."""
        return nn.functional.cross_entropy(outputs, targets)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        result = (outputs.argmax(1) == targets).sum()
        return torch.stack((result, result.new_full((), len(targets))))


def split(samples: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices for training and validation, which takes `share` of them; the same for the same seed."""
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    held_out = round(samples * share)
    return order[held_out:], order[:held_out]


def ratio(scores: Sequence[Tensor]) -> float:
    """Score divided by the best possible score, summed over all batches; NaN when no score was possible.

    Scores are [2] or [2, parts]. With parts (such as classes) it is the mean over those of which there were any.
    """
    reached, possible = torch.stack([in_fp64(score) for score in scores]).sum(0)
    parts = (reached / possible)[possible > 0]
    return float(parts.mean()) if parts.numel() else float("nan")
