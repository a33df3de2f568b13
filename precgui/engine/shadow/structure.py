"""Questions of a tape that are not about precision."""

from __future__ import annotations

from typing import Any

from precgui.engine.shadow.semantics import aten
from precgui.engine.shadow.tape import Tape, TapeOp

_LOSSES = (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
_SOFTMAX = (aten._log_softmax.default, aten._softmax.default)
# From a softmax to the logarithms that a loss takes, with the same dimensions.
_BETWEEN = frozenset(
    {aten._to_copy.default, aten.clone.default, aten.alias.default, aten.detach.default, aten.log.default,
     aten.add.Tensor, aten.clamp.default, aten.clamp_min.default}
)  # fmt: skip
_MOST = 6  # operations in between


def softmax_over_batch(tape: Tape) -> dict[str, Any] | None:
    """A loss of classes whose scores a softmax has normalised over the samples; None for none."""
    makers = {id: o for o in tape.operations for id in o.outputs if id is not None}
    for loss in tape.operations:
        if loss.function not in _LOSSES:
            continue
        made = _softmax_before(loss, makers)
        if made is None:
            continue
        scores = tape.values.get(made.inputs[0], tape.leaves.get(made.inputs[0]))
        if scores is None or scores.dim() < 2 or scores.shape[0] < 2:
            continue
        dim = int(made.arguments[1]) % scores.dim()
        if dim == 0:
            return {
                "operation": made.name.partition(".")[0].strip("_"), "line": made.origin.line.label,
                "module": made.origin.module, "samples": scores.shape[0], "classes": scores.shape[1],
            }  # fmt: skip
    return None


def _softmax_before(loss: TapeOp, makers: dict[int, TapeOp]) -> TapeOp | None:
    operation: TapeOp | None = loss
    for _ in range(_MOST):
        operation = makers.get(operation.inputs[0]) if operation is not None and operation.inputs else None
        if operation is None or operation.function in _SOFTMAX:
            return operation
        if operation.function not in _BETWEEN:
            return None
    return None
