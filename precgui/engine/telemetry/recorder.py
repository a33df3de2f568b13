"""The record of tensors: measures the tensors of a step and emits the rows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from precgui.backward_order import first_nonfinite_gradient
from precgui.config import RecordConfig
from precgui.engine.dtype_names import dtype_name
from precgui.engine.extended_arithmetic import inverse
from precgui.engine.telemetry.backends import RowsInTurn, StatsBackend, Transfer, listed, stats_backend_for, stride_for
from precgui.engine.telemetry.budget import TokenBuckets
from precgui.engine.telemetry.cost import CostMeter, keeping_s
from precgui.engine.telemetry.guard import LET_THROUGH, Guard
from precgui.engine.telemetry.held import BufferAndEmaStats, Copies, buffers
from precgui.engine.telemetry.left_step import LeftStep, OfSteps
from precgui.engine.telemetry.module_hooks import Outputs
from precgui.engine.telemetry.nonfinite import BadOutput
from precgui.engine.telemetry.parameters import (
    Weight,
    exact_values,
    gradients,
    states,
    updated_by,
    values,
)
from precgui.engine.telemetry.readable import readable, unseen
from precgui.engine.telemetry.ring_buffer import BLACK_BOX_STEPS, FlightRecorder
from precgui.engine.telemetry.statistics import Rows, StatisticsTable, finished, nonfinite, norm
from precgui.events import Emit, Facts, Incident, TensorStats
from precgui.sentences import Sentence

__all__ = ["Telemetry", "Weight"]

WATCHED = {"activation", "activation_gradient"}  # by hooks on modules
FIXED = "fixed"  # the name of the cost of every step, above all of the check for NaN and Inf
_ALL_CALLS = 2.0  # times the cost of `begin` and `end`: includes calls without a measurement, and reading the clock
ALARM_STEPS = 2  # after a non-finite value, at full detail


class Telemetry:
    """Measures tensors when the training loop calls a method, within the budget.

    Order of calls: `begin`, the forward and backward passes, `gradients` once they are unscaled, `before_update`,
    `after_update`, `end`. No method changes a result of the training. On the CPU each measurement is one loop
    over the memory; elsewhere the results of a step are copied to the host in one transfer.
    """

    OF_STEP: ClassVar[tuple[str, ...]] = (
        "_tables", "_in_turn", "_unscaled", "_collected_s", "_before", "_step", "_scale", "_due", "_guarded",
        "_is_idle", "_begin_s",
    )  # fmt: skip

    def __init__(
        self,
        config: RecordConfig,
        model: nn.Module,
        weights: Sequence[Weight],
        emit: Emit,
        *,
        modules: bool = True,
        copies: Copies = list,
        total_steps: int = 0,
        repeats_in_fp32: bool = True,
        guard: Guard = LET_THROUGH,
    ) -> None:
        """`modules` says whether module outputs can be watched (a compiled model hides them); `copies` gives the copies
        of weights that the training keeps, by name; `total_steps` is 0 when that is not known; `repeats_in_fp32` as in
        `Outputs`."""
        self._emit, self._box = emit, FlightRecorder()
        self.watch(weights)
        device = next((w.own.device for w in weights), torch.device("cpu"))
        self._meter: StatsBackend = stats_backend_for(device)
        self._held = BufferAndEmaStats(self._meter, {"buffer": lambda: buffers(model), "ema": copies})
        kinds = {
            "gradient": config.gradients_every,
            "weight": config.weights_every,
            "update": config.weights_every,
            "optimizer": config.optimizer_every,
            **dict.fromkeys(self._held.kinds, config.weights_every),
        }
        if modules:
            kinds |= {"activation": config.activations_every, "activation_gradient": config.activation_gradients_every}
        self._kinds = kinds
        intervals = kinds | {"gradient": min(config.gradients_every, 1)}
        self.budget = TokenBuckets(config, intervals, between=True, total_steps=total_steps)
        self._least = config.least_measurements
        self._clock = CostMeter(device, self._meter.compiling_s)
        self._outputs = Outputs(model, self._on_tensor, guard, repeats_in_fp32=repeats_in_fp32) if modules else None
        self._alarm_until = -BLACK_BOX_STEPS
        self._bad_output, self._has_initial_weights = "", False
        self._measurements: Counter[str] = Counter()
        self._clear()

    def _clear(self) -> None:
        self._tables: list[tuple[StatisticsTable, Any]] = []
        self._in_turn: dict[str, tuple[StatisticsTable, RowsInTurn]] = {}  # kinds that hooks see one by one
        self._unscaled = 1.0  # what gradients must be multiplied by
        self._collected_s: float | None = None  # that `collect` took in this step; None: it was not called
        self._before: tuple[list[Weight], Any] | None = None

    def watch(self, weights: Sequence[Weight]) -> None:
        """Measure these weights from the next step on; a weight with several names is measured once."""
        self._weights = list({id(w.own): w for w in weights}.values())

    def begin(self, step: int, scale: float | Callable[[], float] = 1.0) -> None:
        """Step `step` (counted from 1) begins, its loss multiplied by `scale`, or by what that returns later on."""
        self._clear()
        begin = self._clock.start()
        self._step, self._scale = step, scale
        self._due = self.budget.due(step)
        alarmed = step <= self._alarm_until
        self._guarded = alarmed or self.budget.can_guard
        if alarmed:
            self._due = {kind: 1 for kind, every in self._kinds.items() if every}
        if self._outputs is not None:
            self._outputs.begin(self._due.keys() & WATCHED, guarded=self._guarded, everywhere=alarmed)
        self._is_idle = not self._due and not self._guarded and self.budget.can_book_idle_step
        self._begin_s = _ALL_CALLS * (self._clock.worked_s() - begin)
        for kind in self._held.kinds:
            if stride := self._due.get(kind, 0):
                with self._clock.booked(kind), unseen():
                    self._held.begin(kind, stride, step)

    def start(self) -> None:
        """The work of the step begins here; without this call it began with `begin`."""
        if not self._has_initial_weights:
            self.initial_weights()
        self._clock.start()

    def initial_weights(self) -> None:
        """Write down the weights as they are, at every element, as those of step 0: no update has been made yet."""
        self._has_initial_weights = True
        if not self._kinds["weight"]:
            return
        begin = self._clock.worked_s()
        with unseen():
            tensors, table = listed("weight", values(self._weights), 1)
            if tensors:
                (rows,) = self._fetched([self._meter.measure(tensors, table.strides, 0)])
                self._emit(finished(table, rows, 0, 0.0))
        self.budget.spent_s += self._clock.worked_s() - begin

    def go_on(self) -> None:
        """The weights are those of a run that goes on, whose record has those of step 0 already."""
        self._has_initial_weights = True

    def gradients(self, optimizer: Optimizer | None = None, scale: float = 1.0) -> float | None:
        """The gradients (of one optimizer) are complete; they are still multiplied by `scale`.

        Returns their unscaled L2 norm where the measurement gives it; NaN or Inf when one of them is not finite.
        """
        self._unscaled = inverse(scale)
        if stride := self._due.get("gradient", 0):
            with self._clock.booked("gradient"), unseen():
                named = gradients(updated_by(self._weights, optimizer))
                return self._measure("gradient", named, stride, self._unscaled)
        return None

    def norms(self, gradients: Sequence[Tensor]) -> Tensor:
        """The L2 norm of each gradient of a step in which `gradients` did not know them. Shape (gradients,).

        The time is added to the cost of sampled gradients: a measurement of every element gives the norms, too.
        """
        begin = time.thread_time()
        norms = self._meter.norms(gradients)
        if "gradient" in self._due:
            self._clock.book("gradient", time.thread_time() - begin)
        return norms

    def before_update(self, optimizer: Optimizer | None = None) -> None:
        """The optimizer (or the one of several) is about to step."""
        if not self._has_initial_weights:
            self.initial_weights()
        if stride := self._due.get("update", 0):
            with self._clock.booked("update"), unseen():
                weights = updated_by(self._weights, optimizer)
                tensors, table = listed("update", exact_values(weights), stride)
                if tensors:
                    self._before = weights, self._meter.keep(tensors, table.strides, self._step)

    def after_update(self, optimizers: Sequence[Optimizer]) -> None:
        """Called when the weights have their values of the next step; a skipped step has not changed them.

        Without `optimizers` all weights are measured.
        """
        if (stride := self._due.get("update", 0)) and self._before is not None:
            with self._clock.booked("update"), unseen():
                weights, kept = self._before
                tensors, table = listed("update", exact_values(weights), stride)
                self._tables.append((table, self._meter.compare(tensors, table.strides, self._step, kept)))
                self._before = None
        if stride := self._due.get("weight", 0):
            with self._clock.booked("weight"), unseen():
                own = [weight for each in optimizers or (None,) for weight in updated_by(self._weights, each)]
                self._measure("weight", values(own), stride)
        if stride := self._due.get("optimizer", 0):
            with self._clock.booked("optimizer"), unseen():
                self._measure("optimizer", states(self._weights, optimizers), stride)

    def collect(self, numbers: Sequence[Tensor]) -> list[Rows]:
        """All work of the step is queued: fetch what was measured, and numbers of the caller, in one transfer.

        Without this call `end` fetches what was measured.
        """
        begin = self._clock.worked_s()
        self._measure_held()
        arrays = self._fetch(numbers)
        self._collected_s = self._clock.worked_s() - begin
        return arrays

    def leave(self, numbers: Sequence[Tensor]) -> Callable[[], list[Rows]]:
        """As `collect`, which waits for the device, when what this returns is called; then follows `end_left`.

        The next step may be queued before, with all calls up to `after_update`. On CUDA only.
        """
        begin = time.thread_time()
        self._measure_held()
        if self._outputs is not None:
            self._outputs.end()
        transfer = Transfer(self._pending(numbers))
        self._collected_s = time.thread_time() - begin
        watched: list[OfSteps] = [] if self._outputs is None else [self._outputs, self._outputs.detector]
        self._left = left = LeftStep([self, self.budget, self._clock, *watched])
        self.budget.leave_step()
        self._clock.begin_step()

        def collected() -> list[Rows]:
            arrays = transfer.arrays()
            with left.again():
                return self._take(arrays)

        return collected

    def left_nonfinite(self) -> Callable[[], str]:
        """`first_nonfinite` of the step that was left last, to be called when it has ended."""
        left = self._left

        def first() -> str:
            with left.again():
                return self.first_nonfinite()

        return first

    def end_left(self, time_s: float, step_s: float, optimizers: Sequence[Optimizer], *, alarm: bool = False) -> None:
        """As `end`, of the step that was left. In an alarm the tensors of the present step are measured in full."""
        wanted: list[int] = []
        with self._left.again():
            next_s = self._end(time_s, step_s, wanted.append, alarm=alarm)
        self._clock.book(FIXED, next_s)
        if wanted:
            self._alarm_until = self._step + ALARM_STEPS
            self._measure_in_full(optimizers)

    def end(self, time_s: float, step_s: float, optimizers: Sequence[Optimizer], *, alarm: bool = False) -> None:
        """Ends a step of `step_s` seconds and emits its rows. `alarm`: the loss or a gradient was not finite."""

        def measure_in_full(step: int) -> None:
            self._alarm_until = step + ALARM_STEPS
            self._measure_in_full(optimizers)
            self._fetch()

        self._clock.book(FIXED, self._end(time_s, step_s, measure_in_full, alarm=alarm))

    def _end(self, time_s: float, step_s: float, measure_in_full: Callable[[int], None], *, alarm: bool) -> float:
        """Returns CPU seconds to book in the next step; `measure_in_full` is called in the first step of an alarm."""
        self._time_s = time_s
        if self._is_idle and not alarm and not self.first_nonfinite() and not self._bad_output:
            spent_s = self._outputs.end() if self._outputs is not None else 0.0
            self.budget.book_idle_step(spent_s + self._begin_s)
            return 0.0
        begin = self._clock.worked_s() - (self._collected_s or 0.0)
        if self._collected_s is None:
            self._measure_held()
        self._clock.book(FIXED, self._begin_s)
        busy_s = self._clock.busy_s(step_s, begin)
        self._fetch()
        if self._outputs is not None:
            self._clock.book(FIXED, self._outputs.end())
            if fact := self._outputs.repetitions.end(self._step, alarm=alarm):
                self._emit(Facts(time_s, fact))
            alarm = self._tell_outputs(time_s, reported=alarm) or alarm
        if alarm:
            if self._step > self._alarm_until + BLACK_BOX_STEPS:  # not anew for each of a series
                measure_in_full(self._step)
            self._box.write(self._emit)
        flush_s = self._flush(time_s, alarm=alarm) if self._tables else 0.0
        costs = self._clock.take()
        self.budget.book_step(busy_s, costs, costs.pop(FIXED, 0.0))
        # What an alarm takes is not to be saved in other steps.
        return 0.0 if alarm else _ALL_CALLS * (self._clock.worked_s() - begin - flush_s)

    def _measure_held(self) -> None:
        """Buffers and copies of weights, as the step leaves them."""
        for kind in self._held.kinds:
            if kind in self._due:
                with self._clock.booked(kind), unseen():
                    if (visited := self._held.measured(kind, self._step)) is not None:
                        self._tables.append(visited)

    def _flush(self, time_s: float, *, alarm: bool) -> float:
        """Emit the rows that are due at the interval of their kind, in an alarm all; the ring buffer keeps the others.

        Returns the CPU seconds, which are added to the costs of the kinds.
        """
        begin = time.thread_time()
        events = self._events(time_s)
        for event in events:
            regular = (self._step - 1) % self._kinds[event.kind] == 0 or event.kind in self.budget.overdue
            if alarm or self._step <= self._alarm_until or regular:
                self._measurements[event.kind] += 1
                self.budget.measured(event.kind, self._step)
                self._clock.book(event.kind, keeping_s(len(event.names)))
                self._emit(event)
            else:
                self._box.add(event)
        taken_s = time.thread_time() - begin
        for event in events:
            self._clock.book(event.kind, taken_s / len(events))
        return taken_s

    def first_nonfinite(self) -> str:
        """The first module of this step whose output was not finite, or ''."""
        return self._outputs.detector.first_nonfinite() if self._outputs is not None else ""

    def await_outputs(self) -> None:
        """The loss of a step is not finite: a GPU is waited for in the next ones, see `Outputs.await_next`."""
        if self._outputs is not None:
            self._outputs.await_next()

    def nonfinite_output(self) -> BadOutput:
        """The first output of the step that is not finite, as far as it is known."""
        name = self.first_nonfinite()
        if self._outputs is None or not name:
            return BadOutput(name)
        row = self._outputs.repetitions.operation or {}
        made = row["source"] if row.get("culprit") == "source" else row if row.get("culprit") else {}
        return BadOutput(name, self._outputs.why_not_all(), made.get("operation", ""), made.get("line", ""))

    def first_nonfinite_gradient(self, order: Mapping[str, int]) -> str:
        """The parameter whose non-finite gradient backward produced first; on a GPU it is known after `end`."""
        visited = [nonfinite(table, rows) for table, rows in self._tables if table.kind == "gradient"]
        return first_nonfinite_gradient([name for names in visited for name in names], order)

    def close(self) -> None:
        """Remove the hooks from the model; emit the number of measurements, their strides and their cost."""
        if self._outputs is not None:
            self._outputs.close()
        if self._measurements and self.budget.elapsed_s:
            reported = {
                "cost_share": self.budget.share,
                "measurements": dict(self._measurements),
                "strides": self.budget.strides,
                "least_measurements": self._least,
            }
            self._emit(Facts(self._time_s, {"record": reported}))
            self._measurements.clear()

    def _tell_outputs(self, time_s: float, *, reported: bool) -> bool:
        """Report a module whose output has become NaN or Inf, unless one was `reported`. Returns whether."""
        name = self.first_nonfinite()
        if not name and not self._bad_output:
            return False
        new = name not in ("", self._bad_output)
        if name or self._guarded:  # else it may still be so
            self._bad_output = name
        if not new or reported:
            return False
        message = Sentence("the output of {module} is not finite, although the loss and the gradients are", module=name)
        self._emit(Incident(time_s, self._step, "nonfinite_activation", "warning", message, name))
        return True

    def _measure_in_full(self, optimizers: Sequence[Optimizer]) -> None:
        """Measure all tensors that still exist again, without strides, at the end of a step with NaN or Inf."""
        still_there = {
            "gradient": gradients(self._weights),
            "weight": values(self._weights),
            "optimizer": states(self._weights, optimizers),
            **{kind: self._held.values(kind) for kind in self._held.kinds},
        }
        for kind, named in still_there.items():
            visited = [table for table, _ in self._tables if table.kind == kind]
            if self._kinds[kind] and named and not (visited and all(max(t.strides, default=1) == 1 for t in visited)):
                self._tables = [(table, rows) for table, rows in self._tables if table.kind != kind]
                with unseen():
                    self._measure(kind, named, 1, self._unscaled if kind == "gradient" else 1.0)

    def _on_tensor(self, kind: str, name: str, tensor: Tensor) -> None:
        """A hook saw a tensor of a kind that is due."""
        if stride := self._due.get(kind, 0):
            with self._clock.booked_alone(kind), unseen():
                values = readable(tensor)
                if values is None or not (size := values.numel()):
                    return
                factor = 1.0
                if kind == "activation_gradient":
                    factor = inverse(self._scale() if callable(self._scale) else self._scale)
                if kind not in self._in_turn:
                    self._in_turn[kind] = StatisticsTable(kind), self._meter.in_turn()
                table, rows = self._in_turn[kind]
                own = stride_for(size, stride)
                rows.add(values, own, self._step, factor)
                table.append(name, own, size, dtype_name(tensor.dtype))

    def _measure(
        self, kind: str, named: Sequence[tuple[str, Tensor]], stride: int, factor: float = 1.0
    ) -> float | None:
        """Measure tensors. Returns the L2 norm over all of them where it is known now, see `statistics.norm`."""
        tensors, table = listed(kind, named, stride)
        if not tensors:
            return None
        rows = self._meter.measure(tensors, table.strides, self._step, factor)
        self._tables.append((table, rows))
        return norm(rows) if isinstance(rows, np.ndarray) and max(table.strides) == 1 else None

    def _fetch(self, numbers: Sequence[Tensor] = ()) -> list[Rows]:
        """All results that are still on the device, and `numbers`, which it returns, in one transfer."""
        return self._take(self._fetched(self._pending(numbers)))

    def _fetched(self, rows: Sequence[Any]) -> list[Rows]:
        """See `backends.fetched`; what the thread waits is no work of it."""
        transfer = Transfer(rows)
        arrays = transfer.arrays()
        self._clock.waited(transfer.waited_s)
        return arrays

    def _pending(self, numbers: Sequence[Tensor]) -> list[Any]:
        """The tensors that `_take` needs as arrays."""
        self._tables += [(table, rows.rows()) for table, rows in self._in_turn.values() if table.names]
        self._in_turn.clear()
        pending = self._outputs.detector.pending() if self._outputs is not None else None
        return [*(rows for _, rows in self._tables), *([] if pending is None else [pending]), *numbers]

    def _take(self, arrays: Sequence[Rows]) -> list[Rows]:
        """Keep what was measured, and return the numbers of the caller."""
        left = iter(arrays)
        self._tables = [(table, next(left)) for table, _ in self._tables]
        if self._outputs is not None and self._outputs.detector.is_pending:
            self._outputs.detector.take(next(left))
        return list(left)

    def _events(self, time_s: float) -> list[TensorStats]:
        """The measurements of the step, one event for each kind."""
        tables, rows = [table for table, _ in self._tables], [rows for _, rows in self._tables]
        kinds = dict.fromkeys(table.kind for table in tables)
        return [self._event(kind, tables, rows, time_s) for kind in kinds]

    def _event(self, kind: str, tables: Sequence[StatisticsTable], rows: Sequence[Rows], time_s: float) -> TensorStats:
        """All rows of one kind in the step."""
        parts = [place for place, table in enumerate(tables) if table.kind == kind]
        if len(parts) == 1:
            return finished(tables[parts[0]], rows[parts[0]], self._step, time_s)
        whole = StatisticsTable(kind)
        for place in parts:
            whole.add(tables[place])
        return finished(whole, np.concatenate([rows[place] for place in parts]), self._step, time_s)
