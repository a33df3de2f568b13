"""What the Tensors panel draws from: rows of one kind of tensor of one run, thinned to what a plot can show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from precgui.events import TENSOR_STATS
from precgui.runs.run import Run
from precgui.runs.whatif import WhatIf

MOST_ROWS = 480  # read from a record: as many as the picture has columns
MOST_HISTOGRAMS = 24_000  # read at once, a fraction of a second
ALL = "All together"
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
    "each tensor": None,
    "each layer": _layer,
    "each block": _block,
    "each sort": _sort,
}


@dataclass(frozen=True)
class Rows:
    """Recorded rows: `names` (tensors,), `steps` (rows,), `exponents` (rows, tensors, 256), `stats` (rows, tensors,
    TENSOR_STATS). `every` says that each `every`-th row was read, `stride` that one of so many blocks was looked at.
    """

    kind: str
    names: tuple[str, ...]
    steps: NDArray[np.int64]
    exponents: NDArray[np.uint32]
    stats: NDArray[np.float64]
    every: int
    stride: int


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

    def what_if(self) -> WhatIf:
        """All rows together, entry by entry."""
        total = self.rows.exponents.sum(0, dtype=np.float64)
        return WhatIf(np.array([total[own].sum(0) for own in self.members]), _over_time(self.stats))

    def stat(self, name: str) -> NDArray[np.float64]:
        """One statistic, shape (rows, entries), NaN where nothing was recorded."""
        values: NDArray[np.float64] = self.stats[:, :, TENSOR_STATS.index(name)]
        return np.where(self.stats[:, :, TENSOR_STATS.index("count")] > 0, values, np.nan)


def read_rows(run: Run, kind: str) -> Rows | None:
    """The rows of one kind of a run, None when there are none."""
    record = run.tensors().get(kind)
    if record is None:
        return None
    most = max(min(MOST_ROWS, MOST_HISTOGRAMS // max(len(record.names), 1)), 24)
    every = -(-len(record) // most)
    stats, exponents = record.stats(every=every), record.exponents(every=every)
    strides = record.strides(len(record) - 1)
    count = min(len(stats), len(exponents))
    tensors = min(stats.shape[1], exponents.shape[1])  # which differ in a damaged file only
    stats, exponents = stats[:count, :tensors], exponents[:count, :tensors]
    seen = np.flatnonzero((stats[:, :, TENSOR_STATS.index("count")] > 0).any(0)) if count else np.empty(0, int)
    if not len(seen):
        return None
    names = tuple(record.names[place] if place < len(record.names) else f"tensor {place}" for place in seen)
    if len(seen) < tensors:
        stats, exponents = stats[:, seen], exponents[:, seen]
    stride = int(strides.max(initial=1))
    return Rows(kind, names, record.steps()[::every][:count], exponents, stats, every, stride)


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
            power = 2 if name == "rms" else 1
            whole[:, 0, place] = (np.nansum(values**power * count, 1) / count.sum(1)) ** (1 / power)
    return whole


@np.errstate(all="ignore")
def _over_time(stats: NDArray[np.float64]) -> NDArray[np.float64]:
    """What `WhatIf` needs of all rows: largest magnitude and zeros, shape (entries, TENSOR_STATS)."""
    whole = np.zeros(stats.shape[1:])
    counted = stats[:, :, TENSOR_STATS.index("count")] > 0
    for name, join in (("amax", np.fmax), ("zeros", np.add)):
        values = stats[:, :, TENSOR_STATS.index(name)]
        whole[:, TENSOR_STATS.index(name)] = join.reduce(np.where(counted, values, 0 if join is np.add else np.nan), 0)
    return whole
