"""Marks for what a line cannot show: NaN and Inf at the top edge, events in their rows; never two in one pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtGui import QColor, QPen

from precgui.events import Incident
from precgui.runs.run import Axis, Run

SYMBOL_PX = 10
NAN, PLUS_INF, MINUS_INF = "x", "t1", "t"


@dataclass(slots=True)
class Track:
    """The incidents of a run so far, with their places, taken over as they come."""

    run: Run
    incidents: list[Incident] = field(default_factory=list)
    _step: list[float] = field(default_factory=list)
    _time_s: list[float] = field(default_factory=list)
    _kinds: list[str] = field(default_factory=list)

    def pull(self) -> bool:
        """Take over new incidents. True when there were some."""
        fresh = self.run.events()[len(self.incidents) :]
        self.incidents += fresh
        self._step += [float(incident.step) for incident in fresh]
        self._time_s += [incident.time_s for incident in fresh]
        self._kinds += [incident.kind for incident in fresh]
        return bool(fresh)

    def places(self, over: Axis) -> NDArray[np.float64]:
        return np.array(self._step if over == "step" else self._time_s, np.float64)

    def of_kind(self, kinds: Sequence[str]) -> NDArray[np.intp]:
        """The indices of the incidents of these kinds, in the order of the run."""
        return np.flatnonzero(np.isin(self._kinds, kinds)) if self._kinds else np.empty(0, np.intp)


def one_per_pixel(x: NDArray[np.float64], x0: float, x1: float, pixels: int) -> NDArray[np.intp]:
    """The indices of the x in view, at most one for each pixel of the width."""
    inside = np.flatnonzero((x >= x0) & (x <= x1))
    if len(inside) <= 1 or x1 <= x0:
        return inside
    columns = ((x[inside] - x0) / (x1 - x0) * max(pixels, 1)).astype(np.int64)
    return inside[np.unique(columns, return_index=True)[1]]


def symbol_of(value: float) -> str:
    """The mark of a value that cannot be drawn: a cross for NaN, a triangle for an infinity."""
    if np.isnan(value):
        return NAN
    return PLUS_INF if value > 0 else MINUS_INF


def scatter(size: int = SYMBOL_PX) -> pg.ScatterPlotItem:
    """An empty set of marks, drawn above the lines."""
    made = pg.ScatterPlotItem(size=size, pxMode=True)
    made.setZValue(10.0)
    return made


def paint(marks: pg.ScatterPlotItem, colour: str, edge: str) -> None:
    """Give marks the colour of their run, with a thin edge that lifts them off the lines beneath."""
    marks.setBrush(QColor(colour))
    pen = QPen(QColor(edge), 1.0)
    pen.setCosmetic(True)
    marks.setPen(pen)
