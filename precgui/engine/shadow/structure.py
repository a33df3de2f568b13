"""Questions of a tape that are not about precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from precgui.engine.shadow.nested import mapped
from precgui.engine.shadow.replay import Visit, replay_exact
from precgui.engine.shadow.semantics import aten
from precgui.engine.shadow.tape import Tape, TapeOp, ValueRef

_LOSSES = (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
_SOFTMAX = (aten._log_softmax.default, aten._softmax.default)
# From a softmax to the logarithms that a loss takes, with the same dimensions.
_BETWEEN = frozenset(
    {aten._to_copy.default, aten.clone.default, aten.alias.default, aten.detach.default, aten.log.default,
     aten.add.Tensor, aten.clamp.default, aten.clamp_min.default}
)  # fmt: skip
_MOST = 6  # operations in between
_SAME = 1e-9  # of the largest score: less is another order of a sum


def softmax_over_batch(tape: Tape) -> dict[str, Any] | None:
    """A loss of classes whose scores a softmax has normalised over the samples; None for none."""
    makers = {id: o for o in tape.operations for id in o.outputs if id is not None}
    for loss in tape.operations:
        if loss.function not in _LOSSES:
            continue
        made = _softmax_before(loss, makers)
        if made is None or _are_pairs(tape, loss):
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


def _are_pairs(tape: Tape, loss: TapeOp) -> bool:
    """Whether a loss picks each class once from a square of scores, as one that matches pairs over the batch does."""
    scores, targets = (tape.value(id) for id in loss.inputs[:2])
    if scores is None or targets is None or scores.dim() != 2 or scores.shape[0] != scores.shape[1]:
        return False
    return bool(targets.unique().numel() == scores.shape[0])


def reads_ahead(tape: Tape, visit: Visit) -> bool | None:
    """Whether the scores of positions change with the last token of a sequence that a model embeds and is to repeat.

    None where no loss has the embedded indices as its targets.
    """
    for loss in tape.operations:
        read = _embedding_of_targets(tape, loss) if loss.function in _LOSSES else None
        if read is None:
            continue
        scores = loss.inputs[0]
        before = replace(tape, operations=tape.operations[: loss.index])
        both = before, _with_another_end(before, read)
        old, new = (replay_exact(each, [scores], visit=visit)[scores] for each in both)
        sequences, positions = _value_of_indices(tape, read).shape[:2]
        if loss.function is aten.nll_loss_forward.default:
            old, new = (each.view(sequences, positions, -1).transpose(1, 2) for each in (old, new))
        gap = (old - new).flatten(2)[..., :-1].abs().amax()
        return bool(gap > _SAME * old.abs().amax())
    return None


def _embedding_of_targets(tape: Tape, loss: TapeOp) -> TapeOp | None:
    """The embedding before a loss whose indices, sequences of positions, are the targets of it."""
    targets = tape.value(loss.inputs[1])
    for operation in tape.operations[: loss.index]:
        indices = _value_of_indices(tape, operation) if operation.function is aten.embedding.default else None
        if targets is None or indices is None or indices.dim() != 2 or indices.shape[1] < 2:
            continue
        if indices.numel() == targets.numel() and torch.equal(indices.reshape(-1), targets.reshape(-1)):
            return operation
    return None


def _value_of_indices(tape: Tape, embedding: TapeOp) -> Any:
    return tape.value(embedding.inputs[1])


def _with_another_end(tape: Tape, embedding: TapeOp) -> Tape:
    """The tape with another last token of each sequence at an embedding."""
    weight, indices = embedding.inputs[:2]
    table, other = tape.leaves.get(weight, tape.values.get(weight)), -1
    changed = _value_of_indices(tape, embedding).clone()
    changed[:, -1] = (changed[:, -1] + 1) % len(table if table is not None else changed)
    operations = list(tape.operations)
    take = lambda ref: ValueRef(other) if ref == ValueRef(indices) else ref  # noqa: E731
    operations[embedding.index] = replace(
        embedding, arguments=mapped(take, embedding.arguments), inputs=(weight, other, *embedding.inputs[2:])
    )
    return replace(tape, operations=operations, leaves={**tape.leaves, other: changed})


def _softmax_before(loss: TapeOp, makers: dict[int, TapeOp]) -> TapeOp | None:
    operation: TapeOp | None = loss
    for _ in range(_MOST):
        operation = makers.get(operation.inputs[0]) if operation is not None and operation.inputs else None
        if operation is None or operation.function in _SOFTMAX:
            return operation
        if operation.function not in _BETWEEN:
            return None
    return None
