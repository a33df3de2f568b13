"""Differences of nearly equal numbers in steps without 16 bits, where the noise of FP32 is all that is left."""

from __future__ import annotations

from dataclasses import dataclass

from precgui.engine.shadow.tape import Tape, TapeOp

SUMS = ("sub.", "sub_.", "add.", "add_.", "rsub.")
DIFFERENCES = (*SUMS, "addcmul", "lerp")
_TIMES = 1e4  # that a difference is smaller than what it is made of: FP32 has three digits left, or fewer


@dataclass(frozen=True)
class Difference:
    """A forward operation whose operands, of magnitude `of`, are `times` as large as its result."""

    operation: TapeOp
    times: float
    of: float


def least_left(tape: Tape) -> Difference | None:
    """The difference that leaves fewest digits of its operands; None without one, and in a step with 16 bits."""
    if any(dtype.is_floating_point and dtype.itemsize <= 2 for dtype in tape.dtypes.values()):
        return None
    sizes, found = tape.magnitudes, []
    for operation in tape.operations:
        id = operation.outputs[0] if operation.outputs else None
        if id is None or operation.origin.backward or not operation.name.startswith(DIFFERENCES):
            continue
        size, largest = sizes.get(id, 0.0), max((sizes.get(each, 0.0) for each in operation.inputs), default=0.0)
        if size and largest > _TIMES * size and operation.origin.line.number:
            found.append(Difference(operation, largest / size, largest))
    return max(found, key=lambda each: each.times, default=None)


__all__ = ["DIFFERENCES", "SUMS", "Difference", "least_left"]
