"""Whether gradients that a loss scaler has divided by the scale were divided by it a second time."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from precgui.engine.telemetry.guard import Guard
from precgui.engine.telemetry.hook import Hook
from precgui.engine.telemetry.readable import readable, single, unseen
from precgui.record.hand_unscaling import ratio_of
from precgui.record.later_numbers import LaterNumbers, Number

_ALIKE = 0.01  # relative deviation of a ratio from 1 / S or 1 / S^2
_STEPS = 3  # that agree decide
_MOST_STEPS = 50  # in which gradients were neither, as clipped ones, then the hooks are removed
_LARGEST = 1 << 16  # elements of a parameter that is observed
_LEAST_SCALE = 4.0


@dataclass
class _Sums:
    """The gradients that arrived since the last step of an optimizer, added up, by place in `parameters`."""

    parameters: list[weakref.ref[Tensor]]
    handles: list[RemovableHandle] = field(default_factory=list)
    arrived: dict[int, Tensor] = field(default_factory=dict)


class DoubleUnscaling:
    """Compares gradients at a step inside scaler.step() with the sum of those that the backward passes delivered.

    |g at the step| / |sum of g that arrived| is 1 / S where they were divided once, and 1 / S^2 where the loop has
    divided them, too. Clipped ones have any ratio: they decide nothing, unless it is one of the two in each step.
    """

    def __init__(self, guard: Guard, later: LaterNumbers) -> None:
        self._guard, self._later = guard, later
        self.divided_twice: bool | None = None
        self._watched: weakref.WeakKeyDictionary[Optimizer, _Sums] = weakref.WeakKeyDictionary()
        self._twice = self._unknown = 0

    def watch(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
        """Listen to the gradients of those of these parameters that are small."""
        chosen = [parameter for parameter in parameters if parameter.numel() <= _LARGEST]
        if not chosen or self.divided_twice is not None:
            return
        sums = self._watched[optimizer] = _Sums([weakref.ref(parameter) for parameter in chosen])
        sums.handles = [p.register_hook(_SumHook(self._guard, sums, place)) for place, p in enumerate(chosen)]

    def stepped(self, optimizer: Optimizer, scale: Number) -> None:
        """An optimizer is about to step inside a scaler that has divided its gradients by `scale`."""
        sums = self._watched.get(optimizer)
        if sums is not None and self.divided_twice is None:
            self._later.ask([scale, *_pairs(sums)], self._judge)
            sums.arrived.clear()

    def _judge(self, values: list[float]) -> None:
        if self.divided_twice is not None:
            return
        scale, ratio = values[0], ratio_of(values[1:])
        if scale < _LEAST_SCALE or not math.isfinite(ratio):
            self._unknown += 1
        elif abs(ratio * scale - 1) < _ALIKE:
            self.divided_twice = False
        elif abs(ratio * scale * scale - 1) < _ALIKE:
            self._twice += 1
        else:
            self._twice, self._unknown = 0, self._unknown + 1
        if self._twice >= _STEPS:
            self.divided_twice = True
        if self.divided_twice is not None or self._unknown >= _MOST_STEPS:
            self.close()

    def close(self) -> None:
        """Take the hooks from the parameters."""
        for sums in self._watched.values():
            for handle in sums.handles:
                handle.remove()
        self._watched.clear()


def _pairs(sums: _Sums) -> list[Number]:
    """|g at the step| and |g that arrived| of each of the parameters that have both."""
    pairs: list[Number] = []
    with unseen():
        for place, total in sums.arrived.items():
            parameter = sums.parameters[place]()
            values = readable(parameter.grad) if parameter is not None and parameter.grad is not None else None
            if values is not None:
                pairs += [torch.linalg.vector_norm(single(values)), torch.linalg.vector_norm(total)]
    return pairs


class _SumHook(Hook):
    """Called by a parameter with a gradient that is about to be added to what it holds."""

    __slots__ = ("_place", "_sums")

    def __init__(self, guard: Guard, sums: _Sums, place: int) -> None:
        super().__init__(guard)
        self._sums, self._place = sums, place

    def __call__(self, gradient: Tensor, *_: Any) -> None:
        with unseen():
            values = readable(gradient)
            if values is not None:
                arrived, own = self._sums.arrived, single(values)
                arrived[self._place] = arrived[self._place] + own if self._place in arrived else own.clone()
