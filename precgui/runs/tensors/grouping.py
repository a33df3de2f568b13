"""Tensors put together by layer, block or sort: the columns of a picture of the whole run, or one recorded row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from precgui.events import TENSOR_STATS
from precgui.runs.tensors.overview import Overview, at_full_size
from precgui.runs.tensors.record import TensorHistory
from precgui.runs.tensors.what_if import WhatIf
from precgui.sentences import L_

ALL = L_("All together")
_COUNTS = ("zeros", "nan", "pos_inf", "neg_inf", "count")
_NAME_PARTS = {"optimizer": 2, "activation": 0, "activation_gradient": 0}  # behind the module's; of others 1


def _layer(parts: list[str], module: list[str]) -> str:
    return ".".join(module if len(module) < len(parts) else module[:-1])


def _block(parts: list[str], module: list[str]) -> str:
    first = next((place for place, part in enumerate(module) if part.isdecimal()), 0)
    return ".".join(module[: first + 1])


def _sort(parts: list[str], module: list[str]) -> str:
    own = parts[len(module) :] or [part for part in parts if not part.isdecimal()]
    return own[-1] if own else ""


# How tensors are put together, each by a word of their names.
GROUPINGS: Mapping[str, Callable[[list[str], list[str]], str] | None] = {
    L_("by tensor"): None,
    L_("by layer"): _layer,
    L_("by block"): _block,
    L_("by parameter type"): _sort,
}


@dataclass(frozen=True)
class Rows:
    """Recorded rows: `names` (tensors,), `steps` (rows,), `exponents` (rows, tensors, 256), `stats` (rows, tensors,
    TENSOR_STATS). `stride`: every stride-th block was sampled, at most; counts are of the whole tensors.

    Each may add up several that were recorded, at most `every`; see `runs.overview.Columns`, also for `sampled`. Then
    `bad_rows` of all hold NaN or Inf, first in `bad_step` (rows, tensors). `places` are those of the tensors in the
    record. `added` (rows,), or (1,) where all are alike, is how many recorded rows each adds up.
    """

    kind: str
    names: tuple[str, ...]
    steps: NDArray[np.int64]
    exponents: NDArray[np.float64]
    stats: NDArray[np.float64]
    every: int = 1
    stride: int = 1
    places: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))
    bad_step: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    bad_rows: int = 0
    sampled: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))
    added: NDArray[np.int64] = field(default_factory=lambda: np.ones(1, np.int64))


def whole_rows(record: TensorHistory, overview: Overview) -> Rows | None:
    """Sums over the tensors that were recorded; None when there are none."""
    columns = overview.columns()
    if not len(columns.steps):
        return None
    visited = np.flatnonzero(columns.stats[:, :, TENSOR_STATS.index("count")].any(0))
    own = visited if len(visited) < columns.stats.shape[1] else slice(None)  # a copy of all takes as long as the sums
    names = tuple(record.names[place] if place < len(record.names) else f"tensor {place}" for place in visited)
    return Rows(
        record.kind,
        names,
        columns.steps,
        columns.exponents[:, own],
        columns.stats[:, own],
        every=int(columns.rows.max()),
        places=visited,
        bad_step=columns.bad_step[:, own],
        bad_rows=int(columns.bad_rows.sum()),
        sampled=columns.sampled[own],
        added=columns.rows,
    )


def one_row(record: TensorHistory, rows: Rows, at: int) -> Rows:
    """The recorded row `at`, in the order of the steps, of the same tensors as `rows`."""
    stats, exponents, strides = (part(at, at + 1) for part in (record.stats, record.exponents, record.strides))
    stats, weighted = at_full_size(strides, stats, exponents)
    return Rows(
        record.kind,
        rows.names,
        record.steps()[at : at + 1],
        _of(weighted, rows.places),
        _of(stats, rows.places),
        stride=int(strides.max(initial=1)),
    )


def _of(values: NDArray[np.float64], places: NDArray[np.intp]) -> NDArray[np.float64]:
    """The values of some tensors of a row; zero for tensors that came later and were not recorded in it."""
    missing = max(int(places.max(initial=-1)) + 1 - values.shape[1], 0)
    widths = [(0, 0), (0, missing), *[(0, 0)] * (values.ndim - 2)]
    taken: NDArray[np.float64] = np.pad(values, widths)[:, places]
    return taken


@dataclass(frozen=True)
class View:
    """Rows with tensors put together: entry 0 is all of them, entry i holds the tensors `members[i]`.

    `stats` is of shape (rows, entries, TENSOR_STATS).
    """

    rows: Rows
    names: tuple[str, ...]
    members: tuple[NDArray[np.intp], ...]
    stats: NDArray[np.float64]
    _histograms: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def steps(self) -> NDArray[np.int64]:
        return self.rows.steps

    def histograms(self, entry: int) -> NDArray[np.float64]:
        """The exponents of an entry in each row, shape (rows, 256)."""
        if entry not in self._histograms:
            own = self.rows.exponents if not entry else self.rows.exponents[:, self.members[entry]]
            self._histograms[entry] = own.sum(1, dtype=np.float64)
        return self._histograms[entry]

    def bad_steps(self, entry: int) -> NDArray[np.float64]:
        """The first step with NaN or Inf of each row that has any in an entry."""
        first = np.fmin.reduce(self.rows.bad_step[:, self.members[entry]], 1, initial=np.nan)
        bad: NDArray[np.float64] = first[np.isfinite(first)]
        return bad

    @cached_property
    def amax(self) -> NDArray[np.float64]:
        """The largest finite magnitudes, shape (rows, entries), NaN where there are none."""
        return self.stat("amax")

    def first_bad_steps(self) -> NDArray[np.float64]:
        """For each entry the first step with NaN or Inf, NaN where there is none."""
        first = np.fmin.reduce(self.rows.bad_step, 0, initial=np.nan)
        return np.array([np.fmin.reduce(first[own], initial=np.nan) for own in self.members])

    @cached_property
    def sampled(self) -> NDArray[np.float64]:
        """The number of sampled elements of each entry, and the number that they stand for; (entries, 2)."""
        return np.array([self.rows.sampled[own].sum(0) for own in self.members])

    def first_bad(self) -> tuple[int, list[str]] | None:
        """The first step with NaN or Inf, and the tensors that have it in that step."""
        result = self.rows.bad_step
        if not np.isfinite(result).any():
            return None
        step = np.nanmin(result)
        return int(step), [self.rows.names[place] for place in np.flatnonzero((result == step).any(0)).tolist()]

    @cached_property
    def what_if(self) -> WhatIf:
        """All rows together, entry by entry."""
        total = self.rows.exponents.sum(0, dtype=np.float64)
        return WhatIf(np.array([total[own].sum(0) for own in self.members]), _over_time(self.stats))

    def stat(self, name: str) -> NDArray[np.float64]:
        """One statistic, shape (rows, entries), NaN where nothing was recorded."""
        values: NDArray[np.float64] = self.stats[:, :, TENSOR_STATS.index(name)]
        return np.where(self.stats[:, :, TENSOR_STATS.index("count")] > 0, values, np.nan)


def grouped(rows: Rows, grouping: str) -> View:
    """Rows as entries of one of GROUPINGS, the whole first."""
    name_of = GROUPINGS[grouping]
    places: dict[str, list[int]] = {}
    for place, name in enumerate(rows.names):
        parts = name.split(".")
        module = parts[: max(len(parts) - _NAME_PARTS.get(rows.kind, 1), 0)]
        places.setdefault(name if name_of is None else name_of(parts, module) or "(model)", []).append(place)
    members = [np.arange(len(rows.names)), *(np.array(own) for own in places.values())]
    return View(rows, (ALL, *places), tuple(members), _joined(rows.stats, members))


def _joined(stats: NDArray[np.float64], members: list[NDArray[np.intp]]) -> NDArray[np.float64]:
    """Statistics of entries, shape (rows, entries, TENSOR_STATS)."""
    parts = [stats[:, own] if len(own) == 1 else _together(stats[:, own]) for own in members]
    return np.concatenate(parts, 1)


@np.errstate(all="ignore")
def _together(stats: NDArray[np.float64]) -> NDArray[np.float64]:
    """The tensors of each row as one, shape (rows, 1, TENSOR_STATS)."""
    count = np.nan_to_num(stats[:, :, TENSOR_STATS.index("count")])
    whole = np.full((len(stats), 1, stats.shape[2]), np.nan)
    for place, name in enumerate(TENSOR_STATS):
        values = np.where(count > 0, stats[:, :, place], np.nan)
        if name in _COUNTS:
            whole[:, 0, place] = np.nansum(values, 1)
        elif name == "amax":
            whole[:, 0, place] = np.fmax.reduce(values, 1)
        elif name == "amin_nonzero":
            whole[:, 0, place] = np.fmin.reduce(values, 1)
        elif name == "l2":
            whole[:, 0, place] = np.sqrt(np.nansum(values**2, 1))
        else:
            power, weight = 2 if name == "rms" else 1, np.where(np.isfinite(values), count, 0)
            if name.startswith("lost_"):  # shares of what has changed
                weight = weight * np.nan_to_num(stats[:, :, TENSOR_STATS.index("changed")])
            whole[:, 0, place] = (np.nansum(values**power * weight, 1) / weight.sum(1)) ** (1 / power)
    return whole


@np.errstate(all="ignore")
def _over_time(stats: NDArray[np.float64]) -> NDArray[np.float64]:
    """The arguments of `WhatIf` for all rows: largest magnitude and zeros, shape (entries, TENSOR_STATS)."""
    whole = np.zeros(stats.shape[1:])
    counted = stats[:, :, TENSOR_STATS.index("count")] > 0
    for name, join in (("amax", np.fmax), ("zeros", np.add)):
        values = stats[:, :, TENSOR_STATS.index(name)]
        whole[:, TENSOR_STATS.index(name)] = join.reduce(np.where(counted, values, 0 if join is np.add else np.nan), 0)
    return whole
