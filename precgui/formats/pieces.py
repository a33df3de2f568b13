"""A tensor that is read a piece at a time, so that one of any size needs little memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from precgui.formats.arrays import Floats

PIECE = 1 << 17  # numbers; a multiple of every block and group
Read = Callable[[int, int], Floats]
OnProgress = Callable[[float], None]


@dataclass(frozen=True)
class Extent:
    """The least and the largest finite number of a tensor, and the mean magnitude with NaN and infinities."""

    low: float
    high: float
    mean_magnitude: float

    @property
    def largest_magnitude(self) -> float:
        return max(-self.low, self.high)


class TensorReader:
    """`read(start, stop)` gives a stretch of the tensor in C order, as doubles; `shape` has at least one axis."""

    def __init__(self, shape: tuple[int, ...], read: Read) -> None:
        self.shape = shape or (1,)
        self.read = read
        self._extent: Extent | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def extent(self, on_progress: OnProgress) -> Extent:
        """Found in one pass over the tensor, once; `on_progress` is called with the share that is done."""
        if self._extent is None:
            lows, highs, sums = [], [], []
            for start, stop in spans(self.size, 1):
                part = self.read(start, stop)
                with np.errstate(over="ignore"):
                    sums.append(float(np.abs(part).sum()))
                known = part if np.isfinite(sums[-1]) else part[np.isfinite(part)]
                if known.size:
                    lows.append(float(known.min()))
                    highs.append(float(known.max()))
                on_progress(stop / self.size)
            mean = math.fsum(part / self.size for part in sums)
            self._extent = Extent(min(lows, default=0.0), max(highs, default=0.0), mean)
        return self._extent


def in_memory(values: ArrayLike) -> TensorReader:
    """The pieces of an array that is at hand."""
    array = np.atleast_1d(np.asarray(values, np.float64))
    flat = array.reshape(-1)
    return TensorReader(array.shape, lambda start, stop: flat[start:stop])


def spans(size: int, line: int) -> Iterator[tuple[int, int]]:
    """Stretches that cover `size` numbers: whole lines, as many as a piece holds, or pieces of one after another."""
    if line <= PIECE:
        step = PIECE // line * line
        yield from ((start, min(start + step, size)) for start in range(0, size, step))
        return
    for row in range(0, size, line):
        yield from ((start, min(start + PIECE, row + line)) for start in range(row, row + line, PIECE))
