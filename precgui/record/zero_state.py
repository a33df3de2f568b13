"""State of an optimizer that is zero where the gradient is not, and that the update is divided by."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from precgui.engine.dtype_names import dtype_name
from precgui.engine.samples import readable_sample
from precgui.engine.telemetry.parameters import parameters_of
from precgui.engine.telemetry.readable import unseen
from precgui.record.emptied_moments import chosen_parameters
from precgui.record.later_numbers import LaterNumbers

_STEPS = frozenset({1, *(2 * 4**power + more for power in range(12) for more in (0, 1))})  # 1, 2, 3, 8, 9, 32 ...
_SAMPLE, _FEWEST, _MOST_ROWS, _MOST_STATES = 512, 16, 12, 8
_LOST = 0.01  # of the elements with a gradient
_LARGER = 30.0  # the usual update of elements whose state is zero, over the largest one of the others
_COLUMNS = 4  # of `_compared`

_Before = tuple[weakref.ref[Tensor], Tensor, Tensor]  # a parameter, samples of it and of its gradient


class ZeroState:
    """In steps of fixed numbers, compares the updates of elements whose state is zero with those of the others.

    A mean of squares of gradients is zero nowhere where the gradient is not, unless it was rounded: then the update is
    divided by the epsilon alone. A mask, or a momentum, makes no larger update where it is zero. The numbers come with
    the others of the step.
    """

    def __init__(self, later: LaterNumbers) -> None:
        self._later = later
        self._before: weakref.WeakKeyDictionary[Optimizer, tuple[int, list[_Before]]] = weakref.WeakKeyDictionary()
        self._rows: list[dict[str, Any]] = []

    def stepping(self, step: int, optimizer: Optimizer) -> None:
        """An optimizer is about to make a step."""
        if step not in _STEPS or len(self._rows) >= _MOST_ROWS:
            return
        with unseen():
            held = [
                (own, _sample(own), _sample(own.grad))
                for each in chosen_parameters(optimizer)
                if (own := each()) is not None and own.grad is not None and own.grad.layout is own.layout
            ]
            self._before[optimizer] = step, [
                (weakref.ref(own), value, gradient) for own, value, gradient in held
                if value is not None and gradient is not None and gradient.shape == value.shape
            ]  # fmt: skip

    def stepped(self, optimizer: Optimizer) -> None:
        """It has made its step."""
        step, before = self._before.pop(optimizer, (0, []))
        if not before:
            return
        with unseen():
            found: dict[str, list[list[Tensor]]] = {}
            for reference, value, gradient in before:
                own = reference()
                after = _sample(own) if own is not None else None
                if own is None or after is None or after.shape != value.shape:
                    continue
                for name, state in _states(optimizer, own):
                    held = _sample(state)
                    if held is not None and held.shape == value.shape:
                        key = f"{name} {dtype_name(state.dtype)}"
                        found.setdefault(key, []).append(_compared(value, gradient, held, after))
        for key, columns in list(found.items())[:_MOST_STATES]:
            self._later.ask([each for one in columns for each in one], partial(self._judge, step, key))

    def facts(self) -> list[dict[str, Any]]:
        """A row for each step and kind of state, see `zero_state` in docs/run-file.md."""
        return self._rows

    def _judge(self, step: int, key: str, values: list[float]) -> None:
        """`values` are the numbers of `_compared` of some parameters."""
        rows = [values[place : place + _COLUMNS] for place in range(0, len(values), _COLUMNS)]
        bad = [row for row in rows if row[0] >= _LOST * row[1] > 0 and row[2] > _LARGER * row[3] > 0]
        lost = sum(row[0] for row in bad)
        if lost < _FEWEST or len(self._rows) >= _MOST_ROWS:
            return
        worst, (name, dtype) = max(bad, key=lambda row: row[2] / row[3]), key.split(" ")
        self._rows.append({
            "step": step, "state": name, "format": dtype, "parameters": len(bad), "lost": lost,
            "of": sum(row[1] for row in bad), "update": worst[2], "usual": worst[3],
        })  # fmt: skip


def _compared(before: Tensor, gradient: Tensor, state: Tensor, after: Tensor) -> list[Tensor]:
    """_COLUMNS numbers on the device of samples of one parameter.

    The elements whose state is zero and whose gradient is not, and that are not zero themselves after the step; those
    with a gradient; the median update of the former; and the largest one of the others, 0 where the state is negative
    anywhere or the same in all of these.
    """
    update = (after - before).abs()
    alive = (gradient != 0) & gradient.isfinite() & state.isfinite()
    zero, other = alive & (state == 0) & (after != 0), alive & (state != 0)
    held = torch.where(other, state, 0)
    varies = (state >= 0).all() & (held.max() > torch.where(other, state, torch.inf).min())
    median = torch.where(zero & update.isfinite(), update, torch.nan).nanmedian()
    return [zero.sum(), alive.sum(), median, torch.where(other, update, 0).max() * varies]


def _states(optimizer: Optimizer, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensors with a number for each element of a parameter, by name: of `state`, and of lists of the optimizer."""
    state = optimizer.state.get(parameter, {})
    own = [(str(name), each) for name, each in state.items()] if isinstance(state, dict) else []
    every = parameters_of(optimizer)
    place = next((at for at, each in enumerate(every) if each is parameter), -1)
    for name, each in vars(optimizer).items():
        if isinstance(each, list | tuple) and len(each) == len(every) and place >= 0:
            own.append((name, each[place]))
        elif isinstance(each, dict) and name != "state":
            own.append((name, each.get(parameter)))
    for name, each in own:
        if isinstance(each, Tensor) and each.numel() == parameter.numel() and each.dtype is not torch.bool:
            yield name, each


def _sample(value: Tensor | None) -> Tensor | None:
    """A copy of at most _SAMPLE elements of a tensor in FP32; None of one that cannot be read or has few."""
    values = readable_sample(value, _SAMPLE, _FEWEST)
    return values.to(torch.float32, copy=True) if values is not None else None
