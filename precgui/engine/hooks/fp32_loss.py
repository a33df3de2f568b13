"""A loss in a narrow precision that is not finite, computed again in FP32: it tells whether precision is to blame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.config.precision_traits import traits
from precgui.engine import execution, precisions
from precgui.engine.hook import LoopHook, TrainingRun
from precgui.engine.hooks.telemetry import TelemetryHook
from precgui.engine.journal import Journal
from precgui.engine.precisions.base import Precision
from precgui.engine.run_parts import RunParts
from precgui.engine.tasks.base import Batch
from precgui.engine.tasks.own import OwnTask
from precgui.engine.telemetry.fp32_repetition import Repetition, Repetitions
from precgui.engine.telemetry.recorder import Telemetry
from precgui.engine.telemetry.second_pass import undisturbed
from precgui.events import StepDone
from precgui.sentences import L_, Sentence, first_line

_TIMES = 2  # with other random numbers, which dropout draws
_PAUSE_STEPS = 16  # a run that stays broken is not slowed down in each step


class Fp32Loss(LoopHook):
    """Computes forward pass and loss of a step in FP32, with the weights of the step, where its loss is not finite.

    The model is built anew in FP32, so that nothing of the run is called again. On the CPU only.
    """

    def __init__(self, config: RunConfig, parts: RunParts, journal: Journal, telemetry: Telemetry | None) -> None:
        self._parts, self._journal, self._telemetry = parts, journal, telemetry
        self._config, self._precision = config, config.precision
        self._repetitions = Repetitions()
        self._batches: Sequence[Batch] = ()
        self._pause = 0

    @classmethod
    def make(cls, run: TrainingRun) -> Self | None:
        telemetry = run.hook(TelemetryHook)
        return cls(run.config, run.parts, run.journal, telemetry.telemetry if telemetry is not None else None)

    def precision_changed(self, precision: Precision) -> None:
        self._precision = precision.config.precision

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        self._batches, self._pause = batches, max(self._pause - 1, 0)
        self._repetitions.begin()

    def totals(self, loss: Tensor, norm: Tensor) -> None:
        row = traits(self._precision)
        narrow = row.is_stored_low or row.has_narrow_range or row.operand == "bf16"
        if narrow and loss.is_cpu and not self._pause and self._repetitions.are_due and not math.isfinite(float(loss)):
            self._pause = _PAUSE_STEPS
            self._repetitions.add(self._repeated())

    def end_step(self, done: StepDone) -> None:
        self._batches = ()
        if fact := self._repetitions.end(done.step, alarm=True):
            self._journal.facts(fact)

    def _repeated(self) -> Repetition:
        module = self._telemetry.first_nonfinite() if self._telemetry is not None else ""
        part = L_("forward and loss")
        if why := _cannot(self._parts):
            return Repetition(None, module, why=why, part=part)
        try:
            with undisturbed(self._parts.model):
                losses = [self._loss() for _ in range(_TIMES)]
        except Exception as error:  # noqa: BLE001 - a model with adapters or parts of its own cannot be built so
            return Repetition(
                None,
                module,
                why=Sentence("the model cannot be built in FP32: {error}", error=first_line(error, 100)),
                part=part,
            )
        finite = [all(map(math.isfinite, each)) for each in losses]
        largest = max((abs(loss) for each in losses for loss in each if math.isfinite(loss)), default=0.0)
        agreed = all(finite) or not any(finite)
        why = "" if agreed else L_("the loss is finite in FP32 with some random numbers and not with others")
        return Repetition(finite[0] if agreed else None, module, largest, why, part)

    def _loss(self) -> list[float]:
        """The loss of each batch of the step in FP32."""
        config = self._config.model_copy(update={"precision": "fp32", "precision_schedule": {}})
        precision, task = precisions.make(config, self._parts.device), self._parts.task
        model: nn.Module = precision.convert(task.model())
        model.load_state_dict(self._parts.model.state_dict())
        model.train()
        results = (execution.forward(model, precision, config.train, batch) for batch in self._batches)
        return [float(task.loss(outputs, targets)) for outputs, targets in results]


def _cannot(parts: RunParts) -> str:
    """Why the loss is not computed again; '' where it is."""
    if isinstance(parts.task, OwnTask):
        return L_("the model is made by code of one's own")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return L_("the other processes of the training would not take part")
    if not all(bool(parameter.isfinite().all()) for parameter in parts.model.parameters()):
        return L_("the weights were not finite before the pass")
    return ""
