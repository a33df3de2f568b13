"""Measures of an operation as it ran: its decision, whether it made NaN or Inf, and the error of its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from precgui.engine.shadow.attention import FUSED
from precgui.engine.shadow.decisions import INTEGERS, decide
from precgui.engine.shadow.local_error import local_errors
from precgui.engine.shadow.nested import leaves_of
from precgui.engine.shadow.semantics import UNWRITTEN, aten, is_float, real_view
from precgui.engine.shadow.tape import Tape, TapeOp
from precgui.sentences import L_, Sentence

# The result has the elements of the first argument, perhaps several times, and no others.
_SAME_ELEMENTS = frozenset(
    {aten.view.default, aten._unsafe_view.default, aten.t.default, aten.transpose.int, aten.permute.default,
     aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten.detach.default, aten.alias.default,
     aten.clone.default}
)  # fmt: skip


class OperationMeasures:
    """Fills in the measures of the operations of a tape, and the ranges of its values."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._elements_of: dict[int, int] = {}  # by value: an earlier one with the same elements

    def same_elements(self, operation: TapeOp) -> None:
        """Note that the result has the elements of the first argument, where that is so."""
        output = operation.outputs[0] if operation.outputs else None
        if operation.function in _SAME_ELEMENTS and output is not None:
            self._elements_of[output] = self._elements_of.get(operation.inputs[0], operation.inputs[0])

    def measure(self, id: int, tensor: Tensor) -> None:
        """Note once for each value its largest magnitude and which kinds of non-finite numbers it holds."""
        if id in self.tape.kinds or not is_float(tensor):
            return
        source = self._elements_of.get(id, id)
        if source not in self.tape.kinds:
            self.tape.kinds[source], self.tape.magnitudes[source] = _range_of(tensor.detach())
        self.tape.kinds[id], self.tape.magnitudes[id] = self.tape.kinds[source], self.tape.magnitudes[source]

    def fill_in(self, operation: TapeOp, before: tuple[Any, Any], outputs: Sequence[Any]) -> None:
        """Fill in the decision of an operation, whether it made NaN or Inf, and its local error."""
        if operation.function is aten.view.dtype:
            operation.opaque = L_("memory is read as another dtype")
        if operation.is_view:
            return
        args, kwargs = before
        if operation.is_random:
            if operation.decision is None:
                operation.decision = [o.detach().clone() if isinstance(o, Tensor) else o for o in outputs]
            return
        if operation.held is None:
            self.decide(operation, args, kwargs, outputs)
        if operation.function in INTEGERS and operation.decision is not None and not operation.origin.backward:
            self.tape.note(
                Sentence(
                    "{operation} at {line} takes a decision: both sides keep its integers, so its own "
                    "distance from the number before it is not in these figures",
                    operation=operation.name.partition(".")[0],
                    line=operation.origin.line.label,
                )
            )
        if operation.function in UNWRITTEN or not any(is_float(o) for o in outputs):
            return
        for id, output in zip(operation.outputs, outputs, strict=True):
            if id is not None:
                self.measure(id, output)
        self._flag(operation, args, kwargs)
        if operation.held is None:
            local_errors(operation, args, kwargs, outputs)

    @staticmethod
    def decide(operation: TapeOp, args: Any, kwargs: Any, outputs: Sequence[Any]) -> None:
        """Fill in the decision: of a kink, else the integers and booleans of the result."""
        operation.decision = decide(operation.function, args, kwargs, outputs)
        if operation.decision is None and any(isinstance(o, Tensor) and not is_float(o) for o in outputs):
            operation.decision = [None if not isinstance(o, Tensor) or is_float(o) else o.detach() for o in outputs]

    def _flag(self, operation: TapeOp, args: Any, kwargs: Any) -> None:
        """Whether NaN or Inf was made here: Inf out of finite numbers, NaN out of anything that was no NaN."""
        kinds = self.tape.kinds
        results = (
            operation.outputs[:1] if operation.function in FUSED else operation.outputs
        )  # behind it Inf is padding
        after = set("".join(kinds.get(id, "") for id in results if id is not None))
        if not after:
            return
        before = set("".join(kinds.get(id, "") for id in operation.inputs))
        scalars = [v for v in leaves_of((args, kwargs)) if isinstance(v, float)]
        if any(not math.isfinite(v) for v in scalars):
            operation.nonfinite = "meant"  # e.g. masked_fill(-inf)
        else:
            operation.nonfinite = "producer" if "n" not in before and after - before else "carrier"


def _range_of(tensor: Tensor) -> tuple[str, float]:
    """Which kinds of non-finite numbers a tensor holds, and its largest magnitude."""
    if not tensor.numel():
        return "", 0.0
    real = real_view(tensor)
    low, high = torch.aminmax(real if real.dtype.itemsize > 1 else real.float())
    least, most = float(low), float(high)
    largest = max(abs(least), abs(most))
    if math.isnan(least) or math.isnan(most):
        return "n", largest
    return ("+" if most == math.inf else "") + ("-" if least == -math.inf else ""), largest
