"""From the trace of a step to its ledger: the peak, what was alive at it, and the line of memory over the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precgui.engine.profile.tracker import MemoryBlock, Trace
from precgui.planner.ledger import PARTS, Ledger, Owner, largest_owners

_POINTS = 400  # of the line of memory


@dataclass(frozen=True, slots=True)
class StepPeak:
    """The largest sum: `place` is the number of changes before it, `scratch_bytes` what a kernel takes for itself."""

    total_bytes: int
    place: int
    scratch_bytes: int = 0


def presence(trace: Trace) -> list[int]:
    """Bytes alive after each change."""
    present, line = 0, []
    for _, size in trace.changes:
        present += size
        line.append(present)
    return line


def peak(trace: Trace, scratch_bytes: Mapping[int, int] | None = None) -> StepPeak:
    """The peak of the trace; `scratch_bytes` gives, by operation number, the buffers inside of its kernel."""
    line = presence(trace)
    best = StepPeak(0, 0)
    for place, present in enumerate(line, 1):
        if present > best.total_bytes:
            best = StepPeak(present, place)
    for number, size in (scratch_bytes or {}).items():
        place = trace.operations[number].place
        present = line[place - 1] + size if place else size
        if present > best.total_bytes:
            best = StepPeak(present, place, size)
    return best


def ledger(trace: Trace, best: StepPeak, method: str, notes: Sequence[str] = ()) -> Ledger:
    """The ledger at that peak; every byte belongs to one part."""
    parts_of = _parts(trace)
    parts, owned = dict.fromkeys(PARTS, 0), defaultdict[tuple[str, str], list[MemoryBlock]](list)
    for number in alive(trace, best.place):
        block = trace.blocks[number]
        parts[parts_of[number]] += block.size_bytes
        owned[parts_of[number], block.module].append(block)
    parts["temporary"] += best.scratch_bytes
    phase = next((name for name, place in reversed(trace.marks) if place <= best.place), "forward")
    line = presence(trace)
    return Ledger(
        parts, best.total_bytes, phase, method, largest_owners([_owner(*key, rows) for key, rows in owned.items()]),
        thinned(line), tuple(trace.marks), tuple(notes),
    )  # fmt: skip


def alive(trace: Trace, place: int) -> list[int]:
    """Numbers of the blocks that are there after `place` changes."""
    there: dict[int, None] = {}
    for number, size in trace.changes[:place]:
        if size >= 0:
            there[number] = None
        else:
            there.pop(number, None)
    return list(there)


def thinned(line: Sequence[int], points: int = _POINTS) -> tuple[tuple[int, int], ...]:
    """Places and values of a line, of each stretch its lowest and its highest point, in order."""
    stretch = max(1, -(-2 * len(line) // points))
    kept: dict[int, int] = {}
    for start in range(0, len(line), stretch):
        part = range(start, min(start + stretch, len(line)))
        for place in sorted({min(part, key=line.__getitem__), max(part, key=line.__getitem__)}):
            kept[place] = line[place]
    return tuple(kept.items())


def _parts(trace: Trace) -> list[str]:
    """The part of the ledger of each block. What the forward pass made and left to the backward pass is an activation,
    also when the backward pass computes it again; other blocks without a kind are temporaries."""
    died = {number: place for place, (number, size) in enumerate(trace.changes) if size < 0}
    born: dict[int, int] = {}
    for place, (number, size) in enumerate(trace.changes):
        if size >= 0:
            born.setdefault(number, place)
    ends = [place for name, place in trace.marks if name == "backward"]
    parts = []
    for number, block in enumerate(trace.blocks):
        end = next((place for place in ends if place >= born.get(number, 0)), len(trace.changes))
        lasting = block.phase == "forward" and died.get(number, len(trace.changes)) >= end
        parts.append(block.kind or ("activations" if lasting or block.recomputed else "temporary"))
    return parts


def _owner(part: str, module: str, blocks: Sequence[MemoryBlock]) -> Owner:
    largest = max(blocks, key=lambda block: block.size_bytes)
    size = sum(block.size_bytes for block in blocks)
    return Owner(part, module, size, len(blocks), largest.dtype, largest.shape, largest.operation)
