"""A tensor before and after quantisation, read in pieces: histograms, levels and figures of all of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.formats.arrays import Floats
from precgui.formats.blocks import SCALE_RULES, ScaleRule
from precgui.formats.codec import encode
from precgui.formats.model import Format, IntFormat
from precgui.formats.pieces import PIECE, Extent, OnProgress, TensorReader, spans
from precgui.formats.real import from_float
from precgui.formats.registry import blocks
from precgui.formats.schemes import Codes, Options, Prepared, Quantised, prepare

BINS = 120
MOST_LEVELS = 2000
ALIGNED = 128  # every block and group divides it
PARTLY_S = 0.5
SCALE_SEARCH_SHARE = 0.2  # share of the progress that the search for the scales counts as
Counts = NDArray[np.int_]
SLOTS_LOG2 = 16
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class HashedCodes:
    """A table with a slot for each hash; the few values whose slot is another's are counted by bisection."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._slots = np.full(1 << SLOTS_LOG2, np.nan)
        self._counts: Counts = np.zeros(1 << SLOTS_LOG2, np.int_)
        self._others: dict[float, int] = {}
        self._many = False

    def add(self, values: Floats) -> None:
        """Numbers without NaN; both zeros are one."""
        if self._many:
            return
        numbers = values + 0.0
        places = (numbers.view(np.uint64) * _SPREAD >> np.uint64(64 - SLOTS_LOG2)).astype(np.intp)
        held = self._slots[places] == numbers
        if not held.all():
            self._assign_slots(numbers[~held], places[~held])
            held = self._slots[places] == numbers
        if held.all():
            self._counts += np.bincount(places, minlength=self._counts.size)
            return
        self._counts += np.bincount(places[held], minlength=self._counts.size)
        values, counts = np.unique(numbers[~held], return_counts=True)
        for value, count in zip(values[: self._most + 1].tolist(), counts.tolist(), strict=False):
            self._others[value] = self._others.get(value, 0) + count
        self._many = self._size() > self._most

    def _assign_slots(self, numbers: Floats, places: Counts) -> None:
        """Give new values the slots that are free."""
        new, first = np.unique(numbers, return_index=True)
        free = np.isnan(self._slots[places[first]])
        self._slots[places[first][free]] = new[free]

    def _size(self) -> int:
        return int(np.count_nonzero(~np.isnan(self._slots))) + len(self._others)

    def counted(self) -> tuple[Floats, Counts]:
        """The values in ascending order and their counts; both empty where there are too many."""
        if self._many:
            return np.zeros(0), np.zeros(0, np.int_)
        used = np.flatnonzero(self._counts)
        values = np.concatenate([self._slots[used], np.fromiter(self._others, np.float64)])
        counts = np.concatenate([self._counts[used], np.fromiter(self._others.values(), np.int_)])
        order = np.argsort(values)
        return values[order], counts[order]


@dataclass(frozen=True)
class Part:
    """Some elements in a row, before and after; the masks mark what was clipped and what became zero."""

    before: Floats
    after: Floats
    clipped: NDArray[np.bool_]
    zeroed: NDArray[np.bool_]


@dataclass
class Losses:
    """Sums over the parts that were added."""

    clipped: int = 0
    zeroed: int = 0
    largest_error: float = 0.0
    _signal: list[float] = field(default_factory=list)
    _noise: list[float] = field(default_factory=list)

    def add(self, part: Part) -> None:
        self.clipped += int(np.count_nonzero(part.clipped))
        self.zeroed += int(np.count_nonzero(part.zeroed))
        error = part.before - part.after
        known = np.isfinite(error)
        before, error = (part.before, error) if known.all() else (part.before[known], error[known])
        self.largest_error = max(self.largest_error, float(np.abs(error).max(initial=0.0)))
        self._signal.append(float(np.einsum("i,i", before, before)))  # a product of BLAS would take all threads
        self._noise.append(float(np.einsum("i,i", error, error)))

    @property
    def sqnr_db(self) -> float:
        """Signal over quantisation noise, of the finite pairs; inf when nothing was lost."""
        signal, noise = math.fsum(self._signal), math.fsum(self._noise)
        if noise == 0:
            return math.inf
        return 10 * math.log10(signal / noise) if signal else -math.inf


@dataclass(frozen=True)
class FormatComparison:
    """Histograms over `edges` before and after; `levels` are the different values after, none where there are many.

    `counted` is the number of values in the figures: all, or so far an even sample of the tensor.
    """

    source: TensorReader
    prepared: Prepared
    losses: Losses
    edges: Floats
    counts: Counts
    after: Counts
    levels: Floats
    level_counts: Counts
    rules: dict[str, float]
    counted: int

    def part(self, start: int, stop: int) -> Part:
        """Any elements, quantised again with the scales of the whole."""

        def columns(first: int, last: int) -> list[NDArray[Any]]:
            part = _quantised(self.source, self.prepared, first, last)
            return [getattr(part, one.name) for one in fields(Part)]

        return Part(*self._cut_out(start, stop, columns))

    def codes(self, start: int, stop: int) -> Codes:
        """The same elements in the format of their codes, `prepared.element`, and the scale of each."""

        def columns(first: int, last: int) -> list[NDArray[Any]]:
            coded = _applied(self.source.read(first, last), self.prepared, first).codes()
            return [each.reshape(-1) for each in coded]

        elements, scales = self._cut_out(start, stop, columns)
        return elements, scales

    def _cut_out(self, start: int, stop: int, columns: Callable[[int, int], list[NDArray[Any]]]) -> list[NDArray[Any]]:
        """Some elements of columns that are computed for the stretches around them."""
        pieces = list(_covering(start, min(stop, self.source.size), self.prepared.line))
        cut = slice(start - pieces[0][0], stop - pieces[0][0])
        return [np.concatenate(parts)[cut] for parts in zip(*(columns(*piece) for piece in pieces), strict=True)]

    def code_words(self, codes: Codes) -> list[int | str | None]:
        """Integers as they are, all other codes as the bits of their format; None where the scale is NaN."""
        pairs = zip(*(each.tolist() for each in codes), strict=True)
        return [None if math.isnan(scale) else _code_word(element, self.prepared.element) for element, scale in pairs]


def _code_word(element: float, fmt: Format) -> int | str:
    if isinstance(fmt, IntFormat) and fmt.step == 1:
        return round(element)
    return f"{encode(from_float(element), fmt):#0{2 + -(-fmt.bits // 4)}x}"


def _covering(start: int, stop: int, line: int) -> Iterator[tuple[int, int]]:
    """Stretches around some elements that can be quantised by themselves: whole lines, or whole blocks of long ones."""
    if line <= PIECE:
        yield start // line * line, -(-stop // line) * line
        return
    for row in range(start // line * line, stop, line):
        first, last = max(start - row, 0) // ALIGNED * ALIGNED, -(-min(stop - row, line) // ALIGNED) * ALIGNED
        yield row + first, row + min(last, line)


def _quantised(source: TensorReader, prepared: Prepared, start: int, stop: int) -> Part:
    before = source.read(start, stop)
    result = _applied(before, prepared, start)
    after = result.values.reshape(-1)
    return Part(before, after, result.clipped.reshape(-1), (after == 0) & (before != 0))


def _applied(before: Floats, prepared: Prepared, start: int) -> Quantised:
    whole = 1 < prepared.line <= PIECE
    return prepared.apply(before.reshape(-1, prepared.line) if whole else before.reshape(1, -1), start)


def compare(
    source: TensorReader,
    scheme: str,
    options: Options,
    on_progress: OnProgress,
    partly: Callable[[FormatComparison], None] | None = None,
) -> FormatComparison:
    """Quantise all of it and count. `on_progress` is called with the share done, `partly` twice a second with counts.

    Raises ValueError as `prepare` does.
    """
    if not source.size:
        raise ValueError("There are no values; type some, with commas between them.")

    def on_scales(share: float) -> None:
        on_progress(SCALE_SEARCH_SHARE * share)

    edges = _edges(source.extent(on_scales))
    ways = {
        rule: prepare(source, scheme, replace(options, rule=rule), on_scales) for rule in _rules(scheme, options.rule)
    }
    count, due = _Count(source, ways, edges), time.monotonic() + PARTLY_S
    for start, stop in _scattered(list(spans(source.size, ways[options.rule].line))):
        count.add(start, stop)
        on_progress(SCALE_SEARCH_SHARE + (1 - SCALE_SEARCH_SHARE) * count.counted / source.size)
        if partly is not None and time.monotonic() > due:
            partly(count.comparison())
            due = time.monotonic() + PARTLY_S
    return count.comparison()


def _scattered(pieces: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """All of them, so that the first ones come from all over the tensor."""
    step = max(round(0.618 * len(pieces)), 1)
    while math.gcd(step, len(pieces)) > 1:
        step += 1
    return (pieces[place * step % len(pieces)] for place in range(len(pieces)))


def _rules(scheme: str, chosen: ScaleRule) -> tuple[ScaleRule, ...]:
    """The chosen scale rule first; the others of MX after it, for comparison."""
    if scheme not in blocks() or blocks()[scheme].two_level:
        return (chosen,)
    return chosen, *(rule for rule in SCALE_RULES if rule != chosen)


class _Count:
    """All figures of the pieces that were added, for the first of several ways to quantise; losses for the others."""

    def __init__(self, source: TensorReader, ways: dict[ScaleRule, Prepared], edges: Floats) -> None:
        self.counted = 0
        self._source, self._ways = source, ways
        self._losses = {rule: Losses() for rule in ways}
        self._picture = _Picture(edges)

    def add(self, start: int, stop: int) -> None:
        for place, (rule, prepared) in enumerate(self._ways.items()):
            part = _quantised(self._source, prepared, start, stop)
            self._losses[rule].add(part)
            if place == 0:
                self._picture.add(part)
        self.counted += stop - start

    def comparison(self) -> FormatComparison:
        chosen, several = next(iter(self._ways)), len(self._ways) > 1
        ratios: dict[str, float] = {rule: self._losses[rule].sqnr_db for rule in SCALE_RULES if several}
        picture = self._picture
        return FormatComparison(
            self._source, self._ways[chosen], replace(self._losses[chosen]), picture.edges, picture.before.copy(),
            picture.after.copy(), *picture.levels.counted(), ratios, self.counted,
        )  # fmt: skip


class _Picture:
    """Histograms before and after over the same edges, and the different values after."""

    def __init__(self, edges: Floats) -> None:
        self.edges, self.levels = edges, HashedCodes(MOST_LEVELS)
        self.before, self.after = (np.zeros(edges.size - 1, np.int_) for _ in range(2))

    def add(self, part: Part) -> None:
        before, after = (values[np.isfinite(values)] for values in (part.before, part.after))
        self.before += self._counts(before)
        self.after += self._counts(after)
        self.levels.add(after)

    def _counts(self, values: Floats) -> Counts:
        low, high = self.edges[0], self.edges[-1]
        if self.edges.size == 2:  # too near each other, or too far apart, to be divided
            return np.array([np.count_nonzero((values >= low) & (values <= high))])
        return np.histogram(values, self.edges.size - 1, (low, high))[0]


def _edges(extent: Extent) -> Floats:
    low, high = extent.low, extent.high
    if not high > low:
        return np.array([low - 0.5, low + 0.5])
    with np.errstate(over="ignore", invalid="ignore"):
        edges: Floats = np.linspace(low, high, BINS + 1)
    return edges if np.all(np.isfinite(edges)) and np.all(np.diff(edges) > 0) else np.array([low, high])
