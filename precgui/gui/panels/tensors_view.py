"""What the Tensors panel draws from: rows of one kind of tensor of one run, thinned to what a plot can show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precgui.events import TENSOR_STATS
from precgui.runs.run import Run
from precgui.runs.whatif import WhatIf

MOST_ROWS = 240  # read from a record: a column of the picture is then two to four pixels wide
ALL = "All together"


@dataclass(frozen=True)
class View:
    """Rows of a record. `names` begins with ALL, the sum over the tensors; the arrays have the same tensor axis.

    `steps` (rows,), `exponents` (rows, tensors, 256), `stats` (rows, tensors, TENSOR_STATS). `every` says that each
    `every`-th row of the record was read.
    """

    names: tuple[str, ...]
    steps: NDArray[np.int64]
    exponents: NDArray[np.uint32]
    stats: NDArray[np.float64]
    every: int

    def what_if(self) -> WhatIf:
        """All rows together, tensor by tensor."""
        return WhatIf(self.exponents.sum(0, dtype=np.float64), _over_time(self.stats))

    def stat(self, name: str) -> NDArray[np.float64]:
        """One statistic, shape (rows, tensors), NaN where a tensor was not recorded."""
        values: NDArray[np.float64] = self.stats[:, :, TENSOR_STATS.index(name)]
        return np.where(self.stats[:, :, TENSOR_STATS.index("count")] > 0, values, np.nan)


def read_view(run: Run, kind: str) -> View | None:
    """The rows of one kind of a run, None when there are none."""
    record = run.tensors().get(kind)
    if record is None:
        return None
    every = -(-len(record) // MOST_ROWS)
    stats, exponents = record.stats(every=every), record.exponents(every=every)
    rows = min(len(stats), len(exponents))
    tensors = min(stats.shape[1], exponents.shape[1])  # which differ in a damaged file only
    stats, exponents = stats[:rows, :tensors], exponents[:rows, :tensors]
    seen = np.flatnonzero((stats[:, :, TENSOR_STATS.index("count")] > 0).any(0)) if rows else np.empty(0, int)
    if not len(seen):
        return None
    names = tuple(record.names[place] if place < len(record.names) else f"tensor {place}" for place in seen)
    stats, exponents = stats[:, seen], exponents[:, seen]
    return View(
        (ALL, *names),
        record.steps()[::every][:rows],
        np.concatenate((exponents.sum(1, keepdims=True, dtype=np.uint32), exponents), 1),
        np.concatenate((_together(stats), stats), 1),
        every,
    )


@np.errstate(all="ignore")
def _together(stats: NDArray[np.float64]) -> NDArray[np.float64]:
    """The tensors of each row as one, shape (rows, 1, TENSOR_STATS)."""
    count = np.nan_to_num(stats[:, :, TENSOR_STATS.index("count")])
    whole = np.full((len(stats), 1, stats.shape[2]), np.nan)
    for place, name in enumerate(TENSOR_STATS):
        values = np.where(count > 0, stats[:, :, place], np.nan)
        if name in ("zeros", "nan", "pos_inf", "neg_inf", "count"):
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
    """What `WhatIf` needs of all rows: largest magnitude and zeros, shape (tensors, TENSOR_STATS)."""
    whole = np.zeros(stats.shape[1:])
    counted = stats[:, :, TENSOR_STATS.index("count")] > 0
    for name, join in (("amax", np.fmax), ("zeros", np.add)):
        values = stats[:, :, TENSOR_STATS.index(name)]
        whole[:, TENSOR_STATS.index(name)] = join.reduce(np.where(counted, values, 0 if join is np.add else np.nan), 0)
    return whole
