"""Whether a loop that steps past its loss scaler has divided the gradients by the scale itself."""

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
from precgui.record.later_numbers import LaterNumbers, Number

_MARGIN = 2.0  # by which gradients must be larger than unscaled ones to count as scaled still
_STEPS = 3  # that agree decide
_MOST_STEPS = 50  # in which gradients could not be compared, then the hooks are removed


@dataclass
class _Arrivals:
    """The backward passes since the last step of an optimizer: for each parameter the sum of their L2 norms."""

    parameters: list[weakref.ref[Tensor]]
    handles: list[RemovableHandle]
    norms: dict[int, Number] = field(default_factory=dict)  # by place in `parameters`


class HandUnscaling:
    """Compares the gradients that an optimizer gets with those that the backward passes delivered.

    Where nobody divides, |g at the step| is of the size of |g that arrived|; a loop that unscales by hand gives 1 / S
    of it, or less where it clips or averages, too. So gradients above 2 / S of those that arrived are scaled still: the
    sum of the norms of several passes is never below the norm of their sum, and a clip only makes gradients smaller.
    """

    def __init__(self, guard: Guard, later: LaterNumbers) -> None:
        self._guard, self._later = guard, later
        self._arrivals: weakref.WeakKeyDictionary[Optimizer, _Arrivals] = weakref.WeakKeyDictionary()
        self._scaled = self._divided = self._unknown = 0
        self.still_scaled: bool | None = None  # None: undecided, as where the optimizer holds copies of the parameters

    def watch(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
        """Listen to the gradients of these parameters until it is decided."""
        arrivals = _Arrivals([weakref.ref(parameter) for parameter in parameters], [])
        for place, parameter in enumerate(parameters):
            arrivals.handles.append(parameter.register_hook(_NormHook(self._guard, arrivals, place)))
        self._arrivals[optimizer] = arrivals

    def stepped(self, optimizer: Optimizer, scale: Number) -> None:
        """An optimizer is about to step past a scaler with this scale."""
        arrivals = self._arrivals.get(optimizer)
        if arrivals is not None and self.still_scaled is None:
            self._later.ask([scale, *_pairs(arrivals)], self._judge)
            arrivals.norms.clear()

    def _judge(self, values: list[float]) -> None:
        if self.still_scaled is not None:
            return
        scale, ratio = values[0], ratio_of(values[1:])
        if not math.isfinite(ratio) or scale < 2 * _MARGIN:
            self._unknown += 1
        elif ratio * scale > _MARGIN:
            self._scaled += 1
        else:
            self._divided += 1
        if self._scaled + self._divided >= _STEPS or (self._unknown >= _MOST_STEPS and self._scaled + self._divided):
            self.still_scaled = self._scaled > self._divided
        if self.still_scaled is not None or self._unknown >= _MOST_STEPS:
            self.close()

    def close(self) -> None:
        """Take the hooks from the parameters."""
        for arrivals in self._arrivals.values():
            for handle in arrivals.handles:
                handle.remove()
        self._arrivals.clear()


def _pairs(arrivals: _Arrivals) -> list[Number]:
    """|g at the step| and |g that arrived| of each of the parameters that have both."""
    pairs: list[Number] = []
    for place, reference in enumerate(arrivals.parameters):
        parameter = reference()
        if parameter is not None and parameter.grad is not None and place in arrivals.norms:
            pairs += [_norm(parameter.grad), arrivals.norms[place]]
    return pairs


def ratio_of(pairs: Sequence[float]) -> float:
    """The ratio of the L2 norms of every second number, from the first and from the second on; NaN without any."""
    arrived = math.hypot(*pairs[1::2])
    return math.hypot(*pairs[::2]) / arrived if arrived > 0 else math.nan


def _norm(tensor: Tensor) -> Number:
    with unseen():
        values = readable(tensor)
        return torch.linalg.vector_norm(single(values)) if values is not None else math.nan


class _NormHook(Hook):
    """Called by a parameter with a gradient that is about to be added to what it holds."""

    __slots__ = ("_arrivals", "_place")

    def __init__(self, guard: Guard, arrivals: _Arrivals, place: int) -> None:
        super().__init__(guard)
        self._arrivals, self._place = arrivals, place

    def __call__(self, gradient: Tensor, *_: Any) -> None:
        norms = self._arrivals.norms
        norms[self._place] = norms.get(self._place, 0.0) + _norm(gradient)
