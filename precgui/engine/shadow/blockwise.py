"""Replay and blame of a step whose graph does not fit in memory: one block of the tape at a time.

What a block makes inside is computed again when it is needed; only values that other blocks read are kept. The blame
goes over each pass twice: first over the backward pass alone, from its end to its begin, for the adjoints of the
gradients that blocks hand to one another; then over one block after the other, the last one first, forward and backward
part together. Each adds what its graph gives to the adjoints of values that were made before. The shares are those of
the whole graph, since a derivative of a program does not depend on how often its values are computed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from precgui.engine.device import free_bytes
from precgui.engine.shadow.attention import score_bytes
from precgui.engine.shadow.attribution import AdjointReplay, ShareCollector
from precgui.engine.shadow.blocks import ProducerBlock, TapeBlock, blocks_of, producers_of
from precgui.engine.shadow.replay import F64, Table, Visit, leaf_of, plainly, replay_exact, wide_outputs
from precgui.engine.shadow.semantics import is_float, widened
from precgui.engine.shadow.tape import Tape
from precgui.sentences import L_, filled

# The graph of a whole step in FP64, with its adjoints, over the FP64 values of all operations; in FP32 0.5 to 0.9 was
# measured on GPTs (`benchmarks/shadow.py --memory`).
_GRAPH = 1.25
_SENTENCE = L_(
    "the graph of the whole step would take about {needed:.2g} GiB and {free:.2g} GiB are free, so the shares were "
    "computed in {count} blocks, one after the other; they are the same"
)
_MOST_OF_FREE = 0.8
_SHARE_OF_FREE = 0.25  # that the graph of one block may take
_FEWEST, _MOST = 4, 64  # blocks


@dataclass(frozen=True)
class GraphMemory:
    """The size of the graph of a whole step, and the memory that is free for it, in bytes."""

    needed: float
    free: int

    @property
    def blocks(self) -> int:
        """How many blocks the step has to be taken apart into; 0: the whole graph fits."""
        if self.needed <= _MOST_OF_FREE * self.free:
            return 0
        return min(_MOST, max(_FEWEST, math.ceil(self.needed / (_SHARE_OF_FREE * self.free))))


def graph_memory(tape: Tape) -> GraphMemory:
    """The memory of the graph of a step on the device on which most of its values lie."""
    return GraphMemory(_GRAPH * created_bytes(tape), _free_bytes(tape))


def created_bytes(tape: Tape) -> int:
    """The size of the FP64 values that all operations make, and of the scores inside of fused attention."""
    created = {id for o in tape.operations if not o.is_view for id in o.outputs if id is not None and id in tape.values}
    values = sum(8 * tape.values[id].numel() for id in created if tape.values[id].is_floating_point())
    return values + score_bytes(tape)


def _free_bytes(tape: Tape) -> int:
    """The free memory of the device on which most of the step's values lie."""
    devices = Counter(value.device for value in tape.values.values())
    device = devices.most_common(1)[0][0] if devices else torch.device("cpu")
    return free_bytes(device)


class WideReplay:
    """The FP64 replay of a tape and its balance: of the whole at once, or in about `count` blocks."""

    def __init__(self, tape: Tape, count: int = 0) -> None:
        self._tape = tape
        self._blocks = Blocks(tape, count) if count else None
        self._kept: Table = {}

    @classmethod
    def fitting(cls, tape: Tape) -> WideReplay:
        """A replay that fits in memory; a note of the tape says where it takes blocks."""
        memory = graph_memory(tape)
        result = cls(tape, memory.blocks)
        if result.blocks:
            sizes = {"needed": memory.needed / 2**30, "free": memory.free / 2**30}
            tape.note(filled(_SENTENCE, count=result.blocks, **sizes))
        return result

    @property
    def blocks(self) -> int:
        """The number of blocks; 0 where the whole graph is made at once."""
        return 0 if self._blocks is None else self._blocks.count

    def exact(self, requested: Collection[int], *, free: bool = False, visit: Visit | None = None) -> Table:
        """As `replay_exact`."""
        if self._blocks is None:
            return replay_exact(self._tape, requested, free=free, visit=visit)
        table = self._blocks.exact(requested, free=free, visit=visit)
        if not free:
            self._kept = table
        return table

    def balance(self, requested: Sequence[int], wide: torch.dtype = F64) -> ShareCollector:
        """The balance of the errors of values; FP32 or FP64."""
        if self._blocks is None:
            return AdjointReplay(self._tape, requested, wide)
        return BlockBalance(self._blocks, self._kept or self.exact(requested), wide)

    def forget(self) -> None:
        """Free the values between blocks."""
        self._kept = {}


class Blocks:
    """A tape in blocks. `crossing` are the values that another block reads than the one that makes them."""

    def __init__(self, tape: Tape, count: int) -> None:
        self.tape = tape
        self.groups: list[list[TapeBlock]] = blocks_of(tape, count)
        self.makers: dict[int, ProducerBlock] = producers_of(self.groups, tape)
        self.crossing: set[int] = set()
        for block in itertools.chain.from_iterable(self.groups):
            self.crossing |= {id for id in self.read(block) if id in self.makers}

    def read(self, block: TapeBlock) -> set[int]:
        """The values that a block reads and does not make."""
        inputs = {id for part in (block.forward, block.backward) for i in part for id in self.tape.operations[i].inputs}
        return {id for id in inputs if id not in self.makers or self.makers[id].block is not block}

    @property
    def count(self) -> int:
        return sum(len(group) for group in self.groups)

    def exact(self, requested: Collection[int], *, free: bool = False, visit: Visit | None = None) -> Table:
        """As `replay_exact`; beside the values `requested` those of `crossing` are in the table, too."""
        kept: Table = {}
        stored = self.crossing | set(requested)
        with torch.no_grad(), plainly():
            for group in self.groups:
                for block in group[:-1]:
                    self._run(block.forward, {}, kept, stored, F64, free=free, visit=visit)
                for block in reversed(group):
                    table: Table = {}
                    first = visit if block is group[-1] else None  # the others were visited above
                    self._run(block.forward, table, kept, stored, F64, free=free, visit=first)
                    self._run(block.backward, table, kept, stored, F64, free=free, visit=visit)
        for id in requested:
            if id not in kept:
                kept[id] = leaf_of(self.tape.leaves[id], F64, False)
        return kept

    def _run(
        self, part: range, table: Table, kept: Table, stored: Collection[int], wide: torch.dtype, *, free: bool = False,
        visit: Visit | None = None,
    ) -> None:  # fmt: skip
        """Run operations on `table`, which then holds what they made, and put those of `stored` into `kept`."""
        for index in part:
            operation = self.tape.operations[index]
            for id in operation.inputs:
                if id not in table:
                    table[id] = widened(kept[id], wide) if id in kept else leaf_of(self.tape.leaves[id], wide, False)
            outputs = wide_outputs(self.tape, operation, table, wide, free=free, graph=False)
            created = [(id, output) for id, output in zip(operation.outputs, outputs, strict=True) if id is not None]
            table.update(created)
            kept.update((id, output) for id, output in created if id in stored and id not in kept)
            if visit is not None:
                visit(operation, outputs)


class BlockBalance(ShareCollector):
    """As `AdjointReplay`, with the graph of one block at a time; `kept` are the FP64 values of `Blocks.exact`."""

    def __init__(self, blocks: Blocks, kept: Table, wide: torch.dtype = F64) -> None:
        super().__init__(blocks.tape, wide)
        self._blocks, self._kept = blocks, kept
        self._adjoints: dict[int, Tensor] = {}

    def _differentiate(self, directions: Mapping[int, Tensor], again: bool) -> None:
        self._adjoints = dict(directions)
        with plainly():
            for group in reversed(self._blocks.groups):
                for block in group[:-1]:
                    self._of_backward(block)
                for block in reversed(group):
                    self._of_block(block)
        self._adjoints = {}

    def _of_backward(self, block: TapeBlock) -> None:
        """Adjoints of what the backward part of a block reads of blocks that come later in the forward pass."""
        read = {id for index in block.backward for id in self._tape.operations[index].inputs}
        leaves = {
            id: self._leaf(id, graph=True)
            for id in read
            if self._is_later(id, block) and _may_differ(self._kept.get(id))
        }
        if not leaves:
            return
        table: Table = {}
        with torch.no_grad():
            self._blocks._run(block.forward, table, self._kept, (), self._wide)
        table.update(leaves)
        with torch.enable_grad():
            self._blocks._run(block.backward, table, self._kept, (), self._wide)
        self._pull(block.backward, table, leaves, list(leaves.values()))

    def _of_block(self, block: TapeBlock) -> None:
        """The contributions of all operations of a block, and adjoints of what it reads of earlier blocks."""
        table: Table = {}
        begins: list[Tensor] = []
        earlier: dict[int, Tensor] = {}
        with torch.enable_grad():
            for index in (*block.forward, *block.backward):
                operation = self._tape.operations[index]
                for id in operation.inputs:
                    if id in table:
                        continue
                    is_earlier = id in self._blocks.makers and not self._is_later(id, block)
                    table[id] = self._leaf(id, graph=is_earlier)
                    if table[id].requires_grad:
                        earlier[id] = table[id]
                outputs = wide_outputs(self._tape, operation, table, self._wide, free=False, graph=True)
                begins += self._hook(operation, outputs)
                table.update({id: o for id, o in zip(operation.outputs, outputs, strict=True) if id is not None})
        begins += earlier.values()
        self._pull(itertools.chain(block.forward, block.backward), table, earlier, begins)
        for index in (*block.forward, *block.backward):
            for id in self._tape.operations[index].outputs:
                self._adjoints.pop(id if id is not None else -1, None)

    def _pull(
        self, part: Iterator[int] | range, table: Table, leaves: Mapping[int, Tensor], begins: Sequence[Tensor]
    ) -> None:
        """Send the adjoints of what a part made through its graph, and add the result to those of `leaves`."""
        created = {id for index in part for id in self._tape.operations[index].outputs if id is not None}
        ends = [(table[id], self._adjoints[id]) for id in created if id in self._adjoints and table[id].requires_grad]
        if not ends or not begins:
            return
        results = torch.autograd.grad(
            [end for end, _ in ends], begins, [adjoint for _, adjoint in ends], allow_unused=True
        )
        given = {id(begin): result for begin, result in zip(begins, results, strict=True)}
        for number, leaf in leaves.items():
            result = given[id(leaf)]
            if result is not None:
                before = self._adjoints.get(number)
                self._adjoints[number] = result if before is None else before + result

    def _leaf(self, id: int, *, graph: bool) -> Tensor:
        """A value that a block reads, with `graph` as a leaf of its graph."""
        return leaf_of(self._kept[id] if id in self._kept else self._tape.leaves[id], self._wide, graph)

    def _is_later(self, id: int, block: TapeBlock) -> bool:
        """Whether a value is made by a later block of the same pass, or by its part of the backward pass."""
        maker = self._blocks.makers.get(id)
        return maker is not None and maker.block.group == block.group and maker.block.place > block.place


def _may_differ(value: Tensor | None) -> bool:
    return is_float(value)


__all__ = ["BlockBalance", "Blocks", "WideReplay", "created_bytes", "graph_memory"]
