"""State of an optimizer that is zero where the gradient is not, and that the update is divided by; and its formats."""

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
from precgui.engine.telemetry.readable import placed_tensors, readable, unseen
from precgui.engine.torch_private import is_traceable_wrapper_subclass
from precgui.record.emptied_moments import chosen_parameters
from precgui.record.later_numbers import LaterNumbers

_STEPS = frozenset({1, *(2 * 4**power + more for power in range(12) for more in (0, 1))})  # 1, 2, 3, 8, 9, 32 ...
_SAMPLE, _FEWEST, _MOST_ROWS, _MOST_STATES = 512, 16, 12, 8
_LOST = 0.01  # of the elements with a gradient
_LARGER = 30.0  # the update of an element whose state is zero, over the largest one of those whose state is not
_COLUMNS = 4  # of `_compared`
_LONGEST_BLOCK = 4096  # elements with one scale: a state in blocks is filled up with zeros to whole ones
_HUGE = 1000.0  # times the rate, where no other element tells how large updates are
_PACKED, _FEWEST_CODES = 4, 8  # elements in a byte, at most; of a state that is no counter
_WIDE = (torch.float32, torch.float64, torch.bool)
_MOST_NARROW = 8

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
        self._narrow: dict[str, str] = {}  # formats of fewer bits than FP32, by the name of the state

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
        if not step:
            return
        with unseen():
            self._note_formats(optimizer)
            rate = _largest_rate(optimizer)
            found: dict[tuple[str, torch.dtype], list[list[Tensor]]] = {}
            for reference, value, gradient in before:
                own = reference()
                after = _sample(own) if own is not None else None
                if own is None or after is None or after.shape != value.shape:
                    continue
                for name, state in _states(optimizer, own):
                    held, fill = _of_elements(state, own.numel())
                    if held is not None and held.shape == value.shape:
                        numbers = _compared(value, gradient, held, after, fill)
                        found.setdefault((name, state.dtype), []).append(numbers)
        for key, columns in list(found.items())[:_MOST_STATES]:
            self._later.ask([each for one in columns for each in one], partial(self._judge, step, key, rate))

    def facts(self) -> list[dict[str, Any]]:
        """A row for each step and kind of state, see `zero_state` in docs/run-file.md."""
        return self._rows

    def narrow(self) -> list[dict[str, Any]]:
        """A row for each kind of state in fewer bits than FP32 has, see `narrow_state` there."""
        return [{"state": name, "format": low} for name, low in self._narrow.items()]

    def _note_formats(self, optimizer: Optimizer) -> None:
        for each in chosen_parameters(optimizer):
            own = each()
            for name, state in _states(optimizer, own) if own is not None else ():
                for part in _stored(state):
                    is_large = part.numel() >= max(_FEWEST_CODES, own.numel() // _PACKED) if own is not None else False
                    if is_large and part.dtype not in _WIDE and len(self._narrow) < _MOST_NARROW:
                        self._narrow.setdefault(name, dtype_name(part.dtype))

    def _judge(self, step: int, key: tuple[str, torch.dtype], rate: float, values: list[float]) -> None:
        """`values` are the numbers of `_compared` of some parameters."""
        rows = [values[place : place + _COLUMNS] for place in range(0, len(values), _COLUMNS)]
        moved = [row for row in rows if row[0] >= _LOST * row[1] > 0 and row[2] > 0]
        # Where nothing else is left, only the rate tells how large an update is.
        bad = [row for row in moved if row[3] > 0]
        bad = bad or [row for row in moved if row[0] == row[1] and row[2] > _HUGE * rate > 0]
        lost = sum(row[0] for row in bad)
        if lost < _FEWEST or len(self._rows) >= _MOST_ROWS:
            return
        worst = max(bad, key=lambda row: row[2] / row[3] if row[3] > 0 else row[2])
        self._rows.append({
            "step": step, "state": key[0], "format": dtype_name(key[1]), "parameters": len(bad), "lost": lost,
            "of": sum(row[1] for row in bad), "update": worst[2], "usual": worst[3],
        })  # fmt: skip


def _compared(before: Tensor, gradient: Tensor, state: Tensor, after: Tensor, fill: Tensor | None) -> list[Tensor]:
    """_COLUMNS numbers on the device of samples of one parameter.

    The elements whose state is zero and whose gradient is not, that are not zero themselves after the step, and whose
    update is over _LARGER times the largest one of the others; those with a gradient; the median update of the former;
    and that largest one, 0 where the state is negative anywhere, is the same in all of these, or its `fill` is no zero.
    """
    update = (after - before).abs()
    alive = (gradient != 0) & gradient.isfinite() & state.isfinite()
    zero, other = alive & (state == 0) & (after != 0), alive & (state != 0)
    held = torch.where(other, state, 0)
    varies = (state >= 0).all() & (held.max() > torch.where(other, state, torch.inf).min())
    if fill is not None:
        varies &= (fill == 0).all()
    usual = torch.where(other, update, 0).max() * varies
    far = zero & update.isfinite() & (update > _LARGER * usual)
    return [far.sum(), alive.sum(), torch.where(far, update, torch.nan).nanmedian(), usual]


def _states(optimizer: Optimizer, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensors that an optimizer keeps for a parameter, by name: in `state`, and in lists of its own."""
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
        for path, tensor in placed_tensors(each):
            if tensor is not parameter:
                yield name + path, tensor


def _largest_rate(optimizer: Optimizer) -> float:
    """The largest rate of its groups; 0 where one is a tensor, which nobody reads here, or where there is none."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    numbers = [float(each) for each in rates if isinstance(each, int | float)]
    return max(numbers, default=0.0) if len(numbers) == len(rates) else 0.0


def _stored(state: Any) -> list[Tensor]:
    """The tensors that hold the numbers of one, where its class makes them up from others."""
    if not is_traceable_wrapper_subclass(state):
        return [state]
    inner = state.__tensor_flatten__()[0]
    return [part for name in inner if isinstance(part := getattr(state, name, None), Tensor)]


def _of_elements(state: Tensor, count: int) -> tuple[Tensor | None, Tensor | None]:
    """A sample of a state that has a number for each of `count` elements, and what fills its last block up; None where
    it has none, or cannot be read."""
    if state.dtype is torch.bool or not count <= state.numel() < count + _LONGEST_BLOCK:
        return None, None
    if state.numel() == count:
        return _sample(state), None
    values = readable(state)
    if values is None or values.numel() != state.numel():
        return None, None
    flat = values.detach().reshape(-1)
    return _sample(flat[:count]), flat[count:]


def _sample(value: Tensor | None) -> Tensor | None:
    """A copy of at most _SAMPLE elements of a tensor in FP32; None of one that cannot be read or has few."""
    values = readable_sample(value, _SAMPLE, _FEWEST)
    return values.to(torch.float32, copy=True) if values is not None else None
