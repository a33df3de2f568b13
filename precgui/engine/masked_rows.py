"""Softmax over rows of scores that a mask has made -Inf throughout: such a row is NaN, and so is its gradient."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.operation_names import COPIES
from precgui.engine.shadow.origin import line_of_user
from precgui.engine.telemetry.readable import unseen
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import transform_level
from precgui.engine.watcher import OperationCall, Watcher

_PLAIN = (Tensor, nn.Parameter)
_MOST = 2**24  # elements that are looked at
_SOFTMAX = ("_softmax", "_log_softmax")  # `_safe_softmax` makes such rows 0
_MASKING = ("masked_fill", "masked_fill_", "where", "add", "add_", "index_put_", "_index_put_impl_", "baddbmm")
_SCALING = ("div", "mul", "native_dropout")
_CLEANING = ("masked_fill", "where", "nan_to_num")


class MaskedRows(Watcher):
    """Told of each operation outside of the optimizer; follows scores from a mask of -Inf to their softmax.

    Rows that are -Inf by an overflow are none of a mask, and those whose NaN is replaced right behind the softmax do
    no harm: neither is noted.
    """

    fact = "masked_rows"

    def __init__(self) -> None:
        super().__init__()
        self._masked = TensorMarks[bool]()
        self._added = TensorMarks[Tensor]()  # which elements have -Inf by a sum, where scores of NaN do not show it
        self._broken = TensorMarks[tuple[Hashable, Tensor]]()  # results, and which of their elements are of such rows
        self._harmless: set[Hashable] = set()

    def observe(self, call: OperationCall) -> None:
        name, args, out = call.name, call.args, call.out
        if isinstance(out, tuple) and out:
            out = out[0]
        if type(out) not in _PLAIN or not out.is_floating_point() or transform_level() is not None or _is_hidden(out):
            return
        with unseen():
            if name in _SOFTMAX:
                self._normalise(call, args[0], out)
            elif self._broken.get(args[0]) is not None or any(self._broken.get(each) for each in args[1:3]):
                self._follow_broken(call, out)
            elif name in _MASKING and self._is_masking(args):
                self._masked[out] = True
                self._note_sum(name, args, out)
            elif self._masked.get(args[0]) and (call.keeps_numbers or call.base in _SCALING or name in _MASKING):
                self._masked[out] = True
                added = self._added.get(args[0])
                if added is not None and out.shape == args[0].shape:
                    self._added[out] = added
            else:
                self._masked.forget(out)
                self._added.forget(out)

    def _is_masking(self, args: Any) -> bool:
        """Whether an operand without a gradient is, or holds, -Inf, and scores with one hold none by themselves."""
        fills = False
        for each in args[:3]:
            if isinstance(each, float):
                fills |= each == -math.inf
            elif type(each) in _PLAIN and each.is_floating_point() and not _is_hidden(each):
                holds = bool((each == -math.inf).any())
                if holds and each.requires_grad and not self._masked.get(each):
                    return False
                fills |= holds and not each.requires_grad
        return fills

    def _note_sum(self, name: str, args: Any, out: Tensor) -> None:
        terms = args[:1] if name == "baddbmm" else args[:2] if name.startswith("add") else ()
        mask = next((each for each in terms if isinstance(each, Tensor) and not each.requires_grad), None)
        if mask is not None:
            self._added[out] = (mask == -math.inf).expand_as(out)

    def _normalise(self, call: OperationCall, scores: Tensor, out: Tensor) -> None:
        if not self._masked.get(scores) or not scores.requires_grad or not scores.dim():
            return
        axis = call.args[1]
        added = self._added.get(scores)
        hidden = scores == -math.inf if added is None else added
        rows = hidden.all(axis, keepdim=True)
        count = int(rows.sum())
        if not count:
            return
        line = line_of_user().label
        key = (call.module, line)
        if key in self._harmless or not self._has_room(key):
            return
        self._rows.setdefault(
            key,
            {"step": self._step, "module": call.module, "line": line, "rows": count, "of": rows.numel()},
        )
        self._broken[out] = key, rows

    def _follow_broken(self, call: OperationCall, out: Tensor) -> None:
        """Whether NaN of such rows is replaced by finite numbers; through casts and dropout they stay as they are."""
        key, rows = next(known for each in call.args[:3] if (known := self._broken.get(each)) is not None)
        if call.base in _CLEANING and out.dim() == rows.dim():
            if not bool((out.isnan() & rows).any()):
                self._harmless.add(key)
                self._rows.pop(key, None)
        elif call.name in COPIES or call.name == "native_dropout":
            self._broken[out] = key, rows


def _is_hidden(tensor: Tensor) -> bool:
    """Whether its numbers cannot be read, or are too many."""
    is_captured = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
    is_odd = tensor.layout is not torch.strided or tensor.is_nested or tensor.dtype.itemsize < 2
    return tensor.is_meta or is_captured or is_odd or tensor.numel() > _MOST
