"""Smoothing of curves: the mean of the last points, drawn over the recorded ones, which stay as a faint line."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QWidget

from precgui.words import _

WINDOWS = (1, 5, 20, 100)  # points; 1: none


class SmoothingChoice(QComboBox):
    """`chosen(points)`: over how many points a plot is to average."""

    chosen = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        for points in WINDOWS:
            self.addItem(_("Mean of {points}").format(points=points) if points > 1 else _("Not smoothed"), points)
        self.setAccessibleName(_("Smoothing"))
        self.setToolTip(_("Draw the mean of the last points of each curve; what was recorded stays as a faint line"))
        self.currentIndexChanged.connect(lambda place: self.chosen.emit(self.itemData(place)))


def trailing_mean(values: NDArray[np.float64], points: int) -> NDArray[np.float64]:
    """The mean of each value with the `points` - 1 before it, fewer at the start, over those that are finite.

    NaN where the value itself is not finite, so that a gap stays a gap. Each sum is made of the values of its window
    alone: a running sum would carry the rounding error of one huge value on to the end.
    """
    finite = np.isfinite(values)
    sums = _window_sums(np.where(finite, values, 0.0), points)
    counts = _window_sums(finite.astype(np.float64), points)
    return np.where(finite, sums / np.maximum(counts, 1.0), np.nan)


def _window_sums(values: NDArray[np.float64], points: int) -> NDArray[np.float64]:
    """Each window is the end of one block of `points` values and the start of the next: two partial sums."""
    count = len(values)
    blocks = np.zeros((count // points + 2, points))
    blocks.reshape(-1)[points - 1 : points - 1 + count] = values
    starts = blocks.cumsum(axis=1).reshape(-1)
    ends = blocks[:, ::-1].cumsum(axis=1)[:, ::-1].reshape(-1)
    first = np.arange(count)
    last = first + points - 1
    return np.where(first % points == 0, starts[last], ends[first] + starts[last])
