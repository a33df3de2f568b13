"""Outputs of modules whose functions reach, in 16 bits, a point where a logarithm, root or angle has no derivative."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from precgui.engine.dtype_names import SHORT_DTYPES, dtype_name
from precgui.engine.exponent_sources import Part, part_of
from precgui.engine.operation_names import PRODUCTS, keeps_numbers
from precgui.engine.shadow.origin import line_of_user
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import Facts, OperationCall, Watcher

_POINTS = {  # where the derivative is infinite, or the function is
    "log": (0.0,), "log2": (0.0,), "log10": (0.0,), "log1p": (-1.0,), "sqrt": (0.0,), "rsqrt": (0.0,),
    "reciprocal": (0.0,), "acos": (-1.0, 1.0), "asin": (-1.0, 1.0), "atanh": (-1.0, 1.0), "acosh": (1.0,),
}  # fmt: skip
_MOST, _LONGEST = 4, 12  # sources; operations between an output and such a function
_PLAIN = (Tensor, nn.Parameter)


class _Link(NamedTuple):
    """A function of one tensor and of numbers, or a cast to `dtype`."""

    func: Any
    before: tuple[Any, ...]  # the arguments in front of the tensor
    after: tuple[Any, ...]
    kwargs: dict[str, Any]
    dtype: torch.dtype | None

    def of(self, value: Tensor, *, wide: bool) -> Tensor:
        if self.dtype is not None:
            return value.to(torch.float32 if wide and self.dtype in SHORT_DTYPES else self.dtype)
        result: Tensor = self.func(*self.before, value, *self.after, **self.kwargs)
        return result


@dataclass(frozen=True, eq=False)
class SingularSource:
    """The output of a module, the functions that are taken of it, and the one that has such points."""

    module: str
    part: Part | None  # None: all of it
    links: tuple[_Link, ...]
    operation: str
    format: str  # of 16 bits, the last one that was computed in
    line: str
    parameter: str = ""

    def row(self, numbers: Tensor) -> dict[str, Any] | None:
        """The one of some numbers of the output, in main memory, that reaches such a point by rounding; None if none
        does.

        `operand` is what it reaches, and `wide` what the same functions of the same number give in FP32.
        """
        low, wide = numbers, numbers.float()
        for link in self.links:
            low, wide = link.of(low, wide=False), link.of(wide, wide=True)
        for value, operand, other in zip(numbers.tolist(), low.tolist(), wide.tolist(), strict=True):
            if operand in _POINTS[self.operation] and other != operand and math.isfinite(other):
                return {"module": self.module, "line": self.line, "operation": self.operation, "format": self.format,
                        "output": value, "operand": operand, "wide": other}  # fmt: skip
        return None


@dataclass(frozen=True)
class _Chain:
    module: str
    base: weakref.ref[Tensor] | None  # the output, until anything but a view of it was taken
    part: Part | None = None
    links: tuple[_Link, ...] = ()
    short: torch.dtype | None = None  # of 16 bits, the last one that it was computed in


class SingularSources(Watcher):
    """Told of each operation outside of the optimizer; reads, and changes nothing.

    Followed are functions of one tensor and of numbers, elementwise, as long as they have all elements of the output.
    """

    def __init__(self) -> None:
        super().__init__()
        self._chains = TensorMarks[_Chain]()
        self.found: list[SingularSource] = []

    def facts(self) -> Facts:
        """None: `SourceRanges` has them."""
        return {}

    def observe(self, call: OperationCall) -> None:
        name, out = call.name, call.out
        if type(out) not in _PLAIN or not out.is_floating_point() or not torch.is_grad_enabled():
            return
        if name in PRODUCTS:
            if call.module:
                self._chains[out] = _Chain(call.module, weakref.ref(out), short=_short(out, None))
            return
        places = [place for place, each in enumerate(call.args) if isinstance(each, Tensor)]
        known = self._chains.get(call.args[places[0]]) if len(places) == 1 else None
        if known is None:
            return
        operand = call.args[places[0]]
        if keeps_numbers(call.func, name):
            self._same_numbers(known, operand, out)
        elif call.is_elementwise and not call.func._schema.is_mutable and not _holds_tensors(call):
            if name in _POINTS and operand.requires_grad and known.short is not None:
                self._note(known, name, dtype_name(known.short))
            link = _Link(call.func, call.args[: places[0]], call.args[places[0] + 1 :], call.kwargs, None)
            self._follow(known, link, out)

    def _same_numbers(self, known: _Chain, operand: Tensor, out: Tensor) -> None:
        if out.dtype is not operand.dtype:
            self._follow(known, _Link(None, (), (), {}, out.dtype), out)
        elif out.numel() == operand.numel():
            base = known.base() if known.base is not None else None
            self._chains[out] = replace(known, base=weakref.ref(out)) if base is operand else known
        elif known.base is not None and known.part is None:
            base = known.base()
            part = part_of(base, out) if base is not None else None
            if part is not None:
                self._chains[out] = replace(known, base=None, part=part)

    def _follow(self, known: _Chain, link: _Link, out: Tensor) -> None:
        if len(known.links) < _LONGEST:
            self._chains[out] = replace(known, base=None, links=(*known.links, link), short=_short(out, known.short))

    def _note(self, known: _Chain, operation: str, low: str) -> None:
        line = line_of_user().label
        here = known.module, known.part, operation, line
        known_ones = [(each.module, each.part, each.operation, each.line) for each in self.found]
        if here not in known_ones and len(self.found) < _MOST:
            self.found.append(SingularSource(known.module, known.part, known.links, operation, low, line))


def _short(tensor: Tensor, known: torch.dtype | None) -> torch.dtype | None:
    return tensor.dtype if tensor.dtype in SHORT_DTYPES else known


def _holds_tensors(call: OperationCall) -> bool:
    return any(isinstance(each, Tensor) for each in call.kwargs.values())
