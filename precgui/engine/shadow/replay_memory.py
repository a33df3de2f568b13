"""How many bytes the replay of a tape in FP64 takes, known before it begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from torch import Tensor

from precgui.engine.shadow.semantics import is_float
from precgui.engine.shadow.tape import Tape, TapeOp


def replay_bytes(tape: Tape, requested: Collection[int]) -> int:
    """The most bytes that `replay_exact` holds at one time beside the tape itself; an estimate from above."""
    ends = tape.last_uses(set(requested))
    memory: dict[int, int] = {}  # by value: the value that owns its memory
    users: Counter[int] = Counter()  # values in each memory
    sizes: dict[int, int] = {}
    present = peak = 0

    def enter(id: int, owner: int, size: int) -> int:
        memory[id] = owner
        users[owner] += 1
        if owner != id:
            return 0
        sizes[id] = size
        return size

    for operation in tape.operations:
        present += sum(enter(id, id, _leaf_bytes(tape, id)) for id in operation.inputs if id not in memory)
        written = 0
        for id in {id for id in operation.outputs if id is not None and id not in memory}:
            owner = memory[operation.inputs[0]] if _shows_memory(operation) else id
            written += enter(id, owner, _wide_bytes(tape, id, operation))
        present += written
        peak = max(peak, present + written)  # an operation may make a copy first
        for id in ends[operation.index]:
            if id in memory:
                users[owner := memory.pop(id)] -= 1
                present -= sizes.pop(owner) if not users[owner] else 0
    return peak


def _shows_memory(operation: TapeOp) -> bool:
    """Whether the result of an operation has the memory of its first operand."""
    return operation.is_view and bool(operation.inputs) and hasattr(operation.function, "_schema")


def _leaf_bytes(tape: Tape, id: int) -> int:
    leaf = tape.leaves.get(id)
    return 0 if leaf is None or not is_float(leaf) or _width(leaf) == leaf.element_size() else _bytes(leaf)


def _wide_bytes(tape: Tape, id: int, operation: TapeOp) -> int:
    value = tape.values.get(id)
    if value is not None:
        return _bytes(value)
    known = [tape.values.get(each, tape.leaves.get(each)) for each in operation.inputs]
    return max((_bytes(each) for each in known if each is not None), default=0)


def _bytes(value: Tensor) -> int:
    return value.numel() * (_width(value) if is_float(value) else value.element_size())


def _width(value: Tensor) -> int:
    return 16 if value.is_complex() else 8
