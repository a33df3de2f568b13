"""Tensor telemetry at the moments of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from torch import Tensor
from torch.optim import Optimizer

from precgui.config import RunConfig
from precgui.engine.hook import LoopHook, TrainingRun
from precgui.engine.journal import Journal
from precgui.engine.run_parts import RunParts
from precgui.engine.tasks.base import Batch
from precgui.engine.telemetry.recorder import Telemetry, Weight
from precgui.events import StepDone


class TelemetryHook(LoopHook):
    """Telemetry at the moments that it asks for."""

    def __init__(self, journal: Journal, telemetry: Telemetry, optimizer: Optimizer) -> None:
        self._journal, self.telemetry, self._optimizers = journal, telemetry, [optimizer]

    @classmethod
    def make(cls, run: TrainingRun) -> Self | None:
        if not run.config.record.tensors:
            return None
        telemetry = _telemetry(run.config, run.parts, run.journal, run.total_steps)
        return cls(run.journal, telemetry, run.parts.optimizer)

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        self.telemetry.begin(step, scale)
        if step == 1:
            self.telemetry.initial_weights()

    def gradients(self) -> None:
        self.telemetry.gradients()

    def before_update(self) -> None:
        self.telemetry.before_update()

    def after_update(self, *, skipped: bool) -> None:
        self.telemetry.after_update(self._optimizers)

    def read(self, loss: Tensor, norm: Tensor) -> tuple[float, float] | None:
        if loss.is_cpu:
            return None
        loss_array, norm_array = self.telemetry.collect((loss, norm))
        return loss_array.item(), norm_array.item()

    def end_step(self, done: StepDone) -> None:
        self.telemetry.end(self._journal.now(), done.step_s, self._optimizers, alarm=not _is_finite(done))

    def read_later(self, loss: Tensor, norm: Tensor) -> Callable[[], tuple[float, float]] | None:
        numbers = self.telemetry.leave((loss, norm))

        def read() -> tuple[float, float]:
            loss_array, norm_array = numbers()
            return loss_array.item(), norm_array.item()

        return read

    def leave_step(self) -> Callable[[StepDone], None]:
        return self._end_left

    def _end_left(self, done: StepDone) -> None:
        self.telemetry.end_left(self._journal.now(), done.step_s, self._optimizers, alarm=not _is_finite(done))

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.telemetry.go_on()

    def close(self) -> None:
        self.telemetry.close()


def _is_finite(done: StepDone) -> bool:
    return math.isfinite(done.loss) and math.isfinite(done.grad_norm)


def _telemetry(config: RunConfig, parts: RunParts, journal: Journal, total_steps: int) -> Telemetry:
    named = [Weight(name, own, used) for (name, own), used in zip(parts.trained(), parts.weights, strict=True)]
    return Telemetry(
        config.record,
        parts.model,
        named,
        journal.emit,
        modules=not (config.train.compile or config.train.cuda_graph),
        copies=parts.copies,
        total_steps=total_steps,
        repeats_in_fp32=False,  # see Fp32Loss, which repeats the loss, too
    )
