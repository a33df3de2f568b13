"""The operation of a forward pass that made the NaN or Inf of its outputs, with its line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from precgui.engine.dtype_names import FLOAT8_DTYPES, dtype_name
from precgui.engine.operation_names import base_of
from precgui.engine.overflowing_casts import OverflowingCasts
from precgui.engine.shadow.origin import line_of_user
from precgui.engine.telemetry.readable import floats, readable
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import TorchDispatchMode, as_list, operation_name, transform_level
from precgui.engine.vanished_epsilons import VanishedEpsilons
from precgui.engine.watcher import is_weight

_MOST = 2**24  # elements of a tensor that is looked at
_UNWRITTEN = ("empty", "new_empty", "resize_")  # whose results hold whatever was in their memory
_QUOTIENTS = ("div", "true_divide", "remainder", "fmod", "reciprocal")
_OF_MASKS = ("masked_fill", "full", "fill", "where", "scalar_tensor", "scatter", "index_fill", "index_put", "copy")
Kind = Literal["nan", "inf", "-inf"]


@dataclass(frozen=True)
class BrokenOperation:
    """An operation that made NaN, or Inf out of finite numbers.

    `kind`: of its result, `-inf` where that has Inf of this sign alone; `format`: of its result; `line`: of the user's
    that ran; `low` and `high`: least and largest of the finite numbers that it was given, of a quotient those of the
    divisor, None where they are not known; `epsilon`: that of its operand, which is 0 in FP16; `source`: the operation
    that made the Inf of which it made NaN, None without one. The operation is '' where the number was there before the
    pass, and where a mask has put it, which has a line. `given`: `weights` where they were not finite before the pass.
    """

    operation: str
    kind: Kind
    format: str = ""
    line: str = ""
    low: float | None = None
    high: float | None = None
    epsilon: float | None = None
    source: BrokenOperation | None = None
    given: Literal["weights", ""] = ""

    @property
    def culprit(self) -> Literal["operation", "source", ""]:
        """Which of both made NaN or Inf of finite numbers; '' where these were there before the pass."""
        if self.source is not None and self.source.operation:
            return "source"
        is_made = bool(self.operation) and (self.source is None or bool(self.source.line))
        return "operation" if is_made else ""


class PassWatch(TorchDispatchMode):
    """Inside, NaN and Inf are followed from the operations that made them, and nothing is changed.

    `cast`: the first cast to FP8 that overflowed, see `OverflowingCasts`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._casts, self._epsilons = OverflowingCasts(), VanishedEpsilons()
        self._marks = TensorMarks[BrokenOperation]()
        self.cast: dict[str, Any] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if transform_level() is None:
            try:
                self._observe(func, operation_name(func), args, out)
            except Exception:  # noqa: BLE001 - whatever a tensor of somebody's class raises
                return out
        return out

    def made(self, outputs: Any) -> dict[str, Any] | None:
        """The operation that made what is not finite in the outputs of the pass, NaN before Inf, or that the weights
        were so before it; None where it is not known."""
        marks = [mark for _, tensor in floats(outputs) if (mark := self._marks.get(tensor)) is not None]
        for kind in ("nan", "inf"):
            if mark := next((mark for mark in marks if mark.kind == kind and (mark.operation or mark.given)), None):
                given = mark.given or (mark.source.given if mark.source is not None else "")
                return {**asdict(mark), "given": given, "culprit": mark.culprit}
        return None

    def _observe(self, func: Any, name: str, args: Any, out: Any) -> None:
        if self.cast is None:
            self.cast = self._casts.observe(name, args, out)
        epsilon = self._epsilons.observe(func, base_of(name), args, out)
        for tensor in as_list(out):
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel() <= _MOST:
                kind = _kind(tensor)
                if kind is None or name.startswith(_UNWRITTEN):
                    self._marks.forget(tensor)
                else:
                    self._marks[tensor] = self._made(func, name, args, tensor, kind, epsilon)

    def _made(self, func: Any, name: str, args: Any, out: Tensor, kind: Kind, epsilon: float | None) -> BrokenOperation:
        given = [mark for each in _tensors(args) if (mark := self._mark(each, out)) is not None]
        nan = next((mark for mark in given if mark.kind == "nan"), None)
        if nan is not None:
            return nan
        infinite = next((mark for mark in given if mark.kind == "inf"), next(iter(given), None))
        if kind != "nan" and infinite is not None:
            return infinite
        low, high = (None, None) if func._schema.is_mutable else _reach(name, args)
        line = line_of_user().label
        if base_of(name) in _OF_MASKS:
            return BrokenOperation("", kind, line=line)
        return BrokenOperation(base_of(name), kind, dtype_name(out.dtype), line, low, high, epsilon, infinite)

    def _mark(self, tensor: Tensor, out: Tensor) -> BrokenOperation | None:
        """That of an operand; one without may have been not finite before the pass, if it was not written just now."""
        known = self._marks.get(tensor)
        if known is not None or tensor is out or not tensor.is_floating_point() or tensor.numel() > _MOST:
            return known
        kind = _kind(tensor)
        return None if kind is None else BrokenOperation("", kind, given="weights" if is_weight(tensor) else "")


def _kind(tensor: Tensor) -> Kind | None:
    """The worst of the numbers that are not finite; None where all are finite, or they cannot be read."""
    values = _values(tensor)
    if values is None or bool(values.isfinite().all()):
        return None
    if bool(values.isnan().any()):
        return "nan"
    return "inf" if bool(values.isposinf().any()) else "-inf"


def _values(tensor: Tensor) -> Tensor | None:
    values = readable(tensor)
    return values.float() if values is not None and values.dtype in FLOAT8_DTYPES else values


def _tensors(args: Any) -> Iterator[Tensor]:
    return (each for arg in args for each in as_list(arg) if isinstance(each, Tensor))


def _reach(name: str, args: Any) -> tuple[float | None, float | None]:
    """Least and largest finite number of the operands, of a quotient of the divisor."""
    operands = [each for each in _tensors(args) if each.is_floating_point()]
    if base_of(name) in _QUOTIENTS and len(args) > 1 and isinstance(args[1], Tensor):
        operands = [args[1]]
    finite = [values[values.isfinite()] for each in operands if (values := _values(each)) is not None]
    finite = [each for each in finite if each.numel()]
    if not finite:
        return None, None
    return min(float(each.min()) for each in finite), max(float(each.max()) for each in finite)
