"""The fewest lines that have to run in FP64 together, where none of them mends the error alone.

A sum that is rounded, and a line elsewhere that takes it in the low format, are such lines: the exact result of one is
rounded by the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from precgui.engine.shadow.tape import SourceLine
from precgui.engine.shadow.unavoidable_error import ConsumerMap

LARGEST_GROUP = 6  # lines that are named together
_MOST_RUNS = 30  # of the step with some lines in FP64
_FURTHER = 4  # readers of readers
Left = Callable[[Sequence[SourceLine]], float]


def fewest(ordered: Sequence[SourceLine], left: Left, limit: float) -> list[SourceLine]:
    """Lines that leave less than `limit` together, of which none can be spared; none where they are too many.

    `ordered` are all that may be tried, those first that are most likely among them. The shortest beginning of them
    that is enough is searched by bisection: its last line is needed. So is the last one of the shortest beginning that
    is enough together with that line, and so on.
    """
    runs = 0

    def is_enough(lines: Sequence[SourceLine]) -> bool:
        nonlocal runs
        runs += 1
        return left(lines) < limit

    needed: list[SourceLine] = []
    rest = list(ordered)
    if not rest or not is_enough(rest):
        return []
    while not is_enough(needed):
        short, enough = 0, len(rest)
        while enough - short > 1:
            middle = (short + enough) // 2
            short, enough = (short, middle) if is_enough([*rest[:middle], *needed]) else (middle, enough)
        needed.insert(0, rest[enough - 1])
        rest = rest[: enough - 1]
        if len(needed) > LARGEST_GROUP or runs > _MOST_RUNS:
            return []
    return needed


def with_readers(lines: Sequence[SourceLine], flow: ConsumerMap) -> list[SourceLine]:
    """Lines, behind each of them those that take its results, whatever function they are in."""
    ordered: dict[SourceLine, None] = {}
    for line in lines:
        region = {line}
        ordered.setdefault(line)
        for _ in range(_FURTHER):
            more = flow.next_lines(region, anywhere=True)
            region |= more
            ordered.update(dict.fromkeys(sorted(more)))
    return list(ordered)
