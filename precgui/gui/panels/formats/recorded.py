"""A recorded tensor of a run at one step, as this panel shows it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from precgui.events import TENSOR_STATS
from precgui.formats.sampling import BINS, ValueHistogram
from precgui.runs.tensors.overview import at_full_size
from precgui.runs.tensors.record import TensorHistory
from precgui.runs.tensors.what_if import BIAS, WhatIf


@dataclass(frozen=True)
class Recorded:
    """One row of a record: one tensor, or all of a kind. `counts` (tensors, 256), `stats` (tensors, TENSOR_STATS)."""

    title: str
    step: int
    counts: NDArray[np.float64]
    stats: NDArray[np.float64]

    @cached_property
    def what_if(self) -> WhatIf:
        return WhatIf(self.counts, self.stats)

    def binades(self) -> tuple[NDArray[np.int_], NDArray[np.float64]]:
        """Exponents and the share of all elements that have them, without zeros, Inf and NaN."""
        binades = self.what_if.counts.sum(axis=0)
        used = np.flatnonzero(binades)
        if not used.size:
            return np.zeros(0, np.int_), np.zeros(0)
        bins = np.arange(used[0], used[-1] + 1)
        return bins - BIAS, binades[bins] / self.counts.sum()

    def losses(self, name: str) -> tuple[float, float, float]:
        """Shares that underflow, are subnormal, overflow, over all tensors. Raises ValueError for an integer format."""
        result, weight = self.what_if.predict(name), self.what_if.count / self.counts.sum()
        parts = (result.underflow, result.subnormal, result.overflow)
        underflow, subnormal, overflow = (float(np.sum(np.nan_to_num(part) * weight)) for part in parts)
        return underflow, subnormal, overflow

    def histogram(self) -> ValueHistogram:
        """All tensors as one."""
        count, column = self.counts.sum(axis=1), TENSOR_STATS.index
        visited = count > 0
        table = self.stats[visited]
        mean = float(np.average(np.nan_to_num(table[:, column("mean")]), weights=count[visited]))
        largest, smallest = _known(table[:, column("amax")]), _known(table[:, column("amin_nonzero")])
        zeros = float(np.nansum(table[:, column("zeros")]))
        return ValueHistogram(self.counts.sum(axis=0), zeros, float(largest.max()), float(smallest.min()), mean)

    @property
    def not_finite(self) -> int:
        return int(self.counts[:, BINS - 1].sum())


def _known(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The finite ones; NaN where there is none."""
    known = values[np.isfinite(values)]
    return known if known.size else np.full(1, np.nan)


def recorded_names(record: TensorHistory) -> list[str]:
    """The tensors of this kind with at least one measurement."""
    visited = np.flatnonzero((record.strides() > 0).sum(axis=0))
    return [record.names[place] for place in visited.tolist()]


def recorded_rows(record: TensorHistory, tensor: str | None) -> NDArray[np.intp]:
    """The rows of a record in which one tensor (or any) was measured."""
    strides = record.strides()
    columns = strides if tensor is None else strides[:, record.names.index(tensor), None]
    return np.flatnonzero((columns > 0).any(axis=1))


def recorded(title: str, record: TensorHistory, tensor: str | None, row: int) -> Recorded | None:
    """One row of a record, for one tensor or for all, samples at their weight; None where it counted nothing."""
    counts = record.exponents(row, row + 1)[0].astype(np.float64)
    stats = record.stats(row, row + 1)[0]
    if tensor is None:
        stats, counts = at_full_size(record.strides(row, row + 1)[0], stats, counts)
    else:
        place = record.names.index(tensor)
        counts, stats = counts[place : place + 1], stats[place : place + 1]
    if not counts.sum():
        return None
    return Recorded(title, int(record.steps()[row]), counts, stats)
