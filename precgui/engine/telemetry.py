"""The record of tensors: what is looked at in a step, when, and what it says about it."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from precgui.config import RecordConfig
from precgui.engine.telemetry_budget import Budget
from precgui.engine.telemetry_meters import Meter, meter_for, stride_for
from precgui.engine.telemetry_outputs import Outputs, unseen
from precgui.engine.telemetry_rows import Rows, Table, finished
from precgui.events import Emit, TensorStats

BLACK_BOX_STEPS = 64
WATCHED = ("activation", "activation_gradient", "sentinel")  # by hooks on modules
ALARM_STEPS = 2  # after a non-finite value, at full detail


@dataclass(frozen=True)
class Weight:
    """A parameter of the model and what the optimizer updates in its stead (the same one, or an FP32 copy)."""

    name: str
    own: nn.Parameter
    updated: nn.Parameter

    @property
    def value(self) -> Tensor:
        """The more exact of the two, as far as it is held between steps."""
        return self.updated if self.updated.numel() == self.own.numel() else self.own


class Telemetry:
    """Looks at tensors at the moments of a step that the training loop names, within the budget.

    Order of calls: `begin`, the forward and backward passes, `gradients` once they are unscaled, `before_update`,
    `after_update`, `end`. Nothing that is called here changes what is computed. On the CPU each look is a loop over
    the memory; elsewhere the results of a step come over in one transfer.
    """

    def __init__(
        self, config: RecordConfig, model: nn.Module, weights: Sequence[Weight], emit: Emit, *, modules: bool = True
    ) -> None:
        """`modules` says whether module outputs can be watched (a compiled model hides them)."""
        self._emit, self._weights = emit, list({id(w.own): w for w in weights}.values())
        self._meter: Meter = meter_for(next((w.own.device for w in weights), torch.device("cpu")))
        kinds = {
            "gradient": config.gradients_every,
            "weight": config.weights_every,
            "update": config.weights_every,
            "optimizer": config.optimizer_every,
        }
        if modules:
            kinds["activation"] = config.activations_every
            kinds["activation_gradient"] = config.activation_gradients_every
            kinds["sentinel"] = 1
        self._kinds = kinds
        self.budget = Budget(config, kinds | {"gradient": min(config.gradients_every, 1)})
        self._outputs = Outputs(model, self._look) if modules else None
        self._box: collections.deque[TensorStats] = collections.deque(maxlen=BLACK_BOX_STEPS)
        self._alarm_until = -BLACK_BOX_STEPS
        self._clear()

    def _clear(self) -> None:
        self._tables: list[tuple[Table, Any]] = []
        self._costs: dict[str, float] = {}
        self._before: tuple[list[Weight], list[int], Any] | None = None

    def begin(self, step: int, scale: float = 1.0) -> None:
        """Step `step` (counted from 1) begins, its loss multiplied by `scale`."""
        self._clear()
        self._step, self._scale = step, scale
        self._due = self.budget.due(step)
        if step <= self._alarm_until:
            self._due = {kind: 1 for kind, every in self._kinds.items() if every}
        if self._outputs is not None:
            self._outputs.begin({kind: stride for kind, stride in self._due.items() if kind in WATCHED})

    def gradients(self, optimizer: Optimizer | None = None, scale: float = 1.0) -> None:
        """The gradients (of one optimizer) are complete; they are still multiplied by `scale`."""
        with self._at("gradient") as stride:
            if stride:
                self._measure("gradient", self._gradients(self._of(optimizer)), stride, 1 / scale)

    def before_update(self, optimizer: Optimizer | None = None) -> None:
        """The optimizer (or the one of several) is about to step."""
        with self._at("update") as stride:
            if stride:
                weights = self._of(optimizer)
                strides = [stride_for(w.own.numel(), stride) for w in weights]
                self._before = weights, strides, self._meter.keep([w.value for w in weights], strides, self._step)

    def after_update(self, optimizers: Sequence[Optimizer]) -> None:
        """The weights are what the next step will see; a skipped step has left them as they were."""
        with self._at("update") as stride:
            if stride and self._before is not None:
                weights, strides, kept = self._before
                rows = self._meter.compare([w.value for w in weights], strides, self._step, kept)
                table = Table("update", [w.name for w in weights], strides, [w.own.numel() for w in weights])
                self._tables.append((table, rows))
                self._before = None
        with self._at("weight") as stride:
            if stride:
                own = [weight for optimizer in optimizers for weight in self._of(optimizer)]
                self._measure("weight", self._values(own), stride)
        with self._at("optimizer") as stride:
            if stride:
                self._measure("optimizer", self._states(optimizers), stride)

    def end(self, time_s: float, step_s: float, optimizers: Sequence[Optimizer], *, alarm: bool = False) -> None:
        """The step took `step_s`; emits what was seen. `alarm` says that something was not finite."""
        begin = time.thread_time()
        if self._outputs is not None:
            self._outputs.end()
            if self._outputs.sentinel_s:
                self._costs["sentinel"] = self._outputs.sentinel_s
        if alarm and self._step > self._alarm_until + BLACK_BOX_STEPS:  # not anew for each of a series
            self._alarm_until = self._step + ALARM_STEPS
            self._look_closely(optimizers)
            self._write_box()
        tables, rows = [table for table, _ in self._tables], self._meter.fetch([rows for _, rows in self._tables])
        events = [self._event(kind, tables, rows, time_s) for kind in dict.fromkeys(table.kind for table in tables)]
        share = (time.thread_time() - begin) / max(len(events), 1)
        for event in events:
            self._costs[event.kind] = self._costs.get(event.kind, 0.0) + share
            if self._is_written(event.kind):
                self._emit(event)
            else:
                self._box.append(event)
        self.budget.settle(step_s, self._costs)

    def first_nonfinite(self) -> str:
        """The first module of this step whose output was not finite, or ''."""
        return self._outputs.first_nonfinite() if self._outputs is not None else ""

    def close(self) -> None:
        """Leave the model as it was before."""
        if self._outputs is not None:
            self._outputs.close()

    def _is_written(self, kind: str) -> bool:
        """Gradients are looked at in every step; between their intervals they only go to the black box."""
        return self._step <= self._alarm_until or (self._step - 1) % self._kinds[kind] == 0

    def _look_closely(self, optimizers: Sequence[Optimizer]) -> None:
        """What was not due in a step that turned out bad, as far as it is still there."""
        seen = {table.kind for table, _ in self._tables}
        still_there = {
            "gradient": self._gradients(self._weights),
            "weight": self._values(self._weights),
            "optimizer": self._states(optimizers),
        }
        for kind, named in still_there.items():
            if self._kinds[kind] and kind not in seen:
                with unseen():
                    self._measure(kind, named, 1)

    def _write_box(self) -> None:
        for event in self._box:
            self._emit(event)
        self._box.clear()

    def _look(self, kind: str, name: str, tensor: Tensor) -> None:
        """A hook saw a tensor of a kind that is due."""
        with self._at(kind) as stride:
            if stride:
                factor = 1 / self._scale if kind == "activation_gradient" else 1.0
                self._measure(kind, [(name, tensor)], stride, factor)

    def _measure(self, kind: str, named: Sequence[tuple[str, Tensor]], stride: int, factor: float = 1.0) -> None:
        if not named:
            return
        tensors = [tensor for _, tensor in named]
        sizes = [tensor.numel() for tensor in tensors]
        strides = [stride_for(size, stride) for size in sizes]
        rows = self._meter.measure(tensors, strides, self._step, factor)
        self._tables.append((Table(kind, [name for name, _ in named], strides, sizes), rows))

    def _of(self, optimizer: Optimizer | None) -> list[Weight]:
        """The weights that an optimizer updates, all of them for None."""
        if optimizer is None:
            return self._weights
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return [weight for weight in self._weights if id(weight.updated) in own]

    @staticmethod
    def _gradients(weights: Sequence[Weight]) -> list[tuple[str, Tensor]]:
        return [(w.name, w.updated.grad) for w in weights if w.updated.grad is not None]

    @staticmethod
    def _values(weights: Sequence[Weight]) -> list[tuple[str, Tensor]]:
        return [(w.name, w.own) for w in weights]

    def _states(self, optimizers: Sequence[Optimizer]) -> list[tuple[str, Tensor]]:
        """What the optimizers keep for each weight, but for step counters: `fc.weight.exp_avg`."""
        return [
            (f"{weight.name}.{name}", state)
            for weight in self._weights
            for optimizer in optimizers
            for name, state in optimizer.state.get(weight.updated, {}).items()
            if isinstance(state, Tensor) and state.is_floating_point() and state.numel() == weight.own.numel()
            and (state.dim() or name != "step")
        ]  # fmt: skip

    def _event(self, kind: str, tables: Sequence[Table], rows: Sequence[Rows], time_s: float) -> TensorStats:
        """All that was seen of one kind in the step."""
        parts = [place for place, table in enumerate(tables) if table.kind == kind]
        whole = Table(kind)
        for place in parts:
            whole.names += tables[place].names
            whole.strides += tables[place].strides
            whole.sizes += tables[place].sizes
        return finished(whole, np.concatenate([rows[place] for place in parts]), self._step, time_s)

    @contextlib.contextmanager
    def _at(self, kind: str) -> Iterator[int]:
        """The stride of a kind in this step, 0 when it is not due; what is done inside is booked on it, as CPU time."""
        if kind not in self._due:
            yield 0
            return
        begin = time.thread_time()
        with unseen():
            yield self._due[kind]
        self._costs[kind] = self._costs.get(kind, 0.0) + time.thread_time() - begin
