"""Statistics and exponent histograms of tensors, read from a run file as far as they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.runs.contents import Contents, decoded
from precgui.runs.schema import TENSOR_KINDS, TENSOR_STATS


@dataclass(frozen=True)
class TensorRecord:
    """What was recorded of one kind of tensor (one of TENSOR_KINDS), n times.

    The tensor axis is that of `names`; a tensor whose statistic `count` is 0 in a row was not recorded in it.
    """

    kind: str
    names: tuple[str, ...]
    _contents: Contents

    @property
    def table(self) -> str:
        return f"tensors/{self.kind}"

    def __len__(self) -> int:
        return self._contents.rows(self.table)

    def steps(self) -> NDArray[np.int64]:
        """The step of each row, shape (n,)."""
        return self._contents.read(self.table, "step", 0, len(self)).astype(np.int64)

    def strides(self) -> NDArray[np.int64]:
        """Of each row, shape (n,): 1 when all elements were looked at, k when each k-th."""
        return self._contents.read(self.table, "stride", 0, len(self)).astype(np.int64)

    def stats(self, start: int = 0, stop: int | None = None) -> NDArray[np.float64]:
        """Statistics of rows start..stop, shape (rows, tensors, TENSOR_STATS)."""
        return self._read("stats", start, stop).astype(np.float64)

    def stat(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.float64]:
        """One of TENSOR_STATS, shape (rows, tensors). Raises ValueError for another name."""
        return self.stats(start, stop)[:, :, TENSOR_STATS.index(name)]

    def exponents(self, start: int = 0, stop: int | None = None) -> NDArray[np.uint32]:
        """Histograms of the 256 biased FP32 exponents, shape (rows, tensors, 256); bin 255 counts Inf and NaN."""
        return self._read("exponents", start, stop).astype(np.uint32)

    def _read(self, column: str, start: int, stop: int | None) -> NDArray[Any]:
        first, last, _ = slice(start, stop).indices(len(self))
        return self._contents.read(self.table, column, first, max(first, last))


def tensor_records(contents: Contents) -> dict[str, TensorRecord]:
    """A record for each kind of which something was recorded."""
    count = contents.rows("tensors/names")
    names = tuple(decoded(name) for name in contents.read("tensors/names", "", 0, count))
    records = (TensorRecord(kind, names, contents) for kind in TENSOR_KINDS)
    return {record.kind: record for record in records if len(record)}
