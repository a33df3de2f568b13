"""Reading the record of one kind of tensors for the panel: the first picture at once, the rest piece by piece."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from precgui.runs.run import Run
from precgui.runs.tensors.grouping import Rows, one_row, whole_rows
from precgui.runs.tensors.overview import MOST_COLUMNS, Overview
from precgui.runs.tensors.record import TensorHistory

MOST_AT_ONCE = 24_000  # histograms read for the first picture, a fraction of a second
_PIECE, _ROWS = 800, 16  # histograms and rows at most read between two checks of the clock, some milliseconds
_NOT_FINITE = {"nonfinite_loss", "nonfinite_gradient", "nonfinite_activation"}


class IncrementalReader:
    """Adds up the rows of a record. `done` of them are in `rows()`, which is all of `total` in the end."""

    def __init__(self, run: Run, kind: str) -> None:
        self.run, self.kind = run, kind
        self._overview, self._borrowed = Overview(), False  # of a live run, which adds up its rows itself
        self._read = np.zeros(0, bool)
        self._spoiled: list[int] = []
        self.total = 0

    @property
    def done(self) -> int:
        return self._overview.rows

    @property
    def record(self) -> TensorHistory | None:
        return self.run.tensors().get(self.kind)

    def read_new(self) -> None:
        """Read new rows. If there are too many, read an even sample plus every row with NaN or Inf."""
        record = self.record
        if record is None:
            return
        self.total = len(record)
        if record.overview is not None:
            self._overview, self.total, self._borrowed = record.overview, record.overview.rows, True
            return
        if self._borrowed:  # the run has ended, and its rows are in its file now
            self._overview, self._borrowed = Overview(), False
        self._read[self._spoiled] = False
        self._spoiled.clear()
        self._read = np.concatenate((self._read[: self.total], np.zeros(max(self.total - len(self._read), 0), bool)))
        self._overview.expect(record.written_steps(), len(record.names))
        left = np.flatnonzero(~self._read)
        most = max(min(MOST_COLUMNS, MOST_AT_ONCE // max(len(record.names), 1)), 24)
        requested = left[:: -(-len(left) // most)] if len(left) else left
        if len(requested) < len(left):
            bad = [event.step for event in self.run.events() if event.kind in _NOT_FINITE][:most]
            reported = left[np.isin(record.written_steps()[left], bad)]
            requested = np.union1d(requested, reported[:most])
        self._take(record, requested)

    def go_on(self, seconds: float) -> bool:
        """Read for about so long; False when nothing is left."""
        record, until = self.record, time.perf_counter() + seconds
        left = np.flatnonzero(~self._read)
        if record is None or not len(left):
            return False
        piece = min(max(_PIECE // max(len(record.names), 1), 1), _ROWS)
        for start in range(0, len(left), piece):
            self._take(record, left[start : start + piece])
            if time.perf_counter() >= until:
                break
        return not self._read.all()

    def rows(self) -> Rows | None:
        """The sums so far, None when there are none."""
        record = self.record
        return whole_rows(record, self._overview) if record is not None else None

    def row_at(self, rows: Rows, step: float | None) -> Rows | None:
        """The one recorded row nearest to a step, as it is; the last one without a step."""
        record = self.record
        if record is None or not len(record):
            return None
        steps = record.steps()
        at = len(steps) - 1 if step is None else int(np.abs(steps - step).argmin())
        return one_row(record, rows, at)

    def _take(self, record: TensorHistory, places: NDArray[np.intp]) -> None:
        """Read some rows. While the run is being written, an empty one is read again later."""
        taken = record.add_to(self._overview, places.tolist())
        self._read[places] = True
        if self.run.status == "running":
            self._spoiled += places[~taken].tolist()
