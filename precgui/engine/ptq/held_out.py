"""The loss and the outputs of a model on held-out data, sample by sample, so that changes are compared in pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from precgui.engine.casting import cast_floats
from precgui.engine.errors import EngineError, Stopped
from precgui.engine.tasks.base import Batch, Task
from precgui.sentences import L_

Truth = Literal["kl", "output_error", "loss"]
_MOST_KEPT = 1 << 28  # numbers of outputs that are kept for comparison: 1 GiB
_SAME = 1e-4  # relative: the mean over samples is the loss of a batch


@dataclass(frozen=True)
class LossChange:
    """Against the model as it is: the rise of the loss of each unit, and the distance of its outputs where compared.

    A unit is a sample, or a batch where the loss of a task is no mean over samples. `distance` is the Kullback-Leibler
    divergence of the outputs in nats, or the mean of their squared error, [units that were compared].
    """

    rises: Tensor
    distance: Tensor

    @property
    def rise(self) -> float:
        return float(self.rises.mean())

    @property
    def error(self) -> float:
        """The standard error of the rise, from paired differences; NaN for one unit."""
        return float(self.rises.std() / math.sqrt(len(self.rises))) if len(self.rises) > 1 else math.nan

    @property
    def mean_distance(self) -> float:
        return float(self.distance.mean()) if len(self.distance) else math.nan

    def half(self, which: int) -> LossChange:
        """Every second unit, from the first or from the second on: two halves that share no data."""
        return LossChange(self.rises[which::2], self.distance[which::2])


class HeldOut:
    """Measures a model, in place, against how it was when this object was made."""

    def __init__(
        self, task: Task, model: nn.Module, batches: Sequence[Batch], device: torch.device,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """Raises EngineError where there is nothing to measure or the loss is not finite."""
        self.task, self.model, self.device, self.stopped = task, model.eval(), device, stopped
        self.batches = list(batches)
        if not self.batches:
            raise EngineError(L_("the task gives no held-out data, so no effect can be measured"))
        self._by_sample = True
        self.truth: Truth = "loss"
        self._kept: list[Tensor] = []
        self.losses = self._begin()
        if not bool(torch.isfinite(self.losses).all()):
            raise EngineError(L_("the loss of the model on held-out data is not finite as it is; check its weights"))

    @property
    def units(self) -> int:
        return len(self.losses)

    @property
    def samples(self) -> int:
        return sum(len(targets) for _, targets in self.batches)

    @property
    def loss(self) -> float:
        return float(self.losses.mean())

    @torch.no_grad()
    def _begin(self) -> Tensor:
        first, targets = self._outputs(self.batches[0])
        self._by_sample = self._is_mean_of_samples(first, targets)
        self.truth = _truth(first, targets) if self._by_sample else "loss"
        losses = []
        for batch in self.batches:
            outputs, targets = self._outputs(batch)
            losses.append(self._unit_losses(outputs, targets))
            if self.truth != "loss" and (not self._kept or self._numbers + outputs.numel() <= _MOST_KEPT):
                self._kept.append(outputs.float())
        return torch.cat(losses)

    @property
    def _numbers(self) -> int:
        return sum(each.numel() for each in self._kept)

    @torch.no_grad()
    def measure(self) -> LossChange:
        """How the model as it is now differs. Raises Stopped."""
        losses, distances = [], []
        for place, batch in enumerate(self.batches):
            if self.stopped():
                raise Stopped
            outputs, targets = self._outputs(batch)
            losses.append(self._unit_losses(outputs, targets))
            if place < len(self._kept):
                distances.append(self._distance(self._kept[place], outputs.float()))
        return LossChange(torch.cat(losses) - self.losses, torch.cat(distances) if distances else torch.zeros(0))

    @torch.no_grad()
    def outputs(self, batch: Batch) -> Any:
        """The outputs of the model as it is now."""
        return self._outputs(batch)[0]

    def batch_loss(self, batch: Batch) -> Tensor:
        """The loss of a batch with its gradient."""
        outputs, targets = self._outputs(batch)
        return self.task.loss(outputs, targets)

    def _outputs(self, batch: Batch) -> tuple[Any, Tensor]:
        inputs, targets = cast_floats(batch, torch.float32, self.device)
        return self.model(inputs), targets

    def _is_mean_of_samples(self, outputs: Any, targets: Tensor) -> bool:
        if not isinstance(outputs, Tensor) or outputs.dim() < 1 or len(outputs) != len(targets) or len(targets) < 2:
            return False
        whole = float(self.task.loss(outputs, targets))
        parts = float(self._unit_losses(outputs, targets).mean())
        return abs(whole - parts) <= _SAME * max(abs(whole), 1e-3)

    def _unit_losses(self, outputs: Any, targets: Tensor) -> Tensor:
        """[units] in double precision on the CPU."""
        if not self._by_sample:
            return self.task.loss(outputs, targets).double().reshape(1).cpu()
        each = [self.task.loss(outputs[n : n + 1], targets[n : n + 1]) for n in range(len(targets))]
        return torch.stack(each).double().reshape(-1).cpu()

    def _distance(self, before: Tensor, after: Tensor) -> Tensor:
        """[samples] in double precision on the CPU, a sample at a time, since outputs may be large."""
        far = _divergence if self.truth == "kl" else _squared_error
        return torch.stack([far(a.double(), b.double()) for a, b in zip(before, after, strict=True)]).cpu()


def _divergence(before: Tensor, after: Tensor) -> Tensor:
    """The mean Kullback-Leibler divergence of logits [..., classes]."""
    exact, other = before.log_softmax(-1), after.log_softmax(-1)
    return (exact.exp() * (exact - other)).sum(-1).mean()


def _squared_error(before: Tensor, after: Tensor) -> Tensor:
    return (after - before).square().mean()


def _truth(outputs: Tensor, targets: Tensor) -> Truth:
    """Logits of classes, one for each whole number among the targets, are compared as distributions."""
    whole = not targets.is_floating_point() and targets.shape == outputs.shape[:-1]
    fits = whole and outputs.dim() > 1 and outputs.shape[-1] > 1 and int(targets.max()) < outputs.shape[-1]
    return "kl" if fits else "output_error"
