"""Questions of a tape that are not about precision."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from precgui.engine.shadow.nested import mapped
from precgui.engine.shadow.replay import F64, Visit, leaf_of, plainly, replay_exact, wide_outputs
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
_FEWEST = 32  # positions whose targets are the next tokens
_FEWEST_FEATURES = 8  # of a position; one vector for a sequence has that many layers and directions at most
_STRIDE = 7919  # a prime: other tokens in each sequence


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


class _Reader(NamedTuple):
    """An embedding whose next indices are the targets of a loss, and these, both [sequences, positions].

    Of each whether the loop has it the other way round.
    """

    embedding: TapeOp
    indices: Tensor
    targets: Tensor
    turns_indices: bool
    turns_targets: bool


def next_token_seen(tape: Tape, visit: Visit) -> dict[str, Any] | None:
    """The loss of predicting a token from those before it, and the same where the token itself was another one.

    Of one position in every other sequence; `others` is how far the same position of the rest moves, as by statistics
    of the batch. None where no loss has the next embedded indices as its targets. Numbers that do not belong to
    positions stay as they were: an encoder that hands on one vector for a sequence is meant to read all of it. Of
    several embeddings of the same tokens, as of encoder and decoder, the one counts that changes least.
    """
    for loss in tape.operations:
        readers = _readers(tape, loss) if loss.function in _LOSSES else []
        if readers:
            before = replace(tape, operations=tape.operations[: loss.index])
            return min(
                (_seen(before, loss, each, visit) for each in readers), key=lambda row: row["hidden"] - row["loss"]
            )
    return None


def _readers(tape: Tape, loss: TapeOp) -> list[_Reader]:
    targets, ignored = tape.value(loss.inputs[1]), loss.arguments[4]
    found = []
    if targets is None:
        return []
    for operation in tape.operations[: loss.index]:
        indices = _value_of_indices(tape, operation) if operation.function is aten.embedding.default else None
        if indices is None or indices.dim() != 2 or min(indices.shape) < 2:
            continue
        for turns, turns_targets in product((False, True), repeat=2):
            own = indices.t() if turns else indices
            aligned = _aligned(own, targets, turns=turns_targets)
            if aligned is not None and _are_next(own, aligned, ignored):
                found.append(_Reader(operation, own, aligned, turns, turns_targets))
                break
    return found


def _aligned(indices: Tensor, targets: Tensor, *, turns: bool) -> Tensor | None:
    """The targets as [sequences, positions], as many positions as tokens or one less."""
    sequences, length = indices.shape
    for positions in (length, length - 1):
        if targets.numel() == sequences * positions:
            flat = targets.reshape(-1)
            return flat.view(positions, sequences).t() if turns else flat.view(sequences, positions)
    return None


def _are_next(indices: Tensor, targets: Tensor, ignored: int) -> bool:
    """Whether targets are the next indices, and not the indices themselves."""
    following = indices[:, 1:]
    given = targets[:, : following.shape[1]]
    counted = given != ignored
    if int(counted.sum()) < _FEWEST or not bool((given == following)[counted].all()):
        return False
    return bool((given != indices[:, : given.shape[1]])[counted].any())


def _seen(tape: Tape, loss: TapeOp, reader: _Reader, visit: Visit) -> dict[str, Any]:
    own, targets = reader.indices, reader.targets
    at = targets.shape[1] // 2
    changed = own.clone()
    weight = reader.embedding.inputs[0]
    table = tape.leaves.get(weight, tape.values.get(weight))
    count = len(table) if table is not None else int(own.max()) + 1
    rows = torch.arange(0, len(own), 2, device=own.device)
    changed[rows, at + 1] = (own[rows, at + 1] + 1 + rows * _STRIDE % max(count - 1, 1)) % count
    other = changed.t().contiguous() if reader.turns_indices else changed
    lengths = {own.shape[1], targets.shape[1]}
    old, new = _both(_with_indices(tape, reader.embedding, other), tape, loss.inputs[0], len(own), lengths, visit)
    answers = targets[:, at].clamp(min=0)
    losses = [-_at(each, reader, at).gather(1, answers[:, None])[:, 0] for each in (old, new)]
    moved = (losses[1] - losses[0]).abs()
    is_odd = torch.arange(len(own), device=own.device) % 2 == 1
    return {
        "loss": float(losses[0][rows].mean()), "hidden": float(losses[1][rows].mean()),
        "others": float(moved[is_odd].mean()), "position": at, "sequences": len(rows),
    }  # fmt: skip


def _at(scores: Tensor, reader: _Reader, at: int) -> Tensor:
    """The logarithms of the classes at a position, [sequences, classes]."""
    sequences, positions = reader.targets.shape
    rows = scores.movedim(1, -1).flatten(0, -2)  # as the targets in a row
    if reader.turns_targets:
        return rows.view(positions, sequences, -1)[at]
    return rows.view(sequences, positions, -1)[:, at]


def _both(
    changed: Tape, tape: Tape, wanted: int, sequences: int, lengths: set[int], visit: Visit
) -> tuple[Tensor, Tensor]:
    """A value of a tape and of the same one with other indices. Only values of positions may differ."""
    old: dict[int, Tensor] = {}
    new: dict[int, Tensor] = {}
    ends = tape.last_uses({wanted})
    with torch.no_grad(), plainly():
        for operation, other in zip(tape.operations, changed.operations, strict=True):
            for id in (*operation.inputs, *other.inputs):
                if id not in old and id in changed.leaves:
                    old[id] = leaf_of(changed.leaves[id], F64, False)
            outputs = wide_outputs(tape, operation, old, F64, free=False, graph=False)
            visit(operation, outputs)
            differs = operation is not other or any(id in new for id in operation.inputs)
            others = wide_outputs(changed, other, {**old, **new}, F64, free=False, graph=False) if differs else outputs
            for made, output, another in zip(operation.outputs, outputs, others, strict=True):
                if made is not None:
                    old[made] = output
                    if differs and isinstance(another, Tensor) and _has_positions(another, sequences, lengths):
                        new[made] = another
            for id in ends[operation.index]:
                old.pop(id, None)
                new.pop(id, None)
    return old[wanted], new.get(wanted, old[wanted])


def _has_positions(tensor: Tensor, sequences: int, lengths: set[int]) -> bool:
    """Whether a tensor has numbers for each position of each sequence, or for more positions, as padding adds them."""
    shape, longest = tensor.shape, max(lengths)
    return (
        any(size in lengths and tensor.numel() >= sequences * size for size in shape)
        or any(size % (sequences * length) == 0 for size in shape for length in lengths)
        or any(
            longest < size <= 2 * longest and tensor.numel() >= _FEWEST_FEATURES * sequences * size for size in shape
        )
    )


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
    weight = embedding.inputs[0]
    table = tape.leaves.get(weight, tape.values.get(weight))
    changed = _value_of_indices(tape, embedding).clone()
    changed[:, -1] = (changed[:, -1] + 1) % len(table if table is not None else changed)
    return _with_indices(tape, embedding, changed)


def _with_indices(tape: Tape, embedding: TapeOp, changed: Tensor) -> Tape:
    """The tape with other indices at an embedding."""
    (weight, indices), other = embedding.inputs[:2], -1
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
