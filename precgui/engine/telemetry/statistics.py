"""From the sums of a pass over tensors to the statistics that are recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.engine.compiled_loops import compiled
from precgui.engine.telemetry import cpu_kernels as k
from precgui.events import TENSOR_STATS, TensorStats
from precgui.formats.model import FloatFormat
from precgui.formats.registry import get

WIDTH = k.SUMS + k.BINS  # of a row: sums, then the histogram
_LOST = tuple(name.removeprefix("lost_") for name in TENSOR_STATS if name.startswith("lost_"))
_BIAS = 127
_INFINITE = 0x7F800000  # the bits of Inf
Rows = NDArray[np.float64]


@dataclass
class StatisticsTable:
    """The measured tensors of one kind in one step, by name. `sizes` count elements, measured or not."""

    kind: str
    names: list[str] = field(default_factory=list)
    strides: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    changes: bool = False  # rows also hold the change of the tensors in the step

    def append(self, name: str, stride: int, size: int, dtype: str) -> None:
        """One more tensor."""
        self.names.append(name)
        self.strides.append(stride)
        self.sizes.append(size)
        self.dtypes.append(dtype)

    def add(self, other: StatisticsTable) -> None:
        """The tensors of another table behind those of this one."""
        self.names += other.names
        self.strides += other.strides
        self.sizes += other.sizes
        self.dtypes += other.dtypes
        self.changes = self.changes or other.changes


def half_ulps() -> NDArray[np.int32]:
    """For each format of the `lost_*` statistics, the numbers that `engine.telemetry.cpu_kernels.compare` wants.

    Half an ulp of a value in binade e is 2^(max(e, emin) - mantissa bits - 1). Shape (formats, 2).
    """
    formats = [get(name) for name in _LOST]
    return np.array(
        [(f.emin - f.mantissa_bits - 1 + _BIAS, f.mantissa_bits + 1) for f in formats if isinstance(f, FloatFormat)],
        np.int32,
    )


def empty(count: int) -> Rows:
    """Rows to which nothing was added yet."""
    rows = np.zeros((count, WIDTH))
    rows[:, k.LEAST] = np.inf
    return rows


def norm(rows: Rows) -> float:
    """The L2 norm over all elements of the tensors: NaN when one is NaN, else Inf when one is infinite."""
    if rows[:, k.NAN].any():
        return math.nan
    infinite = rows[:, (k.POS_INF, k.NEG_INF)].any()
    return math.inf if infinite else math.sqrt(rows[:, k.SQUARES].sum())


def nonfinite(table: StatisticsTable, rows: Any) -> list[str]:
    """The tensors with NaN or Inf; rows that are still on a device are left out."""
    if not isinstance(rows, np.ndarray):
        return []
    bad = rows[:, (k.NAN, k.POS_INF, k.NEG_INF)].any(axis=1)
    return [table.names[place] for place in np.flatnonzero(bad)]


def finished(table: StatisticsTable, rows: Rows, step: int, time_s: float) -> TensorStats:
    """The event of one kind and step, with one row for each name: a module called several times saw many tensors."""
    names, strides, dtypes = tuple(table.names), tuple(table.strides), tuple(table.dtypes)
    squares: Rows = rows[:, k.SQUARES] * (np.array(table.sizes, np.float64) / rows[:, k.COUNT])
    if len(set(names)) < len(names):
        of_name = dict(zip(names, dtypes, strict=False))
        names, index = _distinct(names)
        most = np.zeros(len(names), np.int64)
        np.maximum.at(most, index, table.strides)
        strides, rows = tuple(most.tolist()), _merged(rows, index)
        dtypes = tuple(of_name[name] for name in names if name in of_name)
        squares = np.bincount(index, squares).astype(np.float64)
    stats = np.full((len(names), len(TENSOR_STATS)), np.nan)
    exponents = np.empty((len(names), k.BINS), np.uint32)
    statistics(rows, squares, table.changes or table.kind == "update", stats, exponents)
    return TensorStats(step, time_s, table.kind, names, strides, stats.tobytes(), exponents.tobytes(), dtypes)


def _distinct(names: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """Each name once, and the place of each of `names` among them."""
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return tuple(places), np.array([places[name] for name in names], np.intp)


def _merged(rows: Rows, index: NDArray[np.intp]) -> Rows:
    """Sums of the rows that have the same index."""
    total = empty(int(index.max()) + 1)
    summed = [column for column in range(WIDTH) if column not in (k.AMAX, k.LEAST)]
    np.add.at(total, (index[:, None], np.array(summed)[None]), rows[:, summed])
    np.maximum.at(total[:, k.AMAX], index, rows[:, k.AMAX])
    np.minimum.at(total[:, k.LEAST], index, rows[:, k.LEAST])
    return total


def _statistics(rows: Any, squares: Any, changes: Any, stats: Any, exponents: Any) -> None:
    """Fill stats[t] (TENSOR_STATS, NaN before) and exponents[t] (BINS) from the sums in rows[t].

    Means are over finite elements; `squares` are scaled up to the whole tensors, the changes are those of an update.
    """
    bits = np.empty(2, np.uint32)
    numbers = bits.view(np.float32)
    for t in range(len(rows)):
        row, out = rows[t], stats[t]
        bits[0], bits[1] = np.uint32(row[k.AMAX]), np.uint32(min(row[k.LEAST] + 1, _INFINITE))
        finite = row[k.COUNT] - row[k.NAN] - row[k.POS_INF] - row[k.NEG_INF]
        if finite > 0:
            out[0] = numbers[0]
        if row[k.LEAST] + 1 < _INFINITE:
            out[1] = numbers[1]
        out[2], out[3], out[4] = row[k.SUM] / finite, np.sqrt(row[k.SQUARES] / finite), np.sqrt(squares[t])
        for place in range(k.ZEROS, k.COUNT + 1):  # slices that are assigned take numba seconds to compile
            out[5 + place - k.ZEROS] = row[place]
        if changes:
            out[10] = row[k.CHANGED] / row[k.COUNT]
            for place in range(k.LOST, k.SUMS):
                out[11 + place - k.LOST] = row[place] / row[k.CHANGED]
        for b in range(k.BINS):
            exponents[t, b] = np.uint32(row[k.SUMS + b])


statistics = compiled(_statistics, fastmath=k.FASTMATH)
