"""The moments of a training step at which others may look on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from precgui.engine.tasks import Batch
from precgui.events import StepDone


class Observer:
    """Is called at the moments of each step, in the order below. Nothing that it does changes what is computed."""

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        """The step, counted from 1, begins; the gradients of the last one are gone."""

    def gradients(self) -> None:
        """The gradients are complete and unscaled, not yet clipped."""

    def norms(self, weights: Sequence[Tensor], norms: Sequence[Tensor]) -> None:
        """L2 norms of the unscaled gradients of these weights, on their device; they are not yet clipped."""

    def before_update(self) -> None:
        """The gradients are clipped, the optimizer is about to step."""

    def after_update(self, *, skipped: bool) -> None:
        """The weights are what the next step will see."""

    def end_step(self, done: StepDone) -> None:
        """The step is over and told."""

    def close(self) -> None:
        """No step follows, whatever ended the run."""
