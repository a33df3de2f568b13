"""Follows `precision_schedule`: watches the triggers, and changes the precision when the next one is due."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from precgui.config import RunConfig
from precgui.config.schedule import changes_of, gradient_floor
from precgui.engine import census, precisions
from precgui.engine.certificate import certificate
from precgui.engine.errors import EngineError
from precgui.engine.extended_arithmetic import exact_sum, inverse
from precgui.engine.hook import LoopHook, TrainingRun
from precgui.engine.precisions.base import Precision
from precgui.engine.precisions.conversion import Conversion
from precgui.engine.run_parts import RunParts
from precgui.engine.tasks.base import Batch
from precgui.events import StepDone
from precgui.sentences import L_, Sentence, filled

LEAST_FALL = 0.01  # of the mean loss from one window to the next; less is a plateau
UNDERFLOW_EVERY = 10  # steps between two counts of small gradients


class ScheduleWatch:
    """Measures the trigger of the next change; each waits for the one before."""

    def __init__(self, config: RunConfig, total_steps: int, gradients: Callable[[], Sequence[Tensor]]) -> None:
        self._waiting = changes_of(config.precision_schedule)
        self._precision, self._total_steps, self._gradients = config.precision, total_steps, gradients
        self._losses: list[float] = []
        self._step, self._scale = 0, 1.0
        self._small: float | None = None  # share of the gradients below the normal numbers

    def state(self) -> dict[str, Any]:
        """The waiting changes by their number, and what was measured for the next one."""
        return {"waiting": len(self._waiting), "losses": list(self._losses), "small": self._small}

    def load_state(self, state: Mapping[str, Any], precision: str) -> None:
        """Go on in a precision, with so many changes before it. Raises KeyError, TypeError or ValueError."""
        del self._waiting[: len(self._waiting) - int(state["waiting"])]
        self._precision, small = precision, state["small"]
        self._losses = [float(loss) for loss in state["losses"]]
        self._small = None if small is None else float(small)

    def due(self, step: int) -> tuple[str, str] | None:
        """The precision that holds from this step on and why, if one is due; it counts as the present one from now."""
        if not self._waiting or not (why := self._reached(step)):
            return None
        self._precision = self._waiting.pop(0).precision
        self._losses, self._small = [], None
        return self._precision, why

    def begin_step(self, step: int, scale: float) -> None:
        """A step begins, with this loss scale."""
        self._step, self._scale = step, scale

    def gradients(self) -> None:
        """Measure the gradients of the step, which are unscaled, where a trigger asks for it."""
        trigger = self._waiting[0].trigger if self._waiting else ""
        if trigger == "underflow" and self._step % UNDERFLOW_EVERY == 0:
            smallest = gradient_floor(self._precision) or 0.0
            self._small = small_share(self._gradients(), smallest * inverse(self._scale))

    def end_step(self, done: StepDone) -> None:
        """Take in the loss of a step where a trigger asks for it."""
        if self._waiting and self._waiting[0].trigger == "plateau" and math.isfinite(done.loss):
            self._losses.append(done.loss)
            del self._losses[: -2 * int(self._waiting[0].number)]

    def _reached(self, step: int) -> str:
        """The trigger of the next change with its numbers, or '' while it is not reached."""
        change = self._waiting[0]
        if change.trigger == "step":
            return change.text if step >= change.number else ""
        if change.trigger == "share":
            return change.text if step > change.number * self._total_steps else ""
        if change.trigger == "underflow":
            small = self._small
            if small is None or small <= change.number:
                return ""
            return Sentence("{trigger}: {share:.2%} of the gradients", trigger=change.text, share=small)
        window = int(change.number)
        if len(self._losses) < 2 * window:
            return ""
        before, now = exact_sum(self._losses[:window]) / window, exact_sum(self._losses[window:]) / window
        flat = now > before - LEAST_FALL * abs(before)
        text = L_("{trigger}: mean loss {before:.4g}, then {now:.4g}")
        return filled(text, trigger=change.text, before=before, now=now) if flat else ""


class PrecisionSchedule(LoopHook):
    """Changes the precision where the schedule says so; weights and optimizer stay as they are.

    In the first step after each change it counts which formats really ran, as the census of a run does in its first.
    What the run records of a change has that count, and a certificate of FP32 products with the switches as the change
    left them.
    """

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._watch = ScheduleWatch(run.config, run.total_steps, self._gradients)
        self._changes: list[dict[str, Any]] = []
        self._census: census.Census | None = None
        self._entered = contextlib.ExitStack()

    @classmethod
    def make(cls, run: TrainingRun) -> Self | None:
        return cls(run) if run.config.precision_schedule else None

    def _gradients(self) -> list[Tensor]:
        return [weight.grad for weight in self._run.parts.weights if weight.grad is not None]

    def prepare_step(self, step: int) -> None:
        """Go on in the next precision when it is due. Raises EngineError where it does not keep the weights."""
        run = self._run
        if (change := self._watch.due(step)) is None:
            return
        before, (name, why) = run.parts.precision.config.precision, change
        self._changes.append({"step": step, "precision": name, "trigger": why})
        run.use(changed_precision(run.parts, run.config, name))
        text = Sentence("precision changed from {before} to {after} ({why})", before=before, after=name, why=why)
        run.journal.incident(step, "precision_change", "info", text)
        run.note_precision()

    def state(self) -> dict[str, Any]:
        precision = self._run.parts.precision.config.precision
        return {"watch": self._watch.state(), "precision": precision, "changes": self._changes}

    def load_state(self, state: Mapping[str, Any]) -> None:
        run, name = self._run, state["precision"]
        self._watch.load_state(state["watch"], name)
        if changes := [dict(change) for change in state["changes"]]:
            if name not in {change.precision for change in changes_of(run.config.precision_schedule)}:
                raise ValueError("it is of another schedule")
            run.use(changed_precision(run.parts, run.config, name))
            self._changes, self._census = changes, None

    def precision_changed(self, precision: Precision) -> None:
        if not self._changes:  # a run that goes on has counted them before
            return
        self._tell_changes()
        tried = certificate(self._run.parts.device, fp32_only=True)
        self._changes[-1]["certificate"] = tried
        self._census = census.Census(self._run.parts.model, precision.labels, tried["fp32_products"])

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        self._watch.begin_step(step, scale)
        if self._census is not None:
            self._entered.enter_context(self._census)

    def gradients(self) -> None:
        self._watch.gradients()

    def reads_now(self, step: int) -> bool:
        return True

    def end_step(self, done: StepDone) -> None:
        self._watch.end_step(done)
        if self._census is None:
            return
        self._entered.close()
        facts, self._census = self._census.facts(), None
        self._changes[-1]["census"] = facts
        self._tell_changes()
        precision, clause = self._changes[-1]["precision"], census.sentence(facts)
        self._run.journal.note(done.step, Sentence("in {precision}, {clause}", precision=precision, clause=clause))

    def close(self) -> None:
        self._entered.close()

    def _tell_changes(self) -> None:
        self._run.journal.facts({"precision_changes": [dict(change) for change in self._changes]})


def changed_precision(parts: RunParts, config: RunConfig, name: str) -> RunParts:
    """The same parts in another precision with FP32 weights; model, weights and optimizer are the same objects.

    Raises EngineError for a precision that replaces the weights of this model.
    """
    assert parts.conversion is not None
    parts.conversion.undo()
    conversion = Conversion(parts.model)
    later = config.model_copy(update={"precision": name, "precision_schedule": {}})
    precision = precisions.make(later, parts.device)
    precision.prepare()
    precision.convert(parts.model)
    conversion.converted()
    precision.continue_from(parts.precision.batch_count)
    same = [id(weight) for weight in precision.weights(parts.model)] == [id(weight) for weight in parts.weights]
    if not same:
        raise EngineError(
            Sentence(
                "precision_schedule: {precision} does not keep the weights of this model; choose another",
                precision=name,
            )
        )
    return replace(parts, precision=precision, conversion=conversion)


def small_share(gradients: Sequence[Tensor], floor: float) -> float:
    """The share of elements that are neither zero nor at least `floor`, of those that are not zero."""
    counts = torch.zeros(2, dtype=torch.float64)
    for gradient in gradients:
        size = gradient.detach().abs()
        counts += torch.stack(((size > 0).sum() - (size >= floor).sum(), (size > 0).sum())).cpu()
    return float(counts[0] / counts[1]) if counts[1] else 0.0
