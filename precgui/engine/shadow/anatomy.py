"""The operations of a recorded step with formats, range and local error; its casts, and who asked for them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from precgui.engine.dtype_names import dtype_name
from precgui.engine.shadow.attribution import is_cast
from precgui.engine.shadow.record import RecordedStep
from precgui.engine.shadow.semantics import is_float
from precgui.engine.shadow.tape import Tape, TapeOp
from precgui.sentences import L_

_ASKED_BY_HAND = frozenset({"to", "float", "half", "bfloat16", "double", "type", "type_as"})
_MOST_OPERATIONS = 20_000


def anatomy(step: RecordedStep, scale: float) -> dict[str, Any]:
    """The keys of `precgui replay --anatomy --json`, built-in types only.

    Operations that only return views are left out. `scale` is the loss scale of the step.
    """
    tape = step.tape
    computed = [o for o in tape.operations if not o.is_view and _result(tape, o) is not None]
    return {
        "operations": [_row(tape, operation) for operation in computed[:_MOST_OPERATIONS]],
        "left_out": max(0, len(computed) - _MOST_OPERATIONS),
        "casts": _casts(tape),
        "moments": _moments(step, scale),
    }


def _result(tape: Tape, operation: TapeOp) -> int | None:
    """The first floating-point value that an operation made."""
    ids = (id for id in operation.outputs if id is not None)
    return next((id for id in ids if tape.dtypes[id].is_floating_point), None)


def _row(tape: Tape, operation: TapeOp) -> dict[str, Any]:
    id = _result(tape, operation)
    assert id is not None
    inputs = [i for i in operation.inputs if tape.dtypes[i].is_floating_point]
    return {
        "operation": operation.name, "module": operation.origin.module, "line": operation.origin.line.label,
        "backward": operation.origin.backward, "format": dtype_name(tape.dtypes[id]),
        "inputs": sorted({dtype_name(dtype) for dtype in operation.input_dtypes if dtype.is_floating_point}),
        "bytes": _bytes(tape, id), "largest": _finite(tape.magnitudes.get(id)),
        "largest_input": _finite(max((tape.magnitudes.get(i, 0.0) for i in inputs), default=None)),
        "finite": operation.nonfinite != "producer" and "n" not in tape.kinds.get(id, ""),
        "local_error": _finite(operation.local_error), "rounding_error": _finite(operation.rounding_error),
        "asked_by": _asked_by(tape, operation),
    }  # fmt: skip


def _casts(tape: Tape) -> list[dict[str, Any]]:
    """Casts by who asked, formats and kind of source, the largest sum of bytes first.

    `reused`: how often the forward pass took the result of an autocast cast again, from its cache.
    """
    sources = dict(_views(tape))
    readers = Counter(
        sources.get(id, id) for o in tape.operations if not o.is_view and not o.origin.backward for id in o.inputs
    )
    counts: dict[tuple[str, str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for operation in tape.operations:
        asked = _asked_by(tape, operation)
        id = _result(tape, operation)
        if not asked or id is None:
            continue
        source = operation.inputs[0]
        kept = L_("weights and inputs") if sources.get(source, source) in tape.leaves else L_("values of the step")
        sums = counts[asked, dtype_name(operation.input_dtypes[0]), dtype_name(tape.dtypes[id]), kept]
        sums[0] += 1
        sums[1] += _bytes(tape, id)
        sums[2] += max(0, readers[id] - 1) if asked.startswith("autocast") else 0
    rows = [
        {"asked_by": asked, "source": source, "target": target, "of": kept, "count": count, "bytes": size,
         "reused": reused}
        for (asked, source, target, kept), (count, size, reused) in counts.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -row["bytes"])


def _views(tape: Tape) -> Iterator[tuple[int, int]]:
    """Each value that is a view, with the value whose memory it shows."""
    known: dict[int, int] = {}
    for operation in tape.operations:
        if operation.is_view and operation.inputs and operation.outputs and operation.outputs[0] is not None:
            known[operation.outputs[0]] = known.get(operation.inputs[0], operation.inputs[0])
    yield from known.items()


def _asked_by(tape: Tape, operation: TapeOp) -> str:
    """Who asked for a cast between formats; empty for other operations."""
    id = _result(tape, operation)
    source = operation.input_dtypes[0] if operation.input_dtypes else None
    if not is_cast(operation) or id is None or source is None or source == tape.dtypes[id]:
        return ""
    cause = operation.origin.cause
    if operation.origin.backward:
        return "autograd"
    if not source.is_floating_point:
        return "integers"
    return f"user: .{cause}" if cause in _ASKED_BY_HAND else f"autocast: {cause}" if cause else "other"


def _moments(step: RecordedStep, scale: float) -> dict[str, Any]:
    """Numbers at the moments of a step in mixed precision; None where they are not finite. `given`: before the step."""
    tape = step.tape
    forward = [o for o in tape.operations if not o.origin.backward and not o.is_view]
    backward = [o for o in tape.operations if o.origin.backward and not o.is_view]
    gradient = max((_largest(g) for g in step.low_gradients), default=0.0)
    given = [_largest(t) for t in tape.leaves.values() if is_float(t)]
    return {
        "scale": scale, "given_largest": _finite(max(given, default=None)),
        "casts": sum(bool(_asked_by(tape, o)) for o in forward), "forward_operations": len(forward),
        "forward_largest": _finite(_most(tape, forward)), "loss": _finite(step.low_loss),
        "scaled_loss": _finite(step.low_loss * scale), "backward_operations": len(backward),
        "backward_largest": _finite(_most(tape, backward)), "gradient_largest": _finite(gradient),
        "unscaled_largest": _finite(gradient / scale), "gradients_are_finite": step.is_finite,
    }  # fmt: skip


def _most(tape: Tape, operations: list[TapeOp]) -> float | None:
    """The largest finite magnitude: the -Inf of a mask is none."""
    ids = (_result(tape, operation) for operation in operations)
    values = [tape.magnitudes.get(id, 0.0) for id in ids if id is not None]
    return max((value for value in values if math.isfinite(value)), default=None)


def _largest(tensor: Tensor) -> float:
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0


def _bytes(tape: Tape, id: int) -> int:
    value = tape.values.get(id)
    return 0 if value is None else value.numel() * value.dtype.itemsize


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
