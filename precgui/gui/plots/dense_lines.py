"""Many lines of few colours as one picture: in each pixel column the parts that lines of a colour cover, merged.

A line that oscillates across its column costs as many pixels as it is high, so a hundred of them cost more than a
frame. Parts that overlap are painted once; what is painted covers the same columns as the lines themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QRectF
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPen

DENSE_FROM = 20  # lines in a plot; fewer are drawn one by one, with smooth edges
Floats = NDArray[np.float64]


def column_extents(x: Floats, y: Floats, borders: Floats) -> tuple[Floats, Floats]:
    """The smallest and largest y of a polyline between neighbours of `borders`; NaN where it has no part.

    x ascends; a NaN in y interrupts the line. For n + 1 borders both results have n values.
    """
    if not len(x):
        empty = np.full(len(borders) - 1, np.nan)
        return empty, empty.copy()
    crossed = np.interp(borders, x, y, left=np.nan, right=np.nan)
    low, high = np.fmin(crossed[:-1], crossed[1:]), np.fmax(crossed[:-1], crossed[1:])
    starts = np.searchsorted(x, borders)
    filled = np.flatnonzero(starts[1:] > starts[:-1])
    if len(filled):
        inside, first = y[: starts[-1]], starts[filled]
        low[filled] = np.fmin(low[filled], np.fmin.reduceat(inside, first))
        high[filled] = np.fmax(high[filled], np.fmax.reduceat(inside, first))
    return low, high


def merged(low: Floats, high: Floats, gap: float) -> tuple[NDArray[np.intp], Floats, Floats]:
    """The union of extents of shape (lines, columns): column, low and high of parts more than `gap` apart."""
    order = np.argsort(low, axis=0)  # NaN last
    low = np.take_along_axis(low, order, axis=0)
    reach = np.fmax.accumulate(np.take_along_axis(high, order, axis=0), axis=0)
    begins = np.ones(low.shape, bool)
    begins[1:] = low[1:] > reach[:-1] + gap
    columns = np.repeat(np.arange(low.shape[1]), low.shape[0])
    bottom, top = low.T.ravel(), reach.T.ravel()  # column by column
    there = np.flatnonzero(~np.isnan(bottom))
    starts = np.flatnonzero(begins.T.ravel()[there])
    ends = np.append(starts[1:], len(there))[: len(starts)] - 1
    return columns[there[starts]], bottom[there[starts]], top[there[ends]]


@lru_cache(maxsize=64)
def dash_gaps(dash: tuple[float, ...], columns: int) -> NDArray[np.intp]:
    """The columns that lie in the gaps of a dash pattern (lengths in pixels, of dashes and gaps in turn)."""
    if not dash:
        return np.empty(0, np.intp)
    gaps = np.searchsorted(np.cumsum(dash), np.arange(columns) % sum(dash), "right") % 2 == 1
    return np.flatnonzero(gaps)


class DenseLines(pg.GraphicsObject):  # type: ignore[misc]  # pyqtgraph is untyped
    """Draws extents in the coordinates of the plot, colour by colour."""

    def __init__(self) -> None:
        super().__init__()
        self._paths: list[tuple[QPen, QPainterPath]] = []
        self._bounds = QRectF()

    def show_lines(
        self,
        lines: Sequence[tuple[str, tuple[float, ...], Floats, Floats]],
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        size_px: tuple[int, int],
    ) -> None:
        """Draw lines of (colour, dash, x, y) in a view of these ranges and this size."""
        borders = np.linspace(*x_range, size_px[0] + 1)
        pixel = (y_range[1] - y_range[0]) / max(size_px[1], 1)
        groups: dict[str, list[tuple[Floats, Floats]]] = {}
        for colour, dash, x, y in lines:
            low, high = column_extents(x, y, borders)
            low[dash_gaps(dash, size_px[0])] = np.nan
            groups.setdefault(colour, []).append((low, high))
        self._paths = [(_pen(colour), _path(extents, borders, pixel)) for colour, extents in groups.items()]
        self.prepareGeometryChange()
        self._bounds = QRectF(x_range[0], y_range[0], x_range[1] - x_range[0], y_range[1] - y_range[0])
        self.update()

    def clear(self) -> None:
        """Draw nothing."""
        if self._paths:
            self.prepareGeometryChange()
            self._paths, self._bounds = [], QRectF()
            self.update()

    def boundingRect(self) -> QRectF:
        return self._bounds

    def paint(self, painter: QPainter, *_: object) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        for pen, path in self._paths:
            painter.setPen(pen)
            painter.drawPath(path)


def _path(extents: Sequence[tuple[Floats, Floats]], borders: Floats, pixel: float) -> QPainterPath:
    """One vertical line for each part, at least a pixel high."""
    lows, highs = (np.stack([extent[side] for extent in extents]) for side in (0, 1))
    column, low, high = merged(lows, highs, 2 * pixel)
    centre = (borders[:-1] + borders[1:]) / 2
    x = np.repeat(centre[column], 2)
    y = np.empty(2 * len(column))
    y[0::2], y[1::2] = low - pixel / 2, high + pixel / 2
    path: QPainterPath = pg.arrayToQPath(x, y, connect="pairs")
    return path


def _pen(colour: str) -> QPen:
    pen = QPen(QColor(colour))
    pen.setCosmetic(True)
    pen.setWidth(1)
    return pen
