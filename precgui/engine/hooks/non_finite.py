"""Reports on the time line: what was not finite and where, skipped steps, changes of the loss scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor

from precgui.backward_order import first_nonfinite_gradient
from precgui.engine import incident_text
from precgui.engine.casting import tensors_in
from precgui.engine.hook import LoopHook, TrainingRun
from precgui.engine.hooks.first_census import FirstStepCensus
from precgui.engine.hooks.telemetry import TelemetryHook
from precgui.engine.journal import Journal
from precgui.engine.precisions.base import Precision
from precgui.engine.run_parts import RunParts
from precgui.engine.tasks.base import Batch
from precgui.engine.telemetry.recorder import Telemetry
from precgui.events import Severity, StepDone
from precgui.sentences import L_, filled

Normed = tuple[Sequence[Tensor], Sequence[Tensor]]  # weights, and the norm of the gradient of each
IsBad = Callable[[Tensor, float], bool]


class NonFiniteReporter(LoopHook):
    """Marks on the time line: what was not finite and where, skipped steps, changes of the loss scale."""

    def __init__(
        self, journal: Journal, parts: RunParts, telemetry: Telemetry | None, census: FirstStepCensus | None
    ) -> None:
        self._journal, self._precision, self._telemetry = journal, parts.precision, telemetry
        self._census = census
        self._names = {id(used): name for (name, _), used in zip(parts.trained(), parts.weights, strict=True)}
        self._batches: Sequence[Batch] = ()
        self._normed: Normed = (), ()

    @classmethod
    def make(cls, run: TrainingRun) -> Self | None:
        recorded, first_step = run.hook(TelemetryHook), run.hook(FirstStepCensus)
        return cls(run.journal, run.parts, recorded.telemetry if recorded is not None else None, first_step)

    def precision_changed(self, precision: Precision) -> None:
        self._precision = precision

    def norms(self, weights: Sequence[Tensor], norms: Sequence[Tensor]) -> None:
        self._normed = weights, norms

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        self._batches = batches

    def end_step(self, done: StepDone) -> None:
        module = self._telemetry.first_nonfinite if self._telemetry is not None else str
        self._tell(done, self._batches, self._normed, module, is_bad)
        self._batches, self._normed = (), ((), ())

    def leave_step(self) -> Callable[[StepDone], None]:
        module = self._telemetry.left_nonfinite() if self._telemetry is not None else str
        return partial(self._tell, batches=self._batches, normed=self._normed, module=module, is_bad=is_bad_later)

    def _tell(
        self, done: StepDone, batches: Sequence[Batch], normed: Normed, module: Callable[[], str], is_bad: IsBad
    ) -> None:
        """`module` returns the first module of the step whose output was not finite, or ''."""
        if not math.isfinite(done.loss):
            self._tell_loss(done, batches, module)
        if not math.isfinite(done.grad_norm):
            self._tell_gradients(done, normed, is_bad)
        if done.skipped:
            text = incident_text.skipped_text(done.scale)
            self._journal.incident(done.step, "skipped_step", "warning", text)
        if (scale := self._precision.scale) != done.scale:
            self._journal.incident(done.step, "scale_change", "info", incident_text.scale_text(done.scale, scale))

    def _tell_loss(self, done: StepDone, batches: Sequence[Batch], module_of: Callable[[], str]) -> None:
        if part := _nonfinite_part(batches):
            message = filled(part, loss=str(done.loss))
            self._journal.incident(done.step, "nonfinite_loss", "error", message)
            return
        module = module_of()
        text = incident_text.loss_text(module, str(done.loss))
        self._journal.incident(done.step, "nonfinite_loss", "error", text, module)

    def _tell_gradients(self, done: StepDone, normed: Normed, is_bad: IsBad) -> None:
        weights, norms = normed
        values = torch.stack(list(norms)).tolist()
        bad = [self._names[id(w)] for w, value in zip(weights, values, strict=True) if is_bad(w, value)]
        name = first_nonfinite_gradient(bad, self._census.backward_order if self._census is not None else {})
        severity: Severity = "warning" if done.skipped else "error"
        text = incident_text.gradients_text(name, norm_overflows=not name)
        self._journal.incident(done.step, "nonfinite_gradient", severity, text, name)


_NON_FINITE_PARTS = (
    L_("the loss is {loss}, because the inputs of this step hold NaN or Inf; clean the data"),
    L_("the loss is {loss}, because the targets of this step hold NaN or Inf; clean the data"),
)


def is_bad(weight: Tensor, norm: float) -> bool:
    """Whether its gradient held NaN or Inf: a norm of Inf may also be an overflow; clipped by it, finite ones are 0."""
    return math.isnan(norm) or (math.isinf(norm) and (weight.grad is None or not bool(weight.grad.isfinite().all())))


def is_bad_later(weight: Tensor, norm: float) -> bool:
    """The same when the gradient is gone: the weight is then not finite, either."""
    return math.isnan(norm) or (math.isinf(norm) and not bool(weight.isfinite().all()))


def _nonfinite_part(batches: Sequence[Batch]) -> str:
    """The sentence on the non-finite part of a batch, if there is one."""
    for number, part in enumerate(_NON_FINITE_PARTS):
        result = (tensor for batch in batches for tensor in tensors_in(batch[number]) if tensor.is_floating_point())
        if any(not bool(tensor.isfinite().all()) for tensor in result):
            return part
    return ""
