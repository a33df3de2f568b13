"""Whether a loop divides gradients by the loss scale itself: past its scaler, or a second time inside of it."""

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

_STEPS = 3  # that agree decide
_MOST_STEPS = 50  # that decide nothing, then the hooks are removed
_MARGIN = 2.0  # by which gradients must be larger than unscaled ones to count as scaled still
_ALIKE = 0.01  # relative deviation of a ratio from 1 / S or 1 / S^2
_LARGEST = 1 << 16  # elements of a parameter whose gradients are added up
_LEAST_SCALE = 4.0


@dataclass
class _Arrivals:
    """The gradients that backward passes delivered since the last step of an optimizer, by place in `parameters`."""

    parameters: list[weakref.ref[Tensor]]
    handles: list[RemovableHandle] = field(default_factory=list)
    held: dict[int, Tensor] = field(default_factory=dict)


class _Unscaling:
    """Compares the gradients at a step, by their L2 norms, with those that arrived before, until `answer` is known."""

    def __init__(self, guard: Guard, later: LaterNumbers) -> None:
        self._guard, self._later = guard, later
        self._arrivals: weakref.WeakKeyDictionary[Optimizer, _Arrivals] = weakref.WeakKeyDictionary()
        self._unknown = 0
        self.answer: bool | None = None  # None: undecided, as where the optimizer holds copies of the parameters

    def watch(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
        """Listen to the gradients of these parameters until it is decided."""
        if self.answer is None and parameters:
            arrivals = self._arrivals[optimizer] = _Arrivals([weakref.ref(each) for each in parameters])
            hooks = (_ArrivalHook(self._guard, type(self), arrivals, place) for place in range(len(parameters)))
            arrivals.handles = [each.register_hook(hook) for each, hook in zip(parameters, hooks, strict=True)]

    def stepped(self, optimizer: Optimizer, scale: Number) -> None:
        """An optimizer is about to step, at this scale of the loss."""
        arrivals = self._arrivals.get(optimizer)
        if arrivals is not None and self.answer is None:
            self._later.ask([scale, *_pairs(arrivals)], self._take)
            arrivals.held.clear()

    def _take(self, values: list[float]) -> None:
        if self.answer is not None:
            return
        arrived = math.hypot(*values[2::2])
        self.judge(values[0], math.hypot(*values[1::2]) / arrived if arrived > 0 else math.nan)
        if self.answer is not None or self._unknown >= _MOST_STEPS:
            self.close()

    def judge(self, scale: float, ratio: float) -> None:
        """Take account of a step: the ratio of the gradients then to those that arrived, NaN where there are none."""
        raise NotImplementedError

    @staticmethod
    def joined(held: Tensor | None, gradient: Tensor) -> Tensor:
        """The gradients that arrived, as far as they are held, with another one."""
        raise NotImplementedError

    def close(self) -> None:
        """Take the hooks from the parameters."""
        for arrivals in self._arrivals.values():
            for handle in arrivals.handles:
                handle.remove()
        self._arrivals.clear()


class HandUnscaling(_Unscaling):
    """Whether a loop that steps past its loss scaler takes gradients that are scaled still.

    Where nobody divides, |g at the step| is of the size of |g that arrived|; a loop that unscales by hand gives 1 / S
    of it, or less where it clips or averages, too. So gradients above 2 / S of those that arrived are scaled still: the
    sum of the norms of several passes is never below the norm of their sum, and a clip only makes gradients smaller.
    """

    def __init__(self, guard: Guard, later: LaterNumbers) -> None:
        super().__init__(guard, later)
        self._scaled = self._divided = 0

    @staticmethod
    def joined(held: Tensor | None, gradient: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(gradient)
        return norm if held is None else held + norm

    def judge(self, scale: float, ratio: float) -> None:
        if not math.isfinite(ratio) or scale < 2 * _MARGIN:
            self._unknown += 1
        elif ratio * scale > _MARGIN:
            self._scaled += 1
        else:
            self._divided += 1
        known = self._scaled + self._divided
        if known >= _STEPS or (self._unknown >= _MOST_STEPS and known):
            self.answer = self._scaled > self._divided


class DoubleUnscaling(_Unscaling):
    """Whether gradients at a step inside scaler.step() were divided by the scale twice.

    |g at the step| / |sum of g that arrived| is 1 / S where they were divided once, and 1 / S^2 where the loop has
    divided them, too. Clipped ones have any ratio: they decide nothing, unless it is one of the two in each step.
    """

    def __init__(self, guard: Guard, later: LaterNumbers) -> None:
        super().__init__(guard, later)
        self._twice = 0

    def watch(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
        super().watch(optimizer, [parameter for parameter in parameters if parameter.numel() <= _LARGEST])

    @staticmethod
    def joined(held: Tensor | None, gradient: Tensor) -> Tensor:
        return gradient.clone() if held is None else held + gradient

    def judge(self, scale: float, ratio: float) -> None:
        if scale < _LEAST_SCALE or not math.isfinite(ratio):
            self._unknown += 1
        elif abs(ratio * scale - 1) < _ALIKE:
            self.answer = False
        elif abs(ratio * scale * scale - 1) < _ALIKE:
            self._twice += 1
            self.answer = True if self._twice >= _STEPS else None
        else:
            self._twice, self._unknown = 0, self._unknown + 1


def _pairs(arrivals: _Arrivals) -> list[Number]:
    """|g at the step| and |g that arrived| of each of the parameters that have both."""
    pairs: list[Number] = []
    with unseen():
        for place, held in arrivals.held.items():
            parameter = arrivals.parameters[place]()
            values = readable(parameter.grad) if parameter is not None and parameter.grad is not None else None
            if values is not None:
                pairs += [torch.linalg.vector_norm(single(values)), torch.linalg.vector_norm(held)]
    return pairs


class _ArrivalHook(Hook):
    """Called by a parameter with a gradient that is about to be added to what it holds: None where there is none."""

    __slots__ = ("_arrivals", "_kind", "_place")

    def __init__(self, guard: Guard, kind: type[_Unscaling], arrivals: _Arrivals, place: int) -> None:
        super().__init__(guard)
        self._kind, self._arrivals, self._place = kind, arrivals, place

    def __call__(self, gradient: Tensor | None, *_: Any) -> None:
        if gradient is None:
            return
        with unseen():
            values = readable(gradient)
            if values is not None:
                held = self._arrivals.held
                held[self._place] = self._kind.joined(held.get(self._place), single(values))
