"""Differences of nearly equal numbers that rounding has left no digits, and that are used as if they had some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.device import in_fp64
from precgui.engine.dtype_names import dtype_name
from precgui.engine.samples import evenly_spaced, sampled
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import graph_task, packet_name, transform_level

_PLAIN = (Tensor, nn.Parameter)
_FORMATS = (torch.bfloat16, torch.float16, torch.float32)
_SUMS = {"aten.sub": -1.0, "aten.add": 1.0, "aten.rsub": -1.0}  # with the sign of the second operand
_DIVISIONS, _PRODUCTS = ("aten.div", "aten.div_"), ("aten.mul", "aten.mul_")
_OF_SMALL = ("aten.sqrt", "aten.sqrt_", "aten.rsqrt", "aten.rsqrt_", "aten.reciprocal", "aten.log", "aten.log_")
_KEEPING = {
    f"aten.{name}" for name in (
        "clamp", "clamp_", "clamp_min", "clamp_min_", "relu", "relu_", "abs", "neg", "view", "_unsafe_view",
        "unsqueeze", "squeeze", "expand", "clone", "_to_copy", "slice", "select", "t", "transpose", "maximum",
    )
}  # fmt: skip
_KEEPING_WITH_NUMBER = {f"aten.{name}{end}" for name in ("add", "sub", "mul", "div") for end in ("", "_")}
_ULPS = 2.0  # of the larger operand: a difference below has one digit or two
_MOSTLY, _SOME = 0.5, 0.1  # shares of the elements
_AMPLIFIED = 1e3
_SAMPLE = 4096  # elements that are compared, of each difference
_MOST_ROWS = 8
_FEWEST = 16  # elements of a difference, that a share means something
_FEWEST_OF_DIVISOR = 4  # a variance has one for each feature
_WHOLE = 2.0**24  # beyond it, FP32 holds whole numbers only, and not each of them


@dataclass(frozen=True)
class Cancelled:
    """A use of differences without digits: in `module` (None outside of the model) and in `step`.

    `use` is `divisor` (or a root or logarithm), `amplified` (divided by 1e-3 or less, or multiplied by 1000 or more),
    `rounded data` (a difference of values without a graph that a cast had rounded) or `large data` (one of FP32 values
    without a graph beyond 2^24, where FP32 holds no fractions). `share` is the share of the elements whose difference
    is at most 2 eps of the larger operand.
    """

    step: int
    module: str | None
    use: str
    format: str
    share: float
    elements: int


@dataclass(frozen=True)
class _Mark:
    share: float  # of the elements that have few digits; 0 of a cast
    elements: int
    format: str
    is_cast: bool = False  # values that a cast has rounded


class Cancellations:
    """Told of each operation of a step after it has run; reads samples, and changes nothing.

    A tensor is followed by its identity, through operations that keep its digits as they are.
    """

    def __init__(self) -> None:
        self.step = 1
        self.where: Callable[[], str | None] = lambda: None  # the module whose forward pass is running
        self.in_optimizer = False
        self._marks = TensorMarks[_Mark]()
        self._found: dict[tuple[str | None, str], Cancelled] = {}

    def begin(self, step: int) -> None:
        self.step = step
        self._marks.clear()

    @property
    def found(self) -> list[Cancelled]:
        """Each use once for each module, at its first step; at most 8."""
        return list(self._found.values())

    def observe(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if self.in_optimizer or graph_task() != -1 or not args or type(out) not in _PLAIN:
            return
        if not out.is_floating_point() or transform_level() is not None or _is_captured(out):
            return
        name = packet_name(func)
        mark = self._marks.get(args[0])
        second = self._marks.get(args[1]) if len(args) > 1 else None
        self._note_use(name, args, mark, second)
        if (result := self._difference(name, args, kwargs, out, mark, second)) is not None:
            self._marks[out] = result
        elif name == "aten._to_copy" and _is_rounding(args[0], out):
            self._marks[out] = _Mark(0.0, out.numel(), dtype_name(out.dtype), is_cast=True)
        elif (kept := mark or second) is not None and _keeps(name, args):
            self._marks[out] = kept
        else:
            self._marks.forget(out)

    def _note_use(self, name: str, args: Any, first: _Mark | None, second: _Mark | None) -> None:
        if name in _DIVISIONS and second is not None and not second.is_cast:
            self._add("divisor", second)
        if first is None or first.is_cast:
            return
        if name in _OF_SMALL:
            self._add("divisor", first)
        factor = _number(args[1]) if len(args) > 1 else None
        if (
            factor
            and first.elements >= _FEWEST
            and (
                (name in _DIVISIONS and abs(factor) <= 1 / _AMPLIFIED)
                or (name in _PRODUCTS and abs(factor) >= _AMPLIFIED)
            )
        ):
            self._add("amplified", first)

    def _add(self, use: str, mark: _Mark) -> None:
        key = self.where(), use
        if key not in self._found and len(self._found) < _MOST_ROWS:
            self._found[key] = Cancelled(self.step, key[0], use, mark.format, mark.share, mark.elements)

    def _difference(
        self, name: str, args: Any, kwargs: Any, out: Tensor, first: _Mark | None, second: _Mark | None
    ) -> _Mark | None:
        """The mark of a difference most of whose elements have one digit or two; None of another operation."""
        a, b = args[0], args[1] if len(args) > 1 else None
        if name not in _SUMS or out is a or type(a) not in _PLAIN or a.dtype not in _FORMATS or out.dtype != a.dtype:
            return None
        alike = isinstance(b, Tensor) and type(b) in _PLAIN and b.dtype == a.dtype
        if out.numel() < _FEWEST_OF_DIVISOR or not (alike or _number(b) is not None):
            return None
        share = _cancelled(a, b, float(kwargs.get("alpha", 1)), out, rsub=name == "aten.rsub")
        if share is None:
            return None
        mark = _Mark(share, out.numel(), dtype_name(out.dtype))
        is_data = not any(isinstance(each, Tensor) and each.requires_grad for each in (a, b))
        if is_data and out.numel() >= _FEWEST:
            if any(each is not None and each.is_cast for each in (first, second)):
                self._add("rounded data", mark)
            elif alike and a.dtype is torch.float32 and float(a.detach().abs().median()) > _WHOLE:
                self._add("large data", mark)
        return mark


def _keeps(name: str, args: Any) -> bool:
    """Whether the result of an operation on a marked tensor has as few digits as it."""
    return name in _KEEPING or (name in _KEEPING_WITH_NUMBER and _number(args[1]) is not None)


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
