"""A column in memory that grows at the end and is read without copying."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]

_GROWTH = 1.5
_FIRST_ROWS = 64


class GrowableArray:
    """A float64 column with amortised append. A view taken earlier stays valid and never changes."""

    __slots__ = ("_rows", "_values")

    def __init__(self) -> None:
        self._values = np.empty(0)
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def view(self) -> NDArray[np.float64]:
        """All rows so far, shape (rows,), read-only, not copied."""
        view = self._values[: self._rows]
        view.flags.writeable = False
        return view

    def reserve(self, rows: int) -> None:
        """Take room for `rows` in all; untouched room costs no memory on the usual systems."""
        if rows > len(self._values):
            values = np.empty(rows)
            values[: self._rows] = self._values[: self._rows]
            self._values = values

    def append(self, values: ArrayLike) -> None:
        added = np.asarray(values, np.float64)
        rows = self._rows + len(added)
        if rows > len(self._values):
            self.reserve(max(rows, int(len(self._values) * _GROWTH), _FIRST_ROWS))
        self._values[self._rows : rows] = added
        self._rows = rows

    def trim(self) -> None:
        """Give back the room that no row has taken: reused memory costs although it was never written here."""
        self._values = self._values[: self._rows].copy()

    def truncate(self, rows: int) -> None:
        """Drop the rows after the first `rows`."""
        self._rows = min(rows, self._rows)
