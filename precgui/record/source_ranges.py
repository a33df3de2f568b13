"""The range of learned numbers of which a function is taken, in the last steps before one that is not finite."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from precgui.engine.exponent_sources import ExponentSource
from precgui.engine.singular_sources import SingularSource
from precgui.engine.telemetry.guard import Guard
from precgui.engine.telemetry.hook import Hook
from precgui.engine.telemetry.readable import readable, unseen

_MOST_ELEMENTS = 1 << 20
_KEPT, _MOST_ALARMS, _MOST_ROWS = 8, 3, 12  # measurements; steps that were not finite; rows


Source = ExponentSource | SingularSource


class SourceRanges:
    """Measures the range of each source in each step; nothing waits for a GPU before an alarm."""

    def __init__(self, model: nn.Module, guard: Guard) -> None:
        self._model, self._guard = weakref.ref(model), guard
        self._step = 0
        self._followed: set[Source] = set()
        self._parameters: list[tuple[Source, weakref.ref[Tensor]]] = []
        self._handles: list[RemovableHandle] = []
        self._last: deque[tuple[int, Source, Tensor]] = deque(maxlen=_KEPT)
        self._alarms = _MOST_ALARMS
        self._rows: list[dict[str, Any]] = []

    def follow(self, sources: Iterable[Source]) -> None:
        """Measure these sources from the next step on."""
        model = self._model()
        for source in sources:
            if source in self._followed or model is None:
                continue
            self._followed.add(source)
            if source.parameter:
                own = dict(model.named_parameters()).get(source.parameter)
                if own is not None:
                    self._parameters.append((source, weakref.ref(own)))
            else:
                module = dict(model.named_modules()).get(source.module)
                if module is not None:
                    self._handles.append(module.register_forward_hook(_OutputHook(self, source, self._guard)))

    def begin(self, step: int) -> None:
        """A step begins."""
        self._step = step
        for source, reference in self._parameters:
            own = reference()
            if own is not None:
                self.measure(source, own)

    def measure(self, source: Source, output: Any) -> None:
        """Take the range of the part of an output of which the function is taken."""
        own = readable(output.detach()) if isinstance(output, Tensor) else None
        if own is None or not 0 < own.numel() <= _MOST_ELEMENTS or not own.is_floating_point():
            return
        if source.part is not None:
            dim, start, length = source.part
            if own.dim() < -dim or own.shape[dim] < start + length:
                return
            own = own.narrow(dim, start, length)
        with unseen():
            self._last.append((self._step, source, torch.stack(torch.aminmax(own))))

    def alarm(self) -> None:
        """The loss or the gradients of a step were not finite."""
        if not self._alarms or not self._last:
            return
        self._alarms -= 1
        last = list(self._last)
        self._last.clear()
        for step, source, numbers in last:
            with unseen(), torch.autocast("cpu", enabled=False):
                row = source.row(numbers.cpu())
            if row is not None and len(self._rows) < _MOST_ROWS:
                self._rows.append({"step": step} | row)

    def facts(self) -> list[dict[str, Any]]:
        """Rows of sources in the steps before an alarm, see `exponents` and `singular_points` in docs/run-file.md."""
        return self._rows

    def close(self) -> None:
        """Remove all hooks."""
        for each in self._handles:
            each.remove()
        self._handles, self._parameters = [], []


class _OutputHook(Hook):
    """Called with the output of a module after each forward pass."""

    __slots__ = ("_ranges", "_source")

    def __init__(self, ranges: SourceRanges, source: Source, guard: Guard) -> None:
        super().__init__(guard)
        self._ranges, self._source = ranges, source

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._ranges.measure(self._source, output)
