"""Differences of nearly equal numbers that leave little but the rounding of their operands."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from precgui.engine.shadow.tape import Tape, TapeOp

SUMS = ("sub.", "sub_.", "add.", "add_.", "rsub.")
DIFFERENCES = (*SUMS, "addcmul", "lerp")
_LEFT = 0.02  # relative error that the rounding of the operands to 16 bits alone leaves to their difference
_TIMES = 1e4  # that a difference is smaller than what it is made of: FP32 has three digits left, or fewer


@dataclass(frozen=True)
class Difference:
    """A forward operation whose operands, of magnitude `of`, are `times` as large as its result."""

    operation: TapeOp
    times: float
    of: float


def least_left(tape: Tape) -> Difference | None:
    """The difference that leaves fewest digits of its operands; None without one, and in a step with 16 bits."""
    if any(_is_low(dtype) for dtype in tape.dtypes.values()):
        return None
    return max((each for each in _differences(tape) if each.times > _TIMES), key=lambda each: each.times, default=None)


def least_left_in_16_bits(tape: Tape) -> Difference | None:
    """The difference in 16 bits or fewer with the largest relative error by the rounding of its operands; None of none
    with 2 %."""
    found = []
    for each in _differences(tape):
        dtype = tape.dtypes[each.operation.outputs[0] or 0]
        if _is_low(dtype) and (left := each.times * torch.finfo(dtype).eps) > _LEFT:
            found.append((left, each.operation.index, each))
    return max(found, default=(0.0, 0, None))[2]


def _is_low(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize <= 2


def _differences(tape: Tape) -> list[Difference]:
    """The forward operations of DIFFERENCES with a line of the loop."""
    sizes, found = tape.magnitudes, []
    for operation in tape.operations:
        id = operation.outputs[0] if operation.outputs else None
        if id is None or operation.origin.backward or not operation.name.startswith(DIFFERENCES):
            continue
        size, largest = sizes.get(id, 0.0), max((sizes.get(each, 0.0) for each in operation.inputs), default=0.0)
        if size and largest > size and operation.origin.line.number:
            found.append(Difference(operation, largest / size, largest))
    return found


__all__ = ["DIFFERENCES", "SUMS", "Difference", "least_left", "least_left_in_16_bits"]
