"""Learned numbers that go into an exponential as they are: log-variances, logarithms of scales, scores."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.dtype_names import dtype_name
from precgui.engine.operation_names import PRODUCTS
from precgui.engine.shadow.origin import line_of_user
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.watcher import Facts, OperationCall, Watcher

_MOST = 4  # sources
Part = tuple[int, int, int]  # of an output: a dimension, counted from the last one (-1), where it begins, its length


@dataclass(frozen=True)
class ExponentSource:
    """The output of a module, or a parameter, of which exp(factor * x + offset) was computed."""

    module: str
    parameter: str
    factor: float
    offset: float
    part: Part | None  # None: all of it
    format: str  # of the exponential
    line: str

    def row(self, numbers: Tensor) -> dict[str, Any]:
        """The range of what goes into the exponential, by that of the output or parameter."""
        ends = [self.factor * each + self.offset for each in numbers.tolist()]
        return {"module": self.module, "parameter": self.parameter, "line": self.line, "format": self.format,
                "low": min(ends), "high": max(ends)}  # fmt: skip


@dataclass(frozen=True)
class _Origin:
    module: str
    parameter: str
    base: weakref.ref[Tensor] | None  # the output, until only a part of it is left
    part: Part | None = None
    factor: float = 1.0
    offset: float = 0.0


class ExponentSources(Watcher):
    """Told of each operation outside of the optimizer; reads, and changes nothing.

    Outputs are followed through views, casts, factors and terms, and not through anything else, as a bound.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = weakref.ref(model)
        self._origins = TensorMarks[_Origin]()
        self.found: set[ExponentSource] = set()

    def facts(self) -> Facts:
        """None: `SourceRanges` has them."""
        return {}

    def observe(self, call: OperationCall) -> None:
        name, out, first = call.name, call.out, call.args[0]
        if not isinstance(first, Tensor) or not torch.is_grad_enabled():
            return
        if name in PRODUCTS:
            if call.module and isinstance(out, Tensor):
                self._origins[out] = _Origin(call.module, "", weakref.ref(out))
        elif call.base == "exp":
            if (origin := self._origin(first)) is not None and first.requires_grad:
                self._note(origin, dtype_name(out.dtype))
        elif call.keeps_numbers:
            if (origin := self._origin(first)) is not None:
                for each in as_list(out):
                    self._view(origin, each)
        elif (scaled := _scaled(name, call.args)) is not None and isinstance(out, Tensor):
            operand, factor, offset = scaled
            if (origin := self._origin(operand)) is not None:
                self._origins[out] = replace(
                    origin, factor=factor * origin.factor, offset=factor * origin.offset + offset
                )

    def _origin(self, value: Any) -> _Origin | None:
        if isinstance(value, nn.Parameter) and value.requires_grad:
            model = self._model()
            named = model.named_parameters() if model is not None else ()
            name = next((name for name, own in named if own is value), "")
            return _Origin("", name, None) if name else None
        return self._origins.get(value)

    def _view(self, origin: _Origin, out: Any) -> None:
        if not isinstance(out, Tensor):
            return
        base = origin.base() if origin.base is not None else None
        if base is None or out.numel() >= base.numel():
            self._origins[out] = origin if base is None or out.numel() > base.numel() else replace(
                origin, base=weakref.ref(out)
            )  # fmt: skip
        elif (part := part_of(base, out)) is not None:
            self._origins[out] = replace(origin, base=None, part=part)

    def _note(self, origin: _Origin, low: str) -> None:
        known = [each for each in self.found if _is_of(each, origin)]
        if not known and len(self.found) < _MOST:
            self.found.add(
                ExponentSource(
                    origin.module,
                    origin.parameter,
                    origin.factor,
                    origin.offset,
                    origin.part,
                    low,
                    line_of_user().label,
                )
            )


def _is_of(source: ExponentSource, origin: _Origin) -> bool:
    own = source.module, source.parameter, source.part, source.factor, source.offset
    return own == (origin.module, origin.parameter, origin.part, origin.factor, origin.offset)


def _scaled(name: str, args: Any) -> tuple[Any, float, float] | None:
    """The operand, factor and term of an operation with a number; None of others."""
    if name == "neg":
        return args[0], -1.0, 0.0
    number = args[1] if len(args) > 1 and isinstance(args[1], int | float) else None
    if number is None:
        return None
    terms = {"mul": (number, 0.0), "div": (1 / number if number else 0.0, 0.0), "add": (1.0, number),
             "sub": (1.0, -number), "rsub": (-1.0, number)}  # fmt: skip
    return (args[0], *terms[name]) if name in terms and len(args) == 2 else None  # alpha is a third one


def part_of(base: Tensor, view: Tensor) -> Part | None:
    """The range of one dimension of a tensor that a view shows; None of other views."""
    start = view.storage_offset() - base.storage_offset()
    for dim in range(1, base.dim()):
        stride, size = base.stride(dim), base.shape[dim]
        others = [place for place in range(base.dim()) if place != dim]
        if view.dim() == base.dim() and view.stride() == base.stride():
            is_part = all(view.shape[place] == base.shape[place] for place in others)
            length = int(view.shape[dim])
        else:
            is_part = view.shape == torch.Size([base.shape[place] for place in others])
            is_part &= view.stride() == tuple(base.stride(place) for place in others)
            length = 1
        if is_part and stride and start % stride == 0 and 0 <= start // stride <= size - length:
            return dim - base.dim(), int(start // stride), length
    return None
