"""How the processes of a run share its work: alone, as here, or as ranks (`engine/parallel/`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.engine.hook import TrainingRun
from precgui.engine.tasks.base import Batch
from precgui.engine.update import single_norms
from precgui.events import StepDone

Slice = tuple[Batch, float | None, contextlib.AbstractContextManager[None]]


class Strategy:
    """One process with the whole model and each batch."""

    is_first = True  # of the processes: the one that ends the run for all of them
    may_read_later = True  # whether the loss of a step is a number of this process alone, for which no other one waits

    def building(self, config: RunConfig) -> contextlib.AbstractContextManager[None]:
        """A context in which the parts of the run are built."""
        return contextlib.nullcontext()

    def shard(self, model: nn.Module) -> None:
        """Exchange the parameters of the converted model, before the optimizer takes them."""

    def join(self, run: TrainingRun) -> None:
        """Take part in a run, whose parts and hooks have been made."""
        self.network: Callable[[Any], Any] = run.parts.model  # in training: the model, or a replica

    def begin_run(self) -> None:
        """The run has started; no step has been made."""

    def begin_step(self, step: int) -> None:
        """A step is about to begin, and its clock is not yet running."""

    def slices(self, batches: Sequence[Batch]) -> Iterator[Slice]:
        """The part of this process in each batch of a step.

        With it come the weight of its loss in that of the step, None where it is the only one, and a context for
        forward and backward.
        """
        samples = sum(len(targets) for _, targets in batches)
        for batch in batches:
            yield batch, len(batch[1]) / samples if len(batches) > 1 else None, contextlib.nullcontext()

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss whose gradients backward computes."""
        return loss

    def norms(self, weights: Sequence[nn.Parameter]) -> Sequence[Tensor]:
        """The L2 norm of each gradient, all of which exist."""
        return single_norms([weight.grad for weight in weights if weight.grad is not None])

    def reduce(self, loss: float, step_s: float) -> float:
        """The loss of the step over all processes. `step_s` are the seconds of the step in this one."""
        return loss

    def own(self, done: StepDone) -> StepDone:
        """The step as the hooks of this process see it."""
        return done

    def evaluation(self) -> contextlib.AbstractContextManager[None]:
        """A context in which the model is evaluated."""
        return torch.inference_mode()
