"""Second moments of an optimizer that somebody else rounded to zero between two steps, as a checkpoint in FP16 does."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from precgui.engine.samples import evenly_spaced, readable_sample
from precgui.engine.telemetry.parameters import parameters_of
from precgui.engine.telemetry.readable import unseen
from precgui.record.later_numbers import LaterNumbers

_FORMATS = {"fp16": torch.float16, "e5m2": torch.float8_e5m2, "e4m3fn": torch.float8_e4m3fn}
_MOST_TENSORS, _SAMPLE, _FEWEST = 8, 512, 16  # elements of each tensor
_MOST_ROWS, _MOST_COMPARED = 12, 256
_LOST = 0.02  # of the elements
_USUAL_EPSILON = 1e-8

_Mark = tuple[int, int]  # address of a tensor's memory, and how often it was written
_COLUMNS = len(_FORMATS) + 3  # of `_counted`


@dataclass
class _Watched:
    """One optimizer: parameters whose state is looked at, and what was noted of it after its last step."""

    chosen: list[weakref.ref[Tensor]]
    marks: list[_Mark]


class EmptiedMoments:
    """Counts second moments that are zero beside a first moment that is not, when an optimizer begins a step with state
    that it has not left so itself. The numbers come with the others of the step.

    An optimizer writes both from the same gradient, so neither is zero without the other, in FP32.
    """

    def __init__(self, later: LaterNumbers) -> None:
        self._later, self._left = later, _MOST_COMPARED
        self._watched: weakref.WeakKeyDictionary[Optimizer, _Watched] = weakref.WeakKeyDictionary()
        self._rows: list[dict[str, Any]] = []

    def stepping(self, step: int, optimizer: Optimizer) -> None:
        """An optimizer is about to make a step."""
        if self._left <= 0 or len(self._rows) >= _MOST_ROWS:
            return
        watched = self._watched.get(optimizer)
        if watched is None:
            watched = self._watched[optimizer] = _Watched(chosen_parameters(optimizer), [])
        if not watched.chosen or watched.marks == _marks(optimizer, watched.chosen):
            return
        self._left -= 1
        with unseen():
            numbers = [each for own in watched.chosen for each in _counted(optimizer, own())]
        if numbers:
            self._later.ask(numbers, partial(self._judge, step))

    def stepped(self, optimizer: Optimizer) -> None:
        """It has made its step."""
        watched = self._watched.get(optimizer)
        if watched is not None and watched.chosen and self._left > 0:
            watched.marks = _marks(optimizer, watched.chosen)

    def facts(self) -> list[dict[str, Any]]:
        """A row for each step that found second moments emptied, see `emptied_moments` in docs/run-file.md."""
        return self._rows

    def _judge(self, step: int, values: list[float]) -> None:
        """`values` are the numbers of `_counted` of some parameters."""
        rows = [values[place : place + _COLUMNS] for place in range(0, len(values), _COLUMNS)]
        lost, seen, largest = (list(column) for column in zip(*(row[len(_FORMATS) :] for row in rows), strict=True))
        held = [row for row in rows if row[len(_FORMATS)] > 0]
        if not held or sum(lost) < _FEWEST or sum(lost) < _LOST * sum(seen) or len(self._rows) >= _MOST_ROWS:
            return
        name = next((each for place, each in enumerate(_FORMATS) if all(row[place] > 0 for row in held)), None)
        if name is not None:
            sizes = {"lost": sum(lost), "of": sum(seen), "largest": max(largest)}
            self._rows.append({"step": step, "format": name, "parameters": len(held)} | sizes)


def _counted(optimizer: Optimizer, parameter: Tensor | None) -> list[Tensor]:
    """_COLUMNS numbers on the device of a sample of the state of one parameter; [] where it has no two moments.

    1 for each of _FORMATS whose numbers all second moments are, and where nothing else is left the first ones, else 0;
    the elements that have a first moment above the epsilon and no second one, those with that first moment, and the
    largest first moment of the former.
    """
    state = optimizer.state.get(parameter, {}) if parameter is not None else {}
    first, second = (_sample(state.get(name)) for name in ("exp_avg", "exp_avg_sq"))
    if first is None or second is None or first.shape != second.shape:
        return []
    alive = first.abs() > _epsilon(optimizer, parameter)
    empty = alive & (second == 0)
    nothing = (second == 0).all()
    held = [((second.to(each).float() == second).all() & (~nothing | (first.to(each).float() == first).all()))
            for each in _FORMATS.values()]  # fmt: skip
    return [*(each.float() for each in held), empty.sum(), alive.sum(), torch.where(empty, first.abs(), 0).max()]


def _epsilon(optimizer: Optimizer, parameter: Tensor | None) -> float:
    own = next((group for group in optimizer.param_groups if any(each is parameter for each in group["params"])), {})
    eps = own.get("eps", _USUAL_EPSILON)
    return float(eps) if isinstance(eps, int | float) else _USUAL_EPSILON


def _sample(state: Any) -> Tensor | None:
    """At most _SAMPLE elements of a tensor in FP32."""
    is_fp32 = isinstance(state, Tensor) and state.dtype == torch.float32
    return readable_sample(state, _SAMPLE, _FEWEST) if is_fp32 else None


def chosen_parameters(optimizer: Optimizer) -> list[weakref.ref[Tensor]]:
    """Parameters spread over all that have enough elements."""
    own = [each for each in parameters_of(optimizer) if each.numel() >= _FEWEST]
    return [weakref.ref(each) for each in evenly_spaced(own, _MOST_TENSORS)]


def _marks(optimizer: Optimizer, chosen: list[weakref.ref[Tensor]]) -> list[_Mark]:
    """Where the second moments of some parameters are, and how often they were written; [] where there are none."""
    states = [optimizer.state.get(own) for reference in chosen if (own := reference()) is not None]
    moments = [each.get("exp_avg_sq") for each in states if isinstance(each, dict)]
    return [(each.data_ptr(), each._version) for each in moments if isinstance(each, Tensor)]
