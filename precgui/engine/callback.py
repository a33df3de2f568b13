"""Callbacks of the training loop: the moments of a step at which something else may read the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from precgui.engine.tasks import Batch
from precgui.events import StepDone

if TYPE_CHECKING:
    from precgui.engine.precisions import Precision


class Callback:
    """Hooks of one training step, called in the order below. A callback never changes what the step computes."""

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        """The step, counted from 1, begins; the gradients of the last one are gone."""

    def precision_changed(self, precision: Precision) -> None:
        """The steps from the next one on are made in this precision."""

    def gradients(self) -> None:
        """The gradients are complete and unscaled, not yet clipped."""

    def norms(self, weights: Sequence[Tensor], norms: Sequence[Tensor]) -> None:
        """L2 norms of the unscaled gradients of these weights, on their device; they are not yet clipped."""

    def totals(self, loss: Tensor, norm: Tensor) -> None:
        """The loss and the L2 norm of all unscaled gradients, on their device; weights are those of the step."""

    def before_update(self) -> None:
        """The gradients are clipped, the optimizer is about to step."""

    def after_update(self, *, skipped: bool) -> None:
        """The weights are what the next step will see."""

    def end_step(self, done: StepDone) -> None:
        """Called after the step and its event."""

    def close(self) -> None:
        """No step follows, whatever ended the run."""


class CallbackList(Callback):
    """Calls every callback of a list, in its order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        for callback in self._callbacks:
            callback.begin_step(step, scale, batches)

    def precision_changed(self, precision: Precision) -> None:
        for callback in self._callbacks:
            callback.precision_changed(precision)

    def gradients(self) -> None:
        for callback in self._callbacks:
            callback.gradients()

    def norms(self, weights: Sequence[Tensor], norms: Sequence[Tensor]) -> None:
        for callback in self._callbacks:
            callback.norms(weights, norms)

    def totals(self, loss: Tensor, norm: Tensor) -> None:
        for callback in self._callbacks:
            callback.totals(loss, norm)

    def before_update(self) -> None:
        for callback in self._callbacks:
            callback.before_update()

    def after_update(self, *, skipped: bool) -> None:
        for callback in self._callbacks:
            callback.after_update(skipped=skipped)

    def end_step(self, done: StepDone) -> None:
        for callback in self._callbacks:
            callback.end_step(done)

    def close(self) -> None:
        for callback in self._callbacks:
            callback.close()
