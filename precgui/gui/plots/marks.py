"""Marks for what a line cannot show: NaN and Inf at the top edge, events in their rows; never two in one pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtGui import QColor, QPen

from precgui.events import Incident
from precgui.runs.run import SignalSource
from precgui.runs.signals import Axis

AXES: tuple[Axis, ...] = get_args(Axis)
SYMBOL_PX = 10
NAN, PLUS_INF, MINUS_INF = "x", "t1", "t"


class Track:
    """The incidents of a run so far, sorted by kind, taken over as they come."""

    def __init__(self, run: SignalSource) -> None:
        self._run = run
        self._count, self._complete = 0, False
        self._by_kind: dict[str, list[Incident]] = {}
        self._places: dict[tuple[str, Axis], NDArray[np.float64]] = {}

    def pull(self) -> bool:
        """Take over new incidents. True when there were some."""
        if self._complete:
            return False
        self._complete = self._run.status != "running"
        fresh = self._run.events()[self._count :]
        self._count += len(fresh)
        for incident in fresh:
            self._by_kind.setdefault(incident.kind, []).append(incident)
            for over in AXES:
                self._places.pop((incident.kind, over), None)
        return bool(fresh)

    def kinds(self) -> list[str]:
        return list(self._by_kind)

    def of_kind(self, kind: str) -> Sequence[Incident]:
        return self._by_kind.get(kind, ())

    def places(self, kind: str, over: Axis) -> NDArray[np.float64]:
        """Where the incidents of a kind lie on the x axis, in the order of the run."""
        if (kind, over) not in self._places:
            incidents = self.of_kind(kind)
            places = [float(i.step) for i in incidents] if over == "step" else [i.time_s for i in incidents]
            self._places[kind, over] = np.array(places, np.float64)
        return self._places[kind, over]


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
    item = pg.ScatterPlotItem(size=size, pxMode=True)
    item.setZValue(10.0)
    return item


def paint(marks: pg.ScatterPlotItem, colour: str, edge: str = "") -> None:
    """Give marks the colour of their run; an `edge` lifts them off the lines beneath, but hides close neighbours."""
    marks.setBrush(QColor(colour))
    pen = QPen(QColor(edge or colour), 1.0)
    pen.setCosmetic(True)
    marks.setPen(pen)
