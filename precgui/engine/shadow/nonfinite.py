"""Where NaN and Inf were made, and whether precision is to blame for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from precgui.engine.shadow.blockwise import WideReplay
from precgui.engine.shadow.record import RecordedStep
from precgui.engine.shadow.replay import F64
from precgui.engine.shadow.semantics import is_float, widened
from precgui.engine.shadow.tape import Tape, TapeOp


@dataclass(frozen=True)
class NonFiniteOrigin:
    """The operation that made the first NaN or Inf which reached the loss or a gradient.

    `precision_is_to_blame`: FP64 would have stayed finite. `culprit` is the operation to change: the same one when it
    overflowed its format, an earlier one when something was lost upstream.
    """

    operation: TapeOp
    culprit: TapeOp
    precision_is_to_blame: bool


def producers(tape: Tape) -> list[TapeOp]:
    """The operations that made NaN or Inf out of numbers that had none of the kind."""
    return [operation for operation in tape.operations if operation.nonfinite == "producer"]


def first_origin(step: RecordedStep, count: int = 0) -> NonFiniteOrigin | None:
    """Where the NaN or Inf of the loss or of a gradient comes from; None when none is found on the tape.

    `count` is the number of blocks that the step is taken apart into, 0 for none.
    """
    tape = step.tape
    ends = {id for id, g in zip(step.gradients, step.low_gradients, strict=True) if not bool(g.isfinite().all())}
    if not math.isfinite(step.low_loss):
        ends.add(step.loss)
    for operation in producers(tape):
        if ends & _tainted(tape, operation):
            return _judge(step, operation, count)
    return None


def _tainted(tape: Tape, producer: TapeOp) -> set[int]:
    """The values that hold NaN or Inf because of an operation."""
    bad = {id for id in producer.outputs if id is not None}
    for operation in tape.operations[producer.index + 1 :]:
        if bad.isdisjoint(operation.inputs):
            continue
        bad.update(id for id in operation.outputs if id is not None and (operation.is_view or tape.kinds.get(id)))
    return bad


def _judge(step: RecordedStep, producer: TapeOp, count: int) -> NonFiniteOrigin:
    if producer.exact_is_finite:
        return NonFiniteOrigin(producer, producer, True)
    stream = _Stream(step.tape, producer, count)
    if producer.index in stream.nonfinite:
        return NonFiniteOrigin(producer, producer, False)
    return NonFiniteOrigin(producer, stream.culprit(), True)


class _Stream:
    """The FP64 stream beside the low one: where it is not finite, and the values that a producer read."""

    def __init__(self, tape: Tape, producer: TapeOp, count: int) -> None:
        self._tape, self._producer, self._count = tape, producer, count
        self.nonfinite: set[int] = set()
        self._inputs = WideReplay(tape, count).exact(producer.inputs, visit=self._visit)

    def _visit(self, operation: TapeOp, outputs: list[object]) -> None:
        if any(is_float(exact) and not bool(exact.isfinite().all()) for exact in outputs):  # type: ignore[attr-defined]
            self.nonfinite.add(operation.index)

    def culprit(self) -> TapeOp:
        """The operation with the largest share in the input element that is farthest from FP64."""
        worst = self._worst_element()
        if worst is None:
            return self._producer
        id, error = worst
        before = replace(self._tape, operations=self._tape.operations[: self._producer.index])
        shares = WideReplay(before, self._count).balance([id]).shares({id: error}).by_operation
        lined = {i: share for i, share in shares.items() if self._tape.operations[i].origin.line.number}
        return self._tape.operations[max(lined, key=lambda i: lined[i])] if lined else self._producer

    def _worst_element(self) -> tuple[int, Tensor] | None:
        """The input and its error, but for the worst element 0; where the producer's result is bad, if shapes agree."""
        bad = [self._tape.values[id] for id in self._producer.outputs if id is not None]
        results: tuple[float, int, Tensor] | None = None
        for id in self._producer.inputs:
            low, exact = self._tape.value(id), self._inputs[id]
            if low is None or not is_float(exact):
                continue
            gap = widened(low, F64) - exact
            relative = (gap / exact).abs().nan_to_num(0.0, 0.0)
            if bad and bad[0].shape == relative.shape:
                relative = relative.where(~bad[0].isfinite(), 0.0)
            largest = float(relative.max()) if relative.numel() else 0.0
            if largest > 0 and (results is None or largest > results[0]):
                place = int(relative.argmax())
                error = torch.zeros_like(gap)
                error.view(-1)[place] = gap.reshape(-1)[place]
                results = largest, id, error
        return None if results is None else results[1:]
