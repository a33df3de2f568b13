"""Statistics and exponent histograms of tensors: events into rows, and rows read as far as they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from precgui.events import EXPONENT_BINS, TENSOR_KINDS, TENSOR_STATS, TensorStats
from precgui.runs.file.contents import RunFileView, decoded
from precgui.runs.tensors.overview import Overview

Rows = Mapping[str, NDArray[Any]]


def stats_of(event: TensorStats) -> NDArray[np.float64]:
    """Shape (tensors, TENSOR_STATS), read-only."""
    return np.frombuffer(event.stats, "<f8").reshape(-1, len(TENSOR_STATS))


def exponents_of(event: TensorStats) -> NDArray[np.uint32]:
    """Shape (tensors, EXPONENT_BINS), read-only."""
    return np.frombuffer(event.exponents, "<u4").reshape(-1, EXPONENT_BINS)


class Names:
    """The tensor axis: every recorded name in the order of arrival, as far as there is room."""

    def __init__(self, room: int = 0) -> None:
        """`room` is how many names the axis takes, 0 for any number."""
        self.places: dict[str, int] = {}
        self.left_out: dict[str, None] = {}  # in the order in which they came
        self._room = room
        self._axes: dict[tuple[str, ...], tuple[slice | NDArray[np.intp], NDArray[np.intp]]] = {}

    def snapshot(self) -> Names:
        """The names so far; those that come later are not in it."""
        copied = Names(self._room)
        copied.places, copied.left_out = dict(self.places), dict(self.left_out)
        return copied

    def axis(self, names: tuple[str, ...]) -> tuple[slice | NDArray[np.intp], NDArray[np.intp]]:
        """Which of these names have a place on the axis, and where; new ones are put at its end."""
        if names not in self._axes:
            for name in names:
                if name in self.places or not self._room or len(self.places) < self._room:
                    self.places.setdefault(name, len(self.places))
                else:
                    self.left_out[name] = None
            kept = [index for index, name in enumerate(names) if name in self.places]
            places = [self.places[names[index]] for index in kept]
            all_fit = len(kept) == len(names)
            self._axes[names] = slice(None) if all_fit else np.array(kept, np.intp), np.array(places, np.intp)
        return self._axes[names]


class Dtypes:
    """The dtype of each tensor of each kind, from the events."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], str] = {}
        self._latest: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def new_rows(self, events: Sequence[TensorStats], names: Names) -> dict[str, list[Any]]:
        """Rows of `/tensors/dtypes` for tensors that are new or have changed their dtype, as lists; {} for none."""
        rows: dict[str, list[Any]] = {"step": [], "kind": [], "tensor": [], "dtype": []}
        for event in events:
            given = event.names, event.dtypes
            if not event.dtypes or self._latest.get(event.kind) == given:
                continue
            self._latest[event.kind] = given
            kept, places = names.axis(event.names)
            for place, dtype in zip(places.tolist(), np.array(event.dtypes, object)[kept], strict=True):
                if self._known.get((event.kind, place)) != dtype:
                    self._known[event.kind, place] = dtype
                    for column, value in zip(rows.values(), (event.step, event.kind, place, dtype), strict=True):
                        column.append(value)
        return rows if rows["step"] else {}


def tensor_rows(events: Sequence[TensorStats], names: Names) -> dict[str, NDArray[Any]]:
    """Events of one kind as columns of its table; tensors that an event does not name have a count of 0."""
    axes = [names.axis(event.names) for event in events]
    tensors = max(int(places.max(initial=-1)) for _, places in axes) + 1
    rows = {
        "step": np.array([event.step for event in events], "<i8"),
        "stride": np.zeros((len(events), tensors), "<u4"),
        "stats": np.zeros((len(events), tensors, len(TENSOR_STATS)), "<f4"),
        "exponents": np.zeros((len(events), tensors, EXPONENT_BINS), "<u4"),
    }
    with np.errstate(over="ignore"):  # an l2 norm may be beyond FP32
        for row, (event, (kept, places)) in enumerate(zip(events, axes, strict=True)):
            rows["stride"][row, places] = np.array(event.strides)[kept]
            rows["stats"][row, places] = stats_of(event)[kept]
            rows["exponents"][row, places] = exponents_of(event)[kept]
    return rows


class StatisticsSource(Protocol):
    """Where the rows of a record lie. Rows may be out of order: the black box is written after the fact."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def dtypes(self) -> Mapping[str, str]:
        """The latest dtype of each tensor by name; empty where none is recorded."""
        ...

    @property
    def overview(self) -> Overview | None:
        """All rows, where they were added up as they came; else None."""
        ...

    def __len__(self) -> int: ...
    def read(self, column: str, start: int, stop: int) -> NDArray[Any]: ...
    def pick(self, column: str, rows: Sequence[int]) -> NDArray[Any]: ...


@dataclass(frozen=True)
class TensorHistory:
    """The record of one kind of tensor (one of TENSOR_KINDS), n rows in the order of the steps.

    The tensor axis is that of `names`; a tensor whose statistic `count` is 0 in a row was not recorded in it.
    """

    kind: str
    _source: StatisticsSource
    _rows: int

    @property
    def names(self) -> tuple[str, ...]:
        return self._source.names

    def __len__(self) -> int:
        return self._rows

    def dtype(self, name: str) -> str | None:
        """The dtype of a tensor of this kind, a name of a format where it has one (`bf16`); None: not recorded."""
        return self._source.dtypes.get(name)

    @property
    def overview(self) -> Overview | None:
        """All rows added up, also those that are no longer held; None where `add_to` has to read them."""
        return self._source.overview

    def written_steps(self) -> NDArray[np.int64]:
        """The step of each row in the order in which they were written, shape (n,)."""
        return self._steps

    def add_to(self, overview: Overview, places: Sequence[int]) -> NDArray[np.bool_]:
        """Read rows, counted in the order in which they were written, and add them; which had anything in them."""
        taken = np.zeros(len(places), bool)
        known = [place for place in places if place < len(self._steps)]  # a damaged file may have lost some
        if known:
            stats, exponents, strides = (self._source.pick(name, known) for name in ("stats", "exponents", "stride"))
            taken[np.isin(places, known)] = overview.add(self._steps[known], stats, exponents, strides)
        return taken

    def written(self, places: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps and statistics (rows, tensors, TENSOR_STATS) of rows, counted as they were written."""
        known = places[places < len(self._steps)]  # a damaged file may have lost some
        return self._steps[known], self._for_all(self._source.pick("stats", known.tolist()).astype(np.float64), 0)

    def steps(self) -> NDArray[np.int64]:
        """The step of each row, shape (n,)."""
        return self._steps[self._order]

    def strides(self, start: int = 0, stop: int | None = None) -> NDArray[np.int64]:
        """Shape (rows, tensors): 1 for all elements, k for one of k blocks, 0 when not recorded."""
        return self._for_all(self._read("stride", start, stop).astype(np.int64, copy=False), 1)

    def stats(self, start: int = 0, stop: int | None = None, every: int = 1) -> NDArray[np.float64]:
        """Statistics of rows start..stop, or of each `every`-th of them, shape (rows, tensors, TENSOR_STATS)."""
        return self._for_all(self._read("stats", start, stop, every).astype(np.float64), 0)

    def at(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Statistics (rows, tensors, TENSOR_STATS) and strides (rows, tensors) of single rows, in two readings."""
        places = self._order[rows].tolist()
        stats, strides = (self._source.pick(column, places) for column in ("stats", "stride"))
        return self._for_all(stats.astype(np.float64), 0), self._for_all(strides.astype(np.int64), 1)

    def _for_all(self, rows: NDArray[Any], absent: int) -> NDArray[Any]:
        """The rows with a place for each name: a damaged file may have lost some, or have more than it names."""
        rows = rows[:, : len(self.names)]
        lost = len(self.names) - rows.shape[1]
        width = [(0, 0), (0, lost), *[(0, 0)] * (rows.ndim - 2)]
        return np.pad(rows, width, constant_values=absent) if lost else rows

    def stat(self, name: str, start: int = 0, stop: int | None = None, every: int = 1) -> NDArray[np.float64]:
        """One of TENSOR_STATS, shape (rows, tensors). Raises ValueError for another name."""
        return self.stats(start, stop, every)[:, :, TENSOR_STATS.index(name)]

    def exponents(self, start: int = 0, stop: int | None = None, every: int = 1) -> NDArray[np.uint32]:
        """Histograms of the 256 biased FP32 exponents, shape (rows, tensors, 256); bin 255 counts Inf and NaN."""
        return self._for_all(self._read("exponents", start, stop, every).astype(np.uint32, copy=False), 0)

    @cached_property
    def _steps(self) -> NDArray[np.int64]:
        return self._source.read("step", 0, len(self)).astype(np.int64, copy=False)

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        return np.argsort(self._steps, kind="stable")

    def _read(self, column: str, start: int, stop: int | None, every: int = 1) -> NDArray[Any]:
        """Rows in the order of the steps; what a damaged file has lost comes as zeros, hence as not recorded."""
        requested = self._order[slice(start, stop, every)]
        if not len(requested):
            return self._source.read(column, 0, 0)
        low, high = int(requested.min()), int(requested.max()) + 1
        if high - low == len(requested):
            return _padded(self._source.read(column, low, high), high - low)[requested - low]
        return self._source.pick(column, requested.tolist())


def _padded(rows: NDArray[Any], count: int) -> NDArray[Any]:
    if len(rows) == count:
        return rows
    return np.concatenate((rows, np.zeros((count - len(rows), *rows.shape[1:]), rows.dtype)))


@dataclass(frozen=True)
class _StoredRows:
    """Rows in a file."""

    table: str
    names: tuple[str, ...]
    contents: RunFileView
    dtypes: Mapping[str, str]

    @property
    def overview(self) -> None:
        return None

    def __len__(self) -> int:
        return self.contents.rows(self.table)

    def read(self, column: str, start: int, stop: int) -> NDArray[Any]:
        return self.contents.read(self.table, column, start, stop)

    def pick(self, column: str, rows: Sequence[int]) -> NDArray[Any]:
        return self.contents.pick(self.table, column, rows)


def tensor_records(contents: RunFileView) -> dict[str, TensorHistory]:
    """A record for each kind of which something was recorded."""
    count = contents.rows("tensors/names")
    names = tuple(decoded(name) for name in contents.read("tensors/names", "", 0, count))
    dtypes = _stored_dtypes(contents, names)
    sources = {kind: _StoredRows(f"tensors/{kind}", names, contents, dtypes[kind]) for kind in TENSOR_KINDS}
    return {kind: TensorHistory(kind, source, len(source)) for kind, source in sources.items() if len(source)}


def _stored_dtypes(contents: RunFileView, names: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Per kind the latest dtype of each tensor; empty in files of older versions."""
    results: dict[str, dict[str, str]] = {kind: {} for kind in TENSOR_KINDS}
    rows = contents.rows("tensors/dtypes")
    columns = (contents.read("tensors/dtypes", name, 0, rows) for name in ("kind", "tensor", "dtype"))
    for kind, tensor, dtype in zip(*columns, strict=False) if rows else ():
        if decoded(kind) in results and 0 <= tensor < len(names):
            results[decoded(kind)][names[tensor]] = decoded(dtype)
    return results
