"""Follows `precision_schedule`: watches the triggers, and says when the next precision is due."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from precgui.config import RunConfig
from precgui.config.schedule import changes_of, gradient_floor
from precgui.engine import census
from precgui.engine.callback import Callback
from precgui.engine.certificate import certificate
from precgui.engine.extended_arithmetic import exact_sum, inverse
from precgui.engine.journal import Journal
from precgui.engine.precisions import Precision
from precgui.engine.setup import RunParts
from precgui.engine.tasks import Batch
from precgui.events import StepDone

LEAST_FALL = 0.01  # of the mean loss from one window to the next; less is a plateau
UNDERFLOW_EVERY = 10  # steps between two counts of small gradients


class ScheduleWatch(Callback):
    """A callback that measures the trigger of the next change; each waits for the one before."""

    def __init__(self, config: RunConfig, total_steps: int, gradients: Callable[[], Sequence[Tensor]]) -> None:
        self._waiting = changes_of(config.precision_schedule)
        self._precision, self._total_steps, self._gradients = config.precision, total_steps, gradients
        self._losses: list[float] = []
        self._step, self._scale = 0, 1.0
        self._small: float | None = None  # share of the gradients below the normal numbers

    def due(self, step: int) -> tuple[str, str] | None:
        """The precision that holds from this step on and why, if one is due; it counts as the present one from now."""
        if not self._waiting or not (why := self._reached(step)):
            return None
        self._precision = self._waiting.pop(0).precision
        self._losses, self._small = [], None
        return self._precision, why

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        self._step, self._scale = step, scale

    def gradients(self) -> None:
        trigger = self._waiting[0].trigger if self._waiting else ""
        if trigger == "underflow" and self._step % UNDERFLOW_EVERY == 0:
            smallest = gradient_floor(self._precision) or 0.0
            self._small = small_share(self._gradients(), smallest * inverse(self._scale))

    def end_step(self, done: StepDone) -> None:
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
            return f"{change.text}: {small:.2%} of the gradients" if small is not None and small > change.number else ""
        window = int(change.number)
        if len(self._losses) < 2 * window:
            return ""
        before, now = exact_sum(self._losses[:window]) / window, exact_sum(self._losses[window:]) / window
        flat = now > before - LEAST_FALL * abs(before)
        return f"{change.text}: mean loss {before:.4g}, then {now:.4g}" if flat else ""


class ChangeCensus(Callback):
    """Counts which formats really ran in the first step after each change, as the census of a run does in its first.

    `changes` is what the run records of them, one entry for each; the count becomes a part of the newest, and so does a
    certificate of FP32 products with the switches as the change left them.
    """

    def __init__(self, journal: Journal, parts: RunParts, changes: list[dict[str, Any]]) -> None:
        self._journal, self._parts, self._changes = journal, parts, changes
        self._census: census.Census | None = None
        self._precision = ""
        self._entered = contextlib.ExitStack()

    def precision_changed(self, precision: Precision) -> None:
        self._precision = precision.config.precision
        tried = certificate(self._parts.device, fp32_only=True)
        self._changes[-1]["certificate"] = tried
        self._census = census.Census(self._parts.model, precision.labels, tried["fp32_products"])

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        if self._census is not None:
            self._entered.enter_context(self._census)

    def end_step(self, done: StepDone) -> None:
        if self._census is None:
            return
        self._entered.close()
        facts, self._census = self._census.facts(), None
        self._changes[-1]["census"] = facts
        self._journal.facts({"precision_changes": [dict(change) for change in self._changes]})
        self._journal.note(done.step, f"in {self._precision}, {census.sentence(facts)}")

    def close(self) -> None:
        self._entered.close()


def small_share(gradients: Sequence[Tensor], floor: float) -> float:
    """The share of elements that are neither zero nor at least `floor`, of those that are not zero."""
    counts = torch.zeros(2, dtype=torch.float64)
    for gradient in gradients:
        size = gradient.detach().abs()
        counts += torch.stack(((size > 0).sum() - (size >= floor).sum(), (size > 0).sum())).cpu()
    return float(counts[0] / counts[1]) if counts[1] else 0.0
