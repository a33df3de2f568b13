"""In which way the operations that a shadow names lose digits, in words that a rule can act on."""

from __future__ import annotations

from typing import Any

from precgui.engine.dtype_names import dtype_name
from precgui.engine.shadow.attribution import is_cast
from precgui.engine.shadow.differences import DIFFERENCES, least_left, least_left_in_16_bits
from precgui.engine.shadow.nonfinite import NonFiniteOrigin
from precgui.engine.shadow.step import Shadow
from precgui.engine.shadow.tape import Tape, TapeOp

_MOST = 3
_CANCELLED = 8.0  # times a difference is smaller than what it is made of: three bits are gone
_SUMS = (
    "sum", "mean", "cumsum", "cumprod", "prod", "add", "sub", "index_add", "scatter_add", "logsumexp", "var", "std",
)  # fmt: skip
_SENSITIVE = ("log", "div", "sqrt", "rsqrt", "reciprocal", "acos", "asin", "atanh", "pow", "exp", "_softmax", "tan")
_MOSTLY = 0.5  # of an operation's share


def named_operations(shadow: Shadow) -> list[dict[str, Any]]:
    """The operation with the largest own share in each line that a shadow names, worst line first."""
    tape, shares = shadow.step.tape, shadow.shares.by_operation
    rows = []
    for label in shadow.blamed[:_MOST]:
        own = [o for o in tape.operations if o.origin.line.label == label and shares.get(o.index)]
        if own:
            worst = max(own, key=lambda o: abs(shares[o.index] - shadow.unavoidable.get(o.index, 0.0)))
            rows.append(_row(tape, worst) | {"kind": _kind(shadow, worst), "share": shares[worst.index]})
    return rows


def cancelled(tape: Tape) -> dict[str, Any] | None:
    """The forward difference that leaves fewest digits of its operands; None of none."""
    found, kind_of = least_left(tape), "cancellation in fp32"
    if found is None:
        found, kind_of = least_left_in_16_bits(tape), "cancellation"
    if found is None:
        return None
    kind = {"kind": kind_of, "times": found.times, "of": found.of}
    return _row(tape, found.operation) | kind


def origin_of(origin: NonFiniteOrigin) -> dict[str, Any]:
    """The operation that made NaN or Inf, and the one to change."""
    return {
        "made_by": origin.operation.name.partition(".")[0], "line": origin.operation.origin.line.label,
        "culprit": origin.culprit.name.partition(".")[0], "culprit_line": origin.culprit.origin.line.label,
        "blame": origin.precision_is_to_blame,
    }  # fmt: skip


def _row(tape: Tape, operation: TapeOp) -> dict[str, Any]:
    id = operation.outputs[0] if operation.outputs else None
    return {
        "line": operation.origin.line.label, "module": operation.origin.module,
        "operation": operation.name.partition(".")[0].removesuffix("_"), "backward": operation.origin.backward,
        "format": dtype_name(tape.dtypes[id]) if id is not None else "",
    }  # fmt: skip


def _kind(shadow: Shadow, operation: TapeOp) -> str:
    """`underflow`, `overflow`, `cancellation`, `cast`, `sum`, `sensitive` or `rounding`."""
    shares, index = shadow.shares, operation.index
    own = abs(shares.by_operation.get(index, 0.0)) or 1.0
    if abs(shares.flush.get(index, 0.0)) > _MOSTLY * own:
        return "underflow"
    if abs(shares.saturated.get(index, 0.0)) > _MOSTLY * own:
        return "overflow"
    sizes = shadow.step.tape.magnitudes
    result = sizes.get(operation.outputs[0] or 0, 0.0) if operation.outputs else 0.0
    largest = max((sizes.get(id, 0.0) for id in operation.inputs), default=0.0)
    if operation.name.startswith(DIFFERENCES) and result and largest > _CANCELLED * result:
        return "cancellation"
    if is_cast(operation):
        return "cast"
    name = operation.name.partition(".")[0]
    if name.startswith(_SUMS):
        return "sum"
    return "sensitive" if name.startswith(_SENSITIVE) else "rounding"
