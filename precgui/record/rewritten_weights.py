"""Weights that a loop replaces between two steps by their rounding to 16 bits, as by a cast of the model and back."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from precgui.engine.device import has_fp64
from precgui.engine.samples import evenly_spaced, readable_sample
from precgui.engine.telemetry.parameters import parameters_of
from precgui.engine.telemetry.readable import unseen
from precgui.engine.telemetry.recorder import Weight
from precgui.record.later_numbers import LaterNumbers

_STEPS = frozenset(2 * 4**power + more for power in range(12) for more in (0, 1))  # 2, 3, 8, 9, 32, 33 ...
_FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}
_MOST_TENSORS, _SAMPLE, _FEWEST = 8, 512, 16  # elements of each tensor
_MOST_ROWS, _MOST_NAMES = 12, 8
_MOST_INTERVALS = 2000  # between two steps, in which a sample is kept because weights were written before
_MOST_SOUND = 3  # times that they were written and not rounded, then writing is no reason any more

_Mark = tuple[int, int]  # address of a tensor's memory, and how often it was written
_COLUMNS = len(_FORMATS) + 3  # of `_compared`


@dataclass
class _Watched:
    """One optimizer: parameters that are compared, and what was noted of them around its last step."""

    chosen: list[weakref.ref[Tensor]]
    marks: list[_Mark] | None = None  # after the step
    before: list[Tensor] = field(default_factory=list)  # samples
    after: list[Tensor] = field(default_factory=list)

    def present(self) -> list[_Mark]:
        held = [reference() for reference in self.chosen]
        return [(each.data_ptr(), each._version) for each in held if each is not None]


class RewrittenWeights:
    """Compares a sample of the weights in FP32 as an optimizer has left them with what it finds in its next step.

    It does so after steps of fixed numbers, and, once somebody else has written weights, up to the next such time.
    The samples stay on their device, and the answer comes with the other numbers of the step.
    """

    def __init__(self, later: LaterNumbers) -> None:
        self._later, self._step = later, 0
        self._names: dict[int, str] = {}
        self._watched: weakref.WeakKeyDictionary[Optimizer, _Watched] = weakref.WeakKeyDictionary()
        self._is_expected, self._left, self._sound = False, _MOST_INTERVALS, _MOST_SOUND
        self._rows: list[dict[str, Any]] = []

    def begin(self, step: int, weights: Iterable[Weight]) -> None:
        """A step begins."""
        self._step = step
        if step in _STEPS:
            self._names = {id(each.own): each.name for each in weights}

    def stepping(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        if len(self._rows) >= _MOST_ROWS:
            return
        state = self._watched.get(optimizer)
        if state is not None:
            is_written = state.marks is not None and state.marks != state.present()
            if state.after:
                with unseen():
                    self._compare(state, is_written=is_written)
            elif is_written and self._sound > 0:
                self._is_expected = True
            state.marks, state.before, state.after = None, [], []
        wanted = self._is_expected and self._left > 0
        if self._step in _STEPS or wanted:
            self._left -= wanted
            if state is None:
                state = self._watched[optimizer] = _Watched(_chosen(optimizer))
            with unseen():
                state.before = _samples(state.chosen)

    def stepped(self, optimizer: Optimizer) -> None:
        """It has stepped."""
        state = self._watched.get(optimizer)
        if state is None or len(self._rows) >= _MOST_ROWS:
            return
        if state.before:
            with unseen():
                state.after = _samples(state.chosen)
        state.marks = state.present()

    def facts(self) -> list[dict[str, Any]]:
        """A row for each step that found its weights rounded, see `rewritten_weights` in docs/run-file.md."""
        return self._rows

    def _compare(self, state: _Watched, *, is_written: bool) -> None:
        found = _samples(state.chosen)
        shapes = [[each.shape for each in samples] for samples in (state.before, state.after, found)]
        if not shapes[0] == shapes[1] == shapes[2] != []:
            return
        names = [self._names.get(id(reference()), "") for reference in state.chosen]
        numbers = [_compared(*samples) for samples in zip(state.before, state.after, found, strict=True)]
        single = [number for each in numbers for number in each.unbind()]
        self._later.ask(single, partial(self._judge, self._step, names, is_written=is_written))

    def _judge(self, step: int, names: list[str], values: list[float], *, is_written: bool) -> None:
        """`values` are the numbers of `_compared` of the parameters with these names."""
        rows = [values[place : place + _COLUMNS] for place in range(0, len(values), _COLUMNS)]
        counts = [sum(column) for column in list(zip(*rows, strict=True))[: len(_FORMATS)]]
        place = counts.index(max(counts))
        rounded = [row[place] > 0 for row in rows]
        if 2 * sum(rounded) < len(rows):  # some tensors may be rounded by chance, such as weights near 1
            self._sound -= is_written
            self._is_expected &= self._sound > 0
            return
        own = [row[len(_FORMATS) :] for row, is_own in zip(rows, rounded, strict=True) if is_own]
        error, update, left = map(sum, zip(*own, strict=True))
        held = [name for name, is_own in zip(names, rounded, strict=True) if is_own]
        row = {"step": step, "format": [*_FORMATS][place], "parameters": len(held), "of": len(rounded)}
        row["tensors"] = [each for each in held if each][:_MOST_NAMES]
        sizes = {"error": error**0.5, "update": update**0.5, "made": left / update if update else 0.0}
        if len(self._rows) < _MOST_ROWS:
            self._rows.append(row | sizes)
        self._is_expected = True


def _compared(before: Tensor, after: Tensor, now: Tensor) -> Tensor:
    """_COLUMNS numbers on the device of samples of one parameter around its last step, and before its next.

    1 for each of _FORMATS of which `now` is the rounding of `after`, which has more digits, else 0; the squared norms
    of what the rounding changed and of the update; and the product of the update with what is left of it.
    """
    dtype = torch.float64 if has_fp64(now.device) else torch.float32
    differs = ((after != now).sum() >= _FEWEST // 2) & now.isfinite().all()
    rounded = [differs & (after.to(each).float() == now).all() for each in _FORMATS.values()]
    old, updated, new = before.to(dtype), after.to(dtype), now.to(dtype)
    update = updated - old
    sizes = [(new - updated).square().sum(), update.square().sum(), ((new - old) * update).sum()]
    return torch.stack([*(each.to(dtype) for each in rounded), *sizes])


def _chosen(optimizer: Optimizer) -> list[weakref.ref[Tensor]]:
    """Parameters in FP32, spread over all that have enough elements."""
    own = [each for each in parameters_of(optimizer) if each.dtype == torch.float32 and each.numel() >= _FEWEST]
    own = list({id(each): each for each in own if type(each) in (Tensor, torch.nn.Parameter)}.values())
    return [weakref.ref(each) for each in evenly_spaced(own, _MOST_TENSORS)]


def _samples(chosen: list[weakref.ref[Tensor]]) -> list[Tensor]:
    """Copies of at most _SAMPLE elements of each; [] where one cannot be read any more."""
    samples = []
    for reference in chosen:
        own = reference()
        values = readable_sample(own, _SAMPLE) if own is not None and own.dtype == torch.float32 else None
        if values is None:
            return []
        samples.append(values.clone())
    return samples
