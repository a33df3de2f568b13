"""Callbacks of a run: census, peak of memory, tensor telemetry, average of weights, reports of NaN and Inf."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from precgui.backward_order import first_nonfinite_gradient
from precgui.config import RunConfig
from precgui.config.sections import SNAPSHOT_IN_RUN_FOLDER
from precgui.engine import census, incident_text
from precgui.engine.callback import Callback, CallbackList
from precgui.engine.description import FirstPassOrder, described
from precgui.engine.ema import WeightAverage
from precgui.engine.fp32_loss import Fp32LossCallback
from precgui.engine.journal import Journal
from precgui.engine.memory import MemoryPeak
from precgui.engine.precisions import Precision
from precgui.engine.setup import RunParts
from precgui.engine.snapshot.callback import SnapshotCallback
from precgui.engine.tasks import Batch
from precgui.engine.telemetry.recorder import Telemetry, Weight
from precgui.events import Severity, StepDone


class FirstStepCensus(Callback):
    """Which formats really ran in the first step, and the model in the order in which it ran.

    The first step is not compiled, so that each operation is counted.
    """

    def __init__(self, journal: Journal, parts: RunParts, fp32: str, *, compiled: bool) -> None:
        self._journal, self._parts, self._compiled = journal, parts, compiled
        self._census = census.Census(parts.model, parts.precision.labels, fp32)
        self._order = FirstPassOrder()
        self._entered = contextlib.ExitStack()

    @property
    def backward_order(self) -> dict[str, int]:
        """The place of each parameter in the backward pass of the first step, as far as it has come."""
        places = self._order.backward
        return {name: places[id(own)] for name, own in self._parts.trained() if id(own) in places}

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        if step == 1:
            if self._compiled:
                self._entered.enter_context(torch.compiler.set_stance("force_eager"))
            self._entered.callback(self._order.close)
            self._order.begin(self._parts.model)
            self._entered.enter_context(self._census)

    def end_step(self, done: StepDone) -> None:
        if done.step == 1:
            self._entered.close()
            facts = self._census.facts()
            self._journal.facts({"census": facts})
            updated = {id(own) for _, own in self._parts.trained()}
            model, copies = self._parts.model, self._parts.copies()
            self._journal.emit(described(model, updated, copies, self._order, self._journal.now()))
            self._journal.note(1, census.sentence(facts))

    def close(self) -> None:
        self._entered.close()


class TelemetryCallback(Callback):
    """Telemetry at the moments that it asks for."""

    def __init__(self, journal: Journal, telemetry: Telemetry, optimizer: Optimizer) -> None:
        self._journal, self._telemetry, self._optimizers = journal, telemetry, [optimizer]

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        self._telemetry.begin(step, scale)
        if step == 1:
            self._telemetry.initial_weights()

    def gradients(self) -> None:
        self._telemetry.gradients()

    def before_update(self) -> None:
        self._telemetry.before_update()

    def after_update(self, *, skipped: bool) -> None:
        self._telemetry.after_update(self._optimizers)

    def end_step(self, done: StepDone) -> None:
        finite = math.isfinite(done.loss) and math.isfinite(done.grad_norm)
        self._telemetry.end(self._journal.now(), done.step_s, self._optimizers, alarm=not finite)

    def close(self) -> None:
        self._telemetry.close()


class EmaCallback(Callback):
    """Takes the weights of each step into their average."""

    def __init__(self, average: WeightAverage) -> None:
        self._average = average

    def after_update(self, *, skipped: bool) -> None:
        if not skipped:
            self._average.update()


class NonFiniteReporter(Callback):
    """Marks on the time line: what was not finite and where, skipped steps, changes of the loss scale."""

    def __init__(self, journal: Journal, parts: RunParts, telemetry: Telemetry | None, census: FirstStepCensus) -> None:
        self._journal, self._precision, self._telemetry = journal, parts.precision, telemetry
        self._census = census
        self._names = {id(used): name for (name, _), used in zip(parts.trained(), parts.weights, strict=True)}
        self._batches: Sequence[Batch] = ()
        self._normed: tuple[Sequence[Tensor], Sequence[Tensor]] = (), ()

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
        name = first_nonfinite_gradient(bad, self._census.backward_order)
        severity: Severity = "warning" if done.skipped else "error"
        text = incident_text.gradients_text(name, norm_overflows=not name)
        self._journal.incident(done.step, "nonfinite_gradient", severity, text, name)


def _is_bad(weight: Tensor, norm: float) -> bool:
    """Whether its gradient held NaN or Inf: a norm of Inf may also be an overflow; clipped by it, finite ones are 0."""
    return math.isnan(norm) or (math.isinf(norm) and (weight.grad is None or not bool(weight.grad.isfinite().all())))


def _nonfinite_part(batches: Sequence[Batch]) -> str:
    """Names the non-finite part of a batch, if there is one."""
    for number, part in enumerate(("inputs", "targets")):
        result = (tensor for batch in batches for tensor in _tensors(batch[number]) if tensor.is_floating_point())
        if any(not bool(tensor.isfinite().all()) for tensor in result):
            return part
    return ""


def _tensors(value: Any) -> list[torch.Tensor]:
    """All tensors of a nested value."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def build_callbacks(config: RunConfig, parts: RunParts, journal: Journal, total_steps: int) -> CallbackList:
    """The callbacks that the config asks for, in the order in which they are called."""
    fp32 = parts.facts["certificate"]["fp32_products"]
    first_step = FirstStepCensus(journal, parts, fp32, compiled=config.train.compile)
    callbacks: list[Callback] = [first_step]
    telemetry = _telemetry(config, parts, journal, total_steps) if config.record.tensors else None
    if telemetry is not None:
        callbacks.append(TelemetryCallback(journal, telemetry, parts.optimizer))
    if config.record.snapshot_to not in ("", SNAPSHOT_IN_RUN_FOLDER) and not config.precision_schedule:
        place = Path(config.record.snapshot_to).expanduser().absolute()
        callbacks.append(SnapshotCallback(place, config.record.snapshot_step, journal, parts))
    if parts.average is not None:
        callbacks.append(EmaCallback(parts.average))
    if parts.device.type == "cpu":  # last, since the others let go at the start of a step of what they kept
        callbacks.append(MemoryPeak(journal, _held(parts)))
    callbacks.append(Fp32LossCallback(config, parts, journal, telemetry))
    return CallbackList([*callbacks, NonFiniteReporter(journal, parts, telemetry, first_step)])


def _held(parts: RunParts) -> dict[str, Callable[[], Any]]:
    """The objects that outlive a step, by name."""
    model, optimizer, average = parts.model, parts.optimizer, parts.average
    return {
        "weights": lambda: [*model.parameters(), *model.buffers()],
        "optimizer": lambda: [parts.weights, optimizer.state.values()],
        "average": lambda: average.values if average is not None else [],
    }


def _telemetry(config: RunConfig, parts: RunParts, journal: Journal, total_steps: int) -> Telemetry:
    named = [Weight(name, own, used) for (name, own), used in zip(parts.trained(), parts.weights, strict=True)]
    return Telemetry(
        config.record,
        parts.model,
        named,
        journal.emit,
        modules=not config.train.compile,
        copies=parts.copies,
        total_steps=total_steps,
        repeats_in_fp32=False,  # see Fp32LossCallback, which repeats the loss, too
    )
