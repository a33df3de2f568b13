"""Reports on the time line: what was not finite and where, skipped steps, changes of the loss scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from precgui.engine.precisions import Precision
from precgui.engine.run_parts import RunParts
from precgui.engine.tasks import Batch
from precgui.engine.telemetry.recorder import Telemetry
from precgui.events import Severity, StepDone


class NonFiniteReporter(LoopHook):
    """Marks on the time line: what was not finite and where, skipped steps, changes of the loss scale."""

    def __init__(
        self, journal: Journal, parts: RunParts, telemetry: Telemetry | None, census: FirstStepCensus | None
    ) -> None:
        self._journal, self._precision, self._telemetry = journal, parts.precision, telemetry
        self._census = census
        self._names = {id(used): name for (name, _), used in zip(parts.trained(), parts.weights, strict=True)}
        self._batches: Sequence[Batch] = ()
        self._normed: tuple[Sequence[Tensor], Sequence[Tensor]] = (), ()

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
        if not math.isfinite(done.loss):
            self._tell_loss(done)
        if not math.isfinite(done.grad_norm):
            self._tell_gradients(done)
        if done.skipped:
            text = incident_text.skipped_text(done.scale)
            self._journal.incident(done.step, "skipped_step", "warning", text)
        if (scale := self._precision.scale) != done.scale:
            self._journal.incident(done.step, "scale_change", "info", incident_text.scale_text(done.scale, scale))
        self._batches, self._normed = (), ((), ())

    def _tell_loss(self, done: StepDone) -> None:
        if part := _nonfinite_part(self._batches):
            message = f"the loss is {done.loss}, because the {part} of this step hold NaN or Inf; clean the data"
            self._journal.incident(done.step, "nonfinite_loss", "error", message)
            return
        module = self._telemetry.first_nonfinite() if self._telemetry else ""
        text = incident_text.loss_text(str(done.loss), module)
        self._journal.incident(done.step, "nonfinite_loss", "error", text, module)

    def _tell_gradients(self, done: StepDone) -> None:
        weights, norms = self._normed
        values = torch.stack(list(norms)).tolist()
        bad = [self._names[id(w)] for w, value in zip(weights, values, strict=True) if _is_bad(w, value)]
        name = first_nonfinite_gradient(bad, self._census.backward_order if self._census is not None else {})
        severity: Severity = "warning" if done.skipped else "error"
        text = incident_text.gradients_text(name, norm_overflows=not name)
        self._journal.incident(done.step, "nonfinite_gradient", severity, text, name)


def _is_bad(weight: Tensor, norm: float) -> bool:
    """Whether its gradient held NaN or Inf: a norm of Inf may also be an overflow; clipped by it, finite ones are 0."""
    return math.isnan(norm) or (math.isinf(norm) and (weight.grad is None or not bool(weight.grad.isfinite().all())))


def _nonfinite_part(batches: Sequence[Batch]) -> str:
    """Names the non-finite part of a batch, if there is one."""
    for number, part in enumerate(("inputs", "targets")):
        result = (tensor for batch in batches for tensor in tensors_in(batch[number]) if tensor.is_floating_point())
        if any(not bool(tensor.isfinite().all()) for tensor in result):
            return part
    return ""
