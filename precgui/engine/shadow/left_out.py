"""The operation, such as `torch.where`, that leaves NaN out of a result while its derivative takes part."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from precgui.engine.shadow.tape import Tape, TapeOp


def left_out_by(tape: Tape, producer: TapeOp) -> str:
    """The name of the operation that keeps what `producer` made out of the loss; '' where there is none.

    Of a producer in the forward pass the first one that reads its NaN or Inf and returns none; of one in the backward
    pass `where`, in whose derivative the gradient became 0 that made NaN.
    """
    if producer.origin.backward:
        return "where" if _comes_from_where(tape, producer) else ""
    bad = _bad(tape, producer)
    for operation in tape.operations[producer.index + 1 :]:
        if operation.origin.backward:
            break
        if bad.isdisjoint(operation.inputs):
            continue
        worse = _bad(tape, operation)
        bad |= worse
        floats = [id for id in operation.outputs if id is not None and _is_float(tape, id)]
        if floats and not worse and not operation.is_view:
            return operation.name.partition(".")[0]
    return ""


def _bad(tape: Tape, operation: TapeOp) -> set[int]:
    return {id for id in operation.outputs if id is not None and tape.kinds.get(id)}


def _is_float(tape: Tape, id: int) -> bool:
    dtype = tape.dtypes.get(id)
    return dtype is not None and dtype.is_floating_point


def _comes_from_where(tape: Tape, producer: TapeOp) -> bool:
    """Whether the elements that became NaN are zeros that the derivative of a `where` has put there."""
    out = next((tape.value(id) for id in producer.outputs if id is not None), None)
    if out is None:
        return False
    nan = out.isnan()
    return bool(nan.any()) and any(
        zeros.shape == nan.shape and bool((zeros[nan] == 0).all()) for zeros in _gradients_of_where(tape, producer)
    )


def _gradients_of_where(tape: Tape, operation: TapeOp) -> Iterator[Tensor]:
    """The results of `where` in the backward pass from which, element by element, an operand was computed."""
    made = {id: each for each in tape.operations[: operation.index] for id in each.outputs if id is not None}
    left, seen = list(operation.inputs), set[int]()
    while left:
        id = left.pop()
        source = made.get(id)
        if id in seen or source is None or not source.origin.backward:
            continue
        seen.add(id)
        if source.name.partition(".")[0] == "where":
            value = tape.value(id)
            if value is not None:
                yield value
        elif source.is_view or torch.Tag.pointwise in getattr(source.function, "tags", ()):
            left.extend(source.inputs)
