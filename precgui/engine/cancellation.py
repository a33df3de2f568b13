"""Differences of nearly equal numbers that rounding has left no digits, and that are used as if they had some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.device import in_fp64
from precgui.engine.dtype_names import dtype_name
from precgui.engine.operation_names import ARITHMETIC, LOWER_BOUNDS, SUMS
from precgui.engine.samples import evenly_spaced, sampled
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import transform_level
from precgui.engine.watcher import OperationCall, Watcher

_PLAIN = (Tensor, nn.Parameter)
_FORMATS = (torch.bfloat16, torch.float16, torch.float32)
_DIVISIONS, _PRODUCTS = ("div", "div_"), ("mul", "mul_")
_OF_SMALL = ("sqrt", "sqrt_", "rsqrt", "rsqrt_", "reciprocal", "log", "log_")
_KEEPING = {*LOWER_BOUNDS, "relu", "abs", "neg"}
_ULPS = 2.0  # of the larger operand: a difference below has one digit or two
_MOSTLY, _SOME = 0.5, 0.1  # shares of the elements
_AMPLIFIED = 1e3
_SAMPLE = 4096  # elements that are compared, of each difference
_FEWEST = 16  # elements of a difference, that a share means something
_FEWEST_OF_DIVISOR = 4  # a variance has one for each feature
_WHOLE = 2.0**24  # beyond it, FP32 holds whole numbers only, and not each of them


@dataclass(frozen=True)
class _Mark:
    share: float  # of the elements that have few digits; 0 of a cast
    elements: int
    format: str
    is_cast: bool = False  # values that a cast has rounded


class Cancellations(Watcher):
    """Told of each operation outside of the optimizer; reads samples.

    A tensor is followed by its identity, through operations that keep its digits as they are. Each use of differences
    without digits makes a row, once for each module. It is `divisor` (or a root or logarithm), `amplified` (divided by
    1e-3 or less, or multiplied by 1000 or more), `rounded data` (a difference of values without a graph that a cast had
    rounded) or `large data` (one of FP32 values without a graph beyond 2^24, where FP32 holds no fractions).
    """

    fact = "cancellation"

    def __init__(self) -> None:
        super().__init__()
        self._marks = TensorMarks[_Mark]()

    def observe(self, call: OperationCall) -> None:
        name, args, out = call.name, call.args, call.out
        if type(out) not in _PLAIN or not out.is_floating_point() or transform_level() is not None or _is_captured(out):
            return
        mark, second = self._marks.get(args[0]), self._marks.get(call.second)
        self._note_use(call, mark, second)
        if (result := self._difference(call, mark, second)) is not None:
            self._marks[out] = result
        elif name == "_to_copy" and _is_rounding(args[0], out):
            self._marks[out] = _Mark(0.0, out.numel(), dtype_name(out.dtype), is_cast=True)
        elif (kept := mark or second) is not None and _keeps(call):
            self._marks[out] = kept
        else:
            self._marks.forget(out)

    def _note_use(self, call: OperationCall, first: _Mark | None, second: _Mark | None) -> None:
        name, module = call.name, call.module
        if name in _DIVISIONS and second is not None and not second.is_cast:
            self._add("divisor", second, module)
        if first is None or first.is_cast:
            return
        if name in _OF_SMALL:
            self._add("divisor", first, module)
        factor = _number(call.second)
        if (
            factor
            and first.elements >= _FEWEST
            and (
                (name in _DIVISIONS and abs(factor) <= 1 / _AMPLIFIED)
                or (name in _PRODUCTS and abs(factor) >= _AMPLIFIED)
            )
        ):
            self._add("amplified", first, module)

    def _add(self, use: str, mark: _Mark, module: str | None) -> None:
        if self._has_room((module, use)):
            row = {"step": self._step, "module": module, "use": use, "format": mark.format, "share": mark.share,
                   "elements": mark.elements}  # fmt: skip
            self._rows.setdefault((module, use), row)

    def _difference(self, call: OperationCall, first: _Mark | None, second: _Mark | None) -> _Mark | None:
        """The mark of a difference most of whose elements have one digit or two; None of another operation."""
        name, a, b, out = call.name, call.args[0], call.second, call.out
        if name not in SUMS or out is a or type(a) not in _PLAIN or a.dtype not in _FORMATS or out.dtype != a.dtype:
            return None
        alike = isinstance(b, Tensor) and type(b) in _PLAIN and b.dtype == a.dtype
        if out.numel() < _FEWEST_OF_DIVISOR or not (alike or _number(b) is not None):
            return None
        share = _cancelled(a, b, float(call.kwargs.get("alpha", 1)), out, rsub=name == "rsub")
        if share is None:
            return None
        mark = _Mark(share, out.numel(), dtype_name(out.dtype))
        is_data = not any(isinstance(each, Tensor) and each.requires_grad for each in (a, b))
        if is_data and out.numel() >= _FEWEST:
            if any(each is not None and each.is_cast for each in (first, second)):
                self._add("rounded data", mark, call.module)
            elif alike and a.dtype is torch.float32 and float(a.detach().abs().median()) > _WHOLE:
                self._add("large data", mark, call.module)
        return mark


def _keeps(call: OperationCall) -> bool:
    """Whether the result of an operation on a marked tensor has as few digits as it."""
    name = call.base
    return call.keeps_numbers or name in _KEEPING or (name in ARITHMETIC and _number(call.second) is not None)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_captured(tensor: Tensor) -> bool:
    """Whether its numbers cannot be read: there are none, or a CUDA graph is captured."""
    return tensor.is_meta or (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _sampled(value: Any, shape: torch.Size) -> Tensor | float:
    """Elements of a tensor that is broadcast to a shape; a number as it is."""
    return sampled(value, shape, _SAMPLE) if isinstance(value, Tensor) else float(value)


def _cancelled(a: Any, b: Any, alpha: float, out: Tensor, *, rsub: bool) -> float | None:
    """The share of the elements of a sum that are at most 2 eps of the larger operand; None where that is not most of
    them, or where nearly all are exactly zero, as of a number and itself."""
    x, y, z = (_sampled(each, out.shape) for each in (a, b, out))
    x, y = (x * alpha, y) if rsub else (x, y * alpha)
    if not isinstance(z, Tensor):
        return None
    larger = torch.maximum(torch.as_tensor(x, device=z.device).abs(), torch.as_tensor(y, device=z.device).abs())
    close = (larger > 0) & larger.isfinite() & (z.abs() <= _ULPS * torch.finfo(out.dtype).eps * larger)
    shares = torch.stack((close.float().mean(), (close & (z != 0)).float().mean())).tolist()
    return float(shares[0]) if shares[0] > _MOSTLY and shares[1] > _SOME else None


def _is_rounding(source: Any, out: Tensor) -> bool:
    """Whether a cast to fewer digits changed most numbers of a tensor."""
    if type(source) not in _PLAIN or out.dtype not in _FORMATS or source.dtype == out.dtype or out.numel() < _FEWEST:
        return False
    before, after = (evenly_spaced(each.detach().reshape(-1), _SAMPLE) for each in (source, out))
    return bool(in_fp64(in_fp64(before) != in_fp64(after)).mean() > _MOSTLY)
