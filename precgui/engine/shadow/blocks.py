"""Cuts a tape into blocks: parts of the forward pass, each with the part of the backward pass that belongs to it.

A block is small where few values cross its ends; between two layers of a network that is one activation forward and one
gradient backward. Where the cuts lie decides about memory only, never about a result.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precgui.engine.shadow.tape import Tape


@dataclass(frozen=True)
class TapeBlock:
    """Places of operations on the tape. `group` counts passes forward and backward, of which most steps have one."""

    group: int
    place: int  # in the forward pass of its group
    forward: range
    backward: range


@dataclass(frozen=True)
class ProducerBlock:
    """The block that makes a value, and in which of its two parts."""

    block: TapeBlock
    backward: bool


def blocks_of(tape: Tape, count: int) -> list[list[TapeBlock]]:
    """At most `count` blocks for each pass, in the order of the forward pass; together they are the whole tape."""
    return [
        _blocks(tape, group, forward, backward, count) for group, (forward, backward) in enumerate(_passes(tape))
    ]  # fmt: skip


def producers_of(groups: Sequence[Sequence[TapeBlock]], tape: Tape) -> dict[int, ProducerBlock]:
    """For each value that the tape makes, where."""
    return {
        id: ProducerBlock(block, part is block.backward)
        for block in itertools.chain.from_iterable(groups) for part in (block.forward, block.backward)
        for index in part for id in tape.operations[index].outputs if id is not None
    }  # fmt: skip


def _passes(tape: Tape) -> Iterator[tuple[range, range]]:
    """The ranges of each forward pass and the backward pass behind it."""
    begin, turn = 0, None
    for operation in tape.operations:
        if operation.origin.backward:
            turn = operation.index if turn is None else turn
        elif turn is not None and not operation.is_view:
            yield range(begin, turn), range(turn, operation.index)
            begin, turn = operation.index, None
    end = len(tape.operations)
    yield range(begin, end if turn is None else turn), range(end if turn is None else turn, end)


def _blocks(tape: Tape, group: int, forward: range, backward: range, count: int) -> list[TapeBlock]:
    cuts = [forward.start, *_forward_cuts(tape, forward, count), forward.stop]
    parts = [range(a, b) for a, b in itertools.pairwise(cuts)]
    ends = _backward_ends(tape, parts, backward)
    return [
        TapeBlock(group, place, part, range(begin, end))
        for place, (part, (begin, end)) in enumerate(zip(parts, ends, strict=True))
    ]


def _bytes(tape: Tape, id: int | None) -> int:
    value = tape.values.get(id) if id is not None else None
    return value.numel() if value is not None and value.is_floating_point() else 0


def _forward_cuts(tape: Tape, forward: range, count: int) -> list[int]:
    """Places near even parts of the numbers made, at which the fewest of them cross."""
    created = np.zeros(len(forward) + 1)
    crossing = np.zeros(len(forward) + 1)  # of a cut before the operation at this place
    producer = {id: i for i in forward for id in tape.operations[i].outputs if id is not None}
    last = {id: i for i in forward for id in tape.operations[i].inputs if id in producer}
    for id, index in producer.items():
        size = _bytes(tape, id)
        created[index - forward.start + 1] += 0 if tape.operations[index].is_view else size
        if id in last:
            crossing[index - forward.start + 1] += size
            crossing[last[id] - forward.start + 1] -= size
    done, crossing = np.cumsum(created), np.cumsum(crossing)
    results: list[int] = []
    for number in range(1, count):
        around = _window(done, number / count, 0.5 / count)
        if len(around) and (best := int(around[np.argmin(crossing[around])])) > (results[-1] if results else 0):
            results.append(best)
    return [forward.start + place for place in results if place < len(forward)]


def _window(done: NDArray[np.float64], share: float, half: float) -> NDArray[np.intp]:
    """The places at which between `share` - `half` and `share` + `half` of all numbers are made."""
    total = done[-1]
    return np.flatnonzero((done >= (share - half) * total) & (done < (share + half) * total))


def _backward_ends(tape: Tape, parts: Sequence[range], backward: range) -> list[tuple[int, int]]:
    """Begin and end of each part's backward pass, those of later parts first on the tape.

    An operation of the backward pass belongs to the latest part of which it reads a value; a cut lies where the fewest
    are on the wrong side of it.
    """
    part_of = {
        id: place
        for place, part in enumerate(parts) for index in part for id in tape.operations[index].outputs if id is not None
    }  # fmt: skip
    places = np.array(
        [max((part_of[id] for id in tape.operations[i].inputs if id in part_of), default=-1) for i in backward], int
    )
    begins = [backward.start]
    for part in range(len(parts) - 1, 0, -1):  # where the pass of the part before this one begins
        early = np.concatenate(([0], np.cumsum((places >= 0) & (places < part))))
        late = np.concatenate((np.cumsum((places >= part)[::-1])[::-1], [0]))
        begins.append(max(begins[-1], backward.start + int(np.argmin(early + late))))
    begins.append(backward.stop)
    return list(itertools.pairwise(begins))[::-1]


__all__ = ["ProducerBlock", "TapeBlock", "blocks_of", "producers_of"]
