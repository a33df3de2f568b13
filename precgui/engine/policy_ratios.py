"""Ratios of a new and an old policy that are clipped around 1 and are none: differences of logarithms, or ratios of a
policy to itself, whose gradients cancel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import OperationCall, Watcher

_CENTRE = 1e-3  # distance of the middle of the limits from 1
_CLIPPED = 0.9  # of the numbers are below: a policy that has just been asked has a ratio near 1, a difference near 0
_SAME = 1e-6  # the largest difference of the logarithms of one policy, computed twice
_KEEPING = {"sum", "mean", "clamp"}


class PolicyRatios(Watcher):
    """Told of each operation outside of the optimizer; follows differences to a clamp to 1 - c and 1 + c."""

    fact = "policy_ratios"

    def __init__(self) -> None:
        super().__init__()
        self._differences = TensorMarks[bool]()  # of numbers that learn and others that do not
        self._of_itself = TensorMarks[bool]()  # zeros, of two numbers that learn, and their exponential

    def observe(self, call: OperationCall) -> None:
        name, args, out, first = call.name, call.args, call.out, call.args[0]
        if not isinstance(first, Tensor) or not isinstance(out, Tensor):
            return
        if name in ("sub", "rsub"):
            other = call.second
            if isinstance(other, Tensor) and other.shape == first.shape:
                self._subtracted(first, other, out)
        elif self._differences.get(first):
            if name == "clamp" and (limits := _around_one(args, call.kwargs)) is not None:
                self._clipped(first, call.module, *limits)
            elif name in _KEEPING or call.keeps_numbers:
                self._differences[out] = True
        elif (is_ratio := self._of_itself.get(first)) is not None:
            if name == "clamp" and is_ratio and _around_one(args, call.kwargs) is not None:
                self._note_itself(first, call.module)
            elif name == "exp" or (name in _KEEPING and not is_ratio) or call.keeps_numbers:
                self._of_itself[out] = is_ratio or name == "exp"

    @torch.no_grad()
    def _subtracted(self, first: Tensor, other: Tensor, out: Tensor) -> None:
        if first.requires_grad != other.requires_grad:
            self._differences[out] = True
        elif first.requires_grad and out.numel() > 1 and float(out.abs().max()) <= _SAME:
            self._of_itself[out] = False

    def _note_itself(self, ratio: Tensor, module: str | None) -> None:
        key = module, "itself"
        if self._has_room(key):
            self._rows[key] = {
                "step": self._step, "count": self._steps_with(key), "of_itself": True, "numbers": ratio.numel()
            }  # fmt: skip

    @torch.no_grad()
    def _clipped(self, first: Tensor, module: str | None, low: float, high: float) -> None:
        share = float((first < low).float().mean()) if first.numel() else 0.0
        if share > _CLIPPED and self._has_room(module):
            self._rows[module] = {
                "step": self._step, "count": self._steps_with(module), "share": share, "low": low, "high": high,
                "numbers": first.numel(),
            }  # fmt: skip


def _around_one(args: Any, kwargs: Any) -> tuple[float, float] | None:
    """The limits of a clamp, where 1 is in their middle and they are between 0 and 2."""
    low, high = (args[1] if len(args) > 1 else kwargs.get("min")), (args[2] if len(args) > 2 else kwargs.get("max"))
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return None
    return (float(low), float(high)) if 0 < low < 1 and abs(low + high - 2) < 2 * _CENTRE else None
