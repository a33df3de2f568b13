"""Statistics of tensors of a live run, in memory that stays bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.events import EXPONENT_BINS, TENSOR_STATS, TensorStats
from precgui.runs.overview import Overview
from precgui.runs.tensors import Names, TensorRecord, tensor_rows

MOST_BYTES = 48 << 20  # of each kind


class LiveTensors:
    """The rows of one kind. When they fill MOST_BYTES every second one is forgotten, but for the latest.

    The file keeps all, and so does `overview`, added up; `thinned` says which share of the rows is held here as they
    were: 1, 1/2, 1/4 ...
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._rows: list[tuple[int, dict[str, NDArray[Any]]]] = []  # each with its number among all that came
        self._bytes = 0
        self._take = 1
        self._came = 0
        self.overview = Overview()

    @property
    def thinned(self) -> float:
        return 1 / self._take

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names.places)

    def __len__(self) -> int:
        return len(self._rows)

    def extend(self, events: Sequence[TensorStats]) -> None:
        for event in events:
            self._came += 1
            row = tensor_rows([event], self._names)
            self.overview.add(row["step"], row["stats"], row["exponents"], row["stride"])
            if self._came % self._take == 0:
                self._rows.append((self._came, row))
                self._bytes += sum(column.nbytes for column in row.values())
        if self._bytes > MOST_BYTES and len(self._rows) > 2:
            self._take *= 2
            self._rows = [(number, row) for number, row in self._rows if number % self._take == 0]
            self._bytes = sum(column.nbytes for _, row in self._rows for column in row.values())

    def read(self, column: str, start: int, stop: int) -> NDArray[Any]:
        """Rows of a column, as wide as the widest of them."""
        return self.pick(column, range(len(self._rows))[start:stop])

    def pick(self, column: str, places: Sequence[int]) -> NDArray[Any]:
        rows = [self._rows[place][1][column] for place in places]
        if column == "step":
            return np.concatenate(rows) if rows else np.empty(0, np.int64)
        inner = {"stride": (), "stats": (len(TENSOR_STATS),), "exponents": (EXPONENT_BINS,)}[column]
        tensors = max((row.shape[1] for row in rows), default=0)
        whole = np.zeros((len(rows), tensors, *inner), rows[0].dtype if rows else np.uint32)
        for place, row in enumerate(rows):
            whole[place, : row.shape[1]] = row[0]
        return whole


def records(tables: dict[str, LiveTensors]) -> dict[str, TensorRecord]:
    """A record for each kind of which something has come."""
    return {kind: TensorRecord(kind, table, len(table)) for kind, table in tables.items() if len(table)}
