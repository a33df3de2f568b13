"""Decays of a recurrence that rounding to 16 bits makes 1: what they are to forget is kept for ever."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from precgui.engine.dtype_names import SHORT_DTYPES, dtype_name
from precgui.engine.telemetry.readable import address_of, readable
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import tree_map
from precgui.engine.watcher import OperationCall, Watcher

_ROUNDING = {"_to_copy", "exp", "exp2", "sigmoid", "rsub", "sub", "pow", "neg"}  # what a factor near 1 is made by
_MOST = 65536  # factors
_FEWEST = 4
_MOSTLY = 0.5  # of the factors


@dataclass(frozen=True)
class _Decay:
    """Factors of which most were below 1 and are 1: the format, the share of these, and the median of what is gone."""

    format: str
    share: float
    gap: float
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _State:
    """A tensor that the same factors have multiplied so many times in this step; `is_old`: it was there before."""

    decay: _Decay
    times: int
    is_old: bool


class UnitDecays(Watcher):
    """Told of each operation outside of the optimizer.

    Only factors that are fewer than the numbers that they multiply count: one for each channel, or one for all. Gates
    are as many, and learn to be 1.
    """

    fact = "lost_values"

    def __init__(self, created_memory: set[int]) -> None:
        """`created_memory` are the addresses of what operations of this step have made."""
        super().__init__()
        self._created = created_memory
        self._decays = TensorMarks[_Decay]()
        self._states = TensorMarks[_State]()

    @torch.no_grad()
    def observe(self, call: OperationCall) -> None:
        name, args, out = call.base, call.args, call.out
        if not isinstance(out, Tensor) or not out.is_floating_point():
            return
        if out.dtype in SHORT_DTYPES and name in _ROUNDING and (made := _unit_factors(call)) is not None:
            self._decays[out] = made
        elif not self._decays:
            return
        elif call.keeps_numbers:
            self._hand_on(args[0], out)
        elif name == "mul" and len(args) > 1:
            self._multiplied(args[0], args[1], out, call.module)
        elif name == "addcmul":
            self._multiplied(args[1], args[2], out, call.module)
        elif name in ("add", "sub"):
            known = [mark for each in args[:2] if (mark := self._states.get(each)) is not None]
            if known:
                self._states[out] = known[0]

    def _hand_on(self, first: Any, out: Tensor) -> None:
        if (decay := self._decays.get(first)) is not None:
            self._decays[out] = decay
        if (state := self._states.get(first)) is not None:
            self._states[out] = state

    def _multiplied(self, one: Any, other: Any, out: Tensor, module: str | None) -> None:
        for factor, own in ((one, other), (other, one)):
            decay = self._decays.get(factor)
            if decay is None or not isinstance(own, Tensor) or factor.numel() >= out.numel():
                continue
            known = self._states.get(own)
            if known is not None and known.decay == decay:
                state = replace(known, times=known.times + 1)
            else:
                state = _State(decay, 1, address_of(own) not in self._created)
            self._states[out] = state
            self._note(state, module)
            return

    def _note(self, state: _State, module: str | None) -> None:
        decay, key = state.decay, (state.decay.format, state.decay.shape, module)
        known = self._rows.get(key)
        if not self._has_room(key) or (
            known is not None and known["step"] == self._step and known["times"] >= state.times
        ):
            return
        self._rows[key] = {
            "operation": "unit_decay", "format": decay.format, "share": decay.share, "largest": 1.0, "module": module,
            "step": self._step, "count": self._steps_with(key), "gap": decay.gap, "times": state.times,
            "is_old": state.is_old,
        }  # fmt: skip


def _unit_factors(call: OperationCall) -> _Decay | None:
    """The factors that rounding made 1, where these are most of a result."""
    out: Tensor = call.out
    if not _FEWEST <= out.numel() <= _MOST or readable(out) is not out:
        return None
    ones = out == 1
    if not float(ones.sum()) > _MOSTLY * out.numel():
        return None
    is_cast = call.name == "_to_copy"
    wide = call.args[0].detach() if is_cast else call.func(*tree_map(_own, call.args), **call.kwargs)
    if not isinstance(wide, Tensor) or wide.dtype not in (torch.float32, torch.float64) or wide.shape != out.shape:
        return None
    lost = ones & (wide < 1)
    share = float(lost.sum()) / out.numel()
    if not share > _MOSTLY:
        return None
    return _Decay(dtype_name(out.dtype), share, float((1 - wide[lost].double()).median()), tuple(out.shape))


def _own(value: Any) -> Any:
    return value.detach().float() if isinstance(value, Tensor) and value.dtype in SHORT_DTYPES else value
