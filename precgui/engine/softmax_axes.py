"""Attention whose softmax runs over another axis than the sum that it weighs: its weights do not add up to 1."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from precgui.engine.operation_names import ARITHMETIC, SAME_NUMBERS, SOFTMAXES, base_of
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import OperationCall, Watcher, is_weight

_KEEPING = {*ARITHMETIC, *SAME_NUMBERS, "masked_fill", "native_dropout"}  # the axes of their first operand


class SoftmaxAxes(Watcher):
    """Told of each operation inside the model; follows products of two tensors that learn to a softmax, and on to the
    product that it weighs."""

    fact = "softmax_axes"

    def __init__(self) -> None:
        super().__init__()
        self._scores = TensorMarks[bool]()  # products of queries and keys
        self._weights = TensorMarks[tuple[int, str | None]]()  # the axis of the softmax, from the end, and its module

    def observe(self, call: OperationCall) -> None:
        name, args, out, module, first = call.name, call.args, call.out, call.module, call.args[0]
        if isinstance(out, tuple) and out:
            out = out[0]
        if not isinstance(out, Tensor) or not isinstance(first, Tensor):
            return
        if name == "where" and isinstance(args[1], Tensor):
            name, first = "masked_fill", args[1]
        if name in ("bmm", "baddbmm"):
            left, right = args[-2:]
            self._multiplied(left, right, out, module)
        elif name in SOFTMAXES and self._scores.get(first):
            self._weights[out] = args[1] - first.dim() if args[1] >= 0 else args[1], module
        elif base_of(name) in _KEEPING and out.shape == first.shape:
            is_sum = isinstance(call.second, Tensor) and call.second.shape != first.shape  # which normalises anew
            self._follow(first, out, None if is_sum and self._weights.get(first) else 0)
        elif name in ("transpose", "t") and first.dim() > 1:
            swapped = {each % first.dim() for each in args[1:3]} if name == "transpose" else {0, 1}
            self._follow(first, out, 1 if swapped == {first.dim() - 1, first.dim() - 2} else None)
        elif name == "permute":
            last = [each % first.dim() for each in args[1]][-2:]
            ends = [first.dim() - 2, first.dim() - 1]
            self._follow(first, out, 0 if last == ends else 1 if last == ends[::-1] else None)
        elif call.keeps_numbers:
            self._follow(first, out, 0 if out.shape[-2:] == first.shape[-2:] else None)

    def _follow(self, before: Tensor, after: Tensor, swap: int | None) -> None:
        """Marks of a tensor go over to another one; `swap`: 1 where its last two axes have changed places."""
        if swap is None:
            return
        if self._scores.get(before):
            self._scores[after] = True
        if (mark := self._weights.get(before)) is not None:
            self._weights[after] = (-3 - mark[0] if swap and mark[0] in (-1, -2) else mark[0]), mark[1]

    def _multiplied(self, first: Tensor, second: Any, out: Tensor, module: str | None) -> None:
        for operand, summed in ((first, -1), (second, -2)):
            mark = self._weights.get(operand)
            if mark is not None and mark[0] in (-1, -2) and mark[0] != summed and operand.shape[summed] > 1:
                self._note(operand, mark, summed, module)
        if all(each.requires_grad and not is_weight(each) for each in (first, second)):
            self._scores[out] = True

    def _note(self, operand: Tensor, mark: tuple[int, str | None], summed: int, module: str | None) -> None:
        where = mark[1] or module or ""
        total = operand.detach().float().sum(summed)
        row = {
            "module": where, "step": self._step, "normalised": operand.shape[mark[0]], "summed": operand.shape[summed],
            "least": float(total.min()), "largest": float(total.max()),
        }  # fmt: skip
        if self._has_room(where):
            self._rows[where] = row | {"count": 1 + int(self._rows.get(where, {}).get("count", 0))}
