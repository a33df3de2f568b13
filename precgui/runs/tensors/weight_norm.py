"""The L2 norm of all weights over the steps at which they were measured, from the record of their statistics."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from precgui.events import TENSOR_STATS, TensorStats
from precgui.runs.growable import GrowableArray, Values
from precgui.runs.tensors.record import TensorHistory, stats_of

_L2, _COUNT = TENSOR_STATS.index("l2"), TENSOR_STATS.index("count")
_MOST_ROWS = 4000  # that are read of a file; of more, evenly many
_AT_ONCE = 256


class WeightNorms:
    """Grows with a run, from its events or from its file. Norms are of what is finite."""

    def __init__(self) -> None:
        self._step, self._norm, self._tensors = GrowableArray(), GrowableArray(), GrowableArray()
        self._read, self._every = 0, 0  # rows of a file
        self._whole_step, self._whole_norm = GrowableArray(), GrowableArray()  # of rows that hold all weights
        self._joined, self._most = 0, 0.0  # rows that were looked at for these, and the weights of one that holds all

    def snapshot(self) -> WeightNorms:
        """The norms so far; what comes later does not change it."""
        copied = copy.copy(self)
        copied._step, copied._norm, copied._tensors = (copy.copy(c) for c in (self._step, self._norm, self._tensors))
        copied._join_anew()
        return copied

    def extend(self, events: Iterable[TensorStats]) -> None:
        """Take in the events of weights."""
        for event in events:
            self._add(np.array([event.step]), stats_of(event)[None])

    def read(self, history: TensorHistory) -> None:
        """Take in what a file has in addition, shape (rows, tensors, TENSOR_STATS)."""
        self._every = self._every or -(-len(history) // _MOST_ROWS)
        places = np.arange(self._read, len(history), max(self._every, 1))
        for part in np.split(places, range(_AT_ONCE, len(places), _AT_ONCE)):
            if len(part):
                steps, stats = history.written(part)
                self._add(steps, stats)
                self._read = int(part[-1]) + max(self._every, 1)

    def series(self) -> tuple[Values, Values]:
        """(steps, norms) in the order of the steps, without rows that hold a part of the weights only."""
        step, norm, tensors = (column.view[self._joined :] for column in (self._step, self._norm, self._tensors))
        last = self._whole_step.view[-1] if len(self._whole_step) else -np.inf
        if tensors.max(initial=0) > self._most or (np.diff(step, prepend=last) <= 0).any():
            self._join_anew()
            step, norm, tensors = self._step.view, self._norm.view, self._tensors.view
            self._most = tensors.max(initial=0)
        whole = tensors == self._most
        steps, first = np.unique(step[whole], return_index=True)
        self._whole_step.append(steps)
        self._whole_norm.append(norm[whole][first])
        self._joined = len(self._step)
        return self._whole_step.view, self._whole_norm.view

    def _join_anew(self) -> None:
        self._whole_step, self._whole_norm, self._joined, self._most = GrowableArray(), GrowableArray(), 0, 0.0

    def _add(self, steps: NDArray[np.int64], stats: NDArray[np.float64]) -> None:
        rows = min(len(steps), len(stats))  # a damaged file may have lost some
        measured = stats[:rows, :, _COUNT] > 0
        with np.errstate(all="ignore"):
            squares = np.where(measured, stats[:rows, :, _L2], 0.0) ** 2
            self._norm.append(np.sqrt(np.nansum(squares, 1)))
        self._step.append(steps[:rows])
        self._tensors.append(measured.sum(1))
