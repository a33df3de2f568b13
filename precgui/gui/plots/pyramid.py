"""Min/max pyramid of a growing series: what to draw of millions of points, without losing one extreme.

Each level keeps, for every block of 16, 32, 64 ... points, the index of the smallest finite value, of the largest
finite value and of the first value that is not finite. Indices rather than values: whatever is drawn is a recorded
point at its recorded place, in full precision, and an index costs half of a float.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FIRST_BLOCK = 16
RAW_POINTS_PER_PIXEL = 4
_NONE = -1
FIRST_INDICES = 16  # room of a new level; most runs are short, and there are many levels of many curves

Floats = NDArray[np.float64]
Indices = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Points to draw: `x` ascending, `y` with NaN where the line breaks. `exact`: every recorded point is there.

    `inside`: those within the queried range, without the neighbours on both sides.
    """

    x: Floats
    y: Floats
    exact: bool
    inside: slice


class GrowingIndices:
    """Indices that grow at the end in amortised constant time."""

    def __init__(self) -> None:
        self._data: Indices = np.empty(FIRST_INDICES, np.int32)
        self.size = 0

    @property
    def values(self) -> Indices:
        return self._data[: self.size]

    def extend(self, values: NDArray[np.integer[Any]]) -> None:
        needed = self.size + len(values)
        if needed > len(self._data):
            grown = np.empty(max(needed, 2 * len(self._data)), np.int32)
            grown[: self.size] = self.values
            self._data = grown
        self._data[self.size : needed] = values
        self.size = needed

    def truncate(self, size: int) -> None:
        """Drop what follows the first `size`."""
        self.size = min(self.size, size)


class _Level:
    """The complete blocks of one size: three indices a block."""

    def __init__(self) -> None:
        self.low, self.high, self.gap = (GrowingIndices() for _ in range(3))
        self.has_gaps = False

    def __len__(self) -> int:
        return self.low.size

    def extend(self, low: NDArray[Any], high: NDArray[Any], gap: NDArray[Any]) -> None:
        self.low.extend(low)
        self.high.extend(high)
        self.gap.extend(gap)
        self.has_gaps = self.has_gaps or bool((gap != _NONE).any())

    def truncate(self, blocks: int) -> None:
        for column in (self.low, self.high, self.gap):
            column.truncate(blocks)

    def points(self, start: int, stop: int) -> Indices:
        """The indices that blocks start..stop contribute, ascending; a point may come twice."""
        low, high = self.low.values[start:stop], self.high.values[start:stop]
        if not self.has_gaps:
            result = np.empty((len(low), 2), np.int32)
            np.minimum(low, high, out=result[:, 0])
            np.maximum(low, high, out=result[:, 1])
            return result.ravel()
        gap = self.gap.values[start:stop]
        result = np.stack([low, high, np.where(gap == _NONE, low, gap)], axis=1)
        result.sort(axis=1)
        return result.ravel()


class Pyramid:
    """A series of (x, y) with x ascending, not necessarily uniform, that answers range queries in microseconds."""

    def __init__(self, x: ArrayLike = (), y: ArrayLike = ()) -> None:
        self.x: Floats = np.empty(0)
        self.y: Floats = np.empty(0)
        self._levels: list[_Level] = []
        self._finite_to = 0  # the number of first points that all are finite
        self.update(x, y)

    def __len__(self) -> int:
        return len(self.x)

    def update(self, x: ArrayLike, y: ArrayLike, known: int | None = None) -> None:
        """Take the whole series as it is now; x must not fall. The arrays are kept, not copied.

        The first `known` points (default: all that were there before) have not changed; only blocks beyond them
        are computed. Raises ValueError when x and y are not equally long.
        """
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        if x.shape != y.shape or x.ndim != 1:
            raise ValueError(f"x and y must be two equally long lists, not of shapes {x.shape} and {y.shape}")
        known = min(len(self), len(x)) if known is None else known
        self.x, self.y = x, y
        self._finite_to = min(self._finite_to, known)
        if self._finite_to == known:
            gaps = np.flatnonzero(~np.isfinite(y[known:]))
            self._finite_to = known + int(gaps[0]) if len(gaps) else len(y)
        for power, level in enumerate(self._levels):
            level.truncate(known // (FIRST_BLOCK << power))
        self._complete_blocks()

    def _complete_blocks(self) -> None:
        if not self._levels and len(self) >= FIRST_BLOCK:
            self._levels.append(_Level())
        if not self._levels:
            return
        self._reduce_raw(self._levels[0])
        index = 1
        while len(self._levels[index - 1]) >= 2:
            if index == len(self._levels):
                self._levels.append(_Level())
            if len(self._levels[index - 1]) // 2 == len(self._levels[index]):
                return
            self._reduce_pairs(self._levels[index - 1], self._levels[index])
            index += 1

    def _reduce_raw(self, level: _Level) -> None:
        start = len(level) * FIRST_BLOCK
        stop = len(self) // FIRST_BLOCK * FIRST_BLOCK
        blocks = self.y[start:stop].reshape(-1, FIRST_BLOCK)
        first = np.arange(start, stop, FIRST_BLOCK)
        finite = np.isfinite(blocks)
        if finite.all():
            gap = np.full(len(first), _NONE)
            level.extend(first + blocks.argmin(axis=1), first + blocks.argmax(axis=1), gap)
            return
        gap = np.where(finite.all(axis=1), _NONE, first + finite.argmin(axis=1))
        low = np.where(finite, blocks, np.inf).argmin(axis=1)
        high = np.where(finite, blocks, -np.inf).argmax(axis=1)
        level.extend(first + low, first + high, gap)

    def _reduce_pairs(self, below: _Level, level: _Level) -> None:
        start, stop = 2 * len(level), len(below) // 2 * 2
        low, high, gap = (column.values[start:stop].reshape(-1, 2).T for column in (below.low, below.high, below.gap))
        level.extend(
            np.where(_less(self.y[low[1]], self.y[low[0]]), low[1], low[0]),
            np.where(_less(-self.y[high[1]], -self.y[high[0]]), high[1], high[0]),
            np.where(gap[0] == _NONE, gap[1], gap[0]),
        )

    def query(self, x0: float, x1: float, pixels: int, raw_per_pixel: int = RAW_POINTS_PER_PIXEL) -> Drawn:
        """Points to draw for x0 <= x <= x1 on a plot that is `pixels` wide.

        All points, and one neighbour on each side, when there are up to `raw_per_pixel` for each pixel; else the
        smallest, the largest and the first non-finite value of at least `pixels` equal blocks. Non-finite values come
        back as NaN.
        """
        first, last = int(self.x.searchsorted(x0, "left")), int(self.x.searchsorted(x1, "right"))
        before, after = max(first - 1, 0), min(last + 1, len(self))
        pixels = max(pixels, 1)
        if last - first <= raw_per_pixel * pixels:
            y = self.y[before:after]
            y = y if after <= self._finite_to else _without_infinities(y.copy())
            return Drawn(self.x[before:after], y, True, slice(first - before, last - before))
        size = max(FIRST_BLOCK, 1 << (((last - first) // pixels).bit_length() - 1))
        inside = [part for part in self._cover(first, last, size) if len(part)]
        index = np.concatenate([_span(before, first), *inside, _span(last, after)])
        y = _without_infinities(self.y[index])
        return Drawn(self.x[index], y, False, slice(first - before, len(index) - (after - last)))

    def _cover(self, first: int, last: int, size: int) -> Iterator[Indices]:
        """Points for first <= i < last: blocks of `size`, and towards both ends ever smaller ones, then raw points."""
        place = min(-(-first // FIRST_BLOCK) * FIRST_BLOCK, last)
        yield _span(first, place)
        while place + FIRST_BLOCK <= last:
            block = FIRST_BLOCK
            while block < size and place % (2 * block) == 0 and place + 2 * block <= last:
                block *= 2
            count = (last - place) // block if block == size else 1
            start = place // block
            yield self._level(block).points(start, start + count)
            place += count * block
        yield _span(place, last)

    def _level(self, block: int) -> _Level:
        return self._levels[(block // FIRST_BLOCK).bit_length() - 1]

    def bounds(self, x0: float, x1: float) -> tuple[float, float] | None:
        """The smallest and largest finite y for x0 <= x <= x1; None when there is none."""
        first, last = np.searchsorted(self.x, x0, "left"), np.searchsorted(self.x, x1, "right")
        inside = self.query(x0, x1, 64)
        within = (inside.x >= x0) & (inside.x <= x1) & np.isfinite(inside.y)
        if first == last or not within.any():
            return None
        y = inside.y[within]
        return float(y.min()), float(y.max())


def _without_infinities(y: Floats) -> Floats:
    """The same array with NaN in place of what is not finite."""
    y[~np.isfinite(y)] = np.nan
    return y


def _span(start: int, stop: int) -> Indices:
    return np.arange(start, stop, dtype=np.int32)


def _less(a: Floats, b: Floats) -> NDArray[np.bool_]:
    """a < b, where whatever is not finite counts as larger than everything finite."""
    return np.asarray(np.isfinite(a) & ~(np.isfinite(b) & (b <= a)))
