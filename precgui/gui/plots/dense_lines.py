"""Many lines of few colours as one picture: in each pixel column the parts that lines of a colour cover, merged.

A line that oscillates across its column costs as many pixels as it is high, so a hundred of them cost more than a
frame. Parts that overlap are painted once; what is painted covers the same columns as the lines themselves. Lines with
the same x, such as the losses of runs of one study, are treated as one matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from pyqtgraph.Qt.internals import PrimitiveArray
from PySide6.QtCore import QLineF, QRectF
from PySide6.QtGui import QColor, QPainter, QPen

DENSE_FROM = 20  # lines in a plot; fewer are drawn one by one, with smooth edges
DENSE_RAW_PER_PIXEL = 16  # points for each pixel column up to which a line is drawn from every recorded one
_MOST_ROUNDS = 32  # points of a column up to which all columns are reduced together
Floats = NDArray[np.float64]


class DenseLine(NamedTuple):
    """A polyline; x ascends, and a NaN in y interrupts it. `dash`: lengths of dashes and gaps in turn, in pixels."""

    colour: str
    dash: tuple[float, ...]
    x: Floats
    y: Floats


def column_extents(x: Floats, y: Floats, borders: Floats) -> tuple[Floats, Floats]:
    """The smallest and largest y of polylines between neighbours of `borders`; NaN where one has no part.

    x ascends, y has shape (points, lines); a NaN in y interrupts its line. Both results have shape (columns, lines),
    for one border more than columns.
    """
    if not len(x):
        empty = np.full((len(borders) - 1, y.shape[1]), np.nan)
        return empty, empty.copy()
    crossed = _at_borders(x, y, borders)
    low, high = np.fmin(crossed[:-1], crossed[1:]), np.fmax(crossed[:-1], crossed[1:])
    starts = x.searchsorted(borders)
    counts = np.diff(starts)
    filled = np.flatnonzero(counts)
    if not len(filled):
        return low, high
    first, last = starts[filled], starts[filled + 1] - 1
    if int(counts.max()) <= _MOST_ROUNDS:
        least = y[first]
        most = least
        for offset in range(1, int(counts.max())):
            values = y[np.minimum(first + offset, last)]
            least, most = np.fmin(least, values), np.fmax(most, values)
    else:
        least = np.fmin.reduceat(y[: starts[-1]], first, axis=0)
        most = np.fmax.reduceat(y[: starts[-1]], first, axis=0)
    low[filled] = np.fmin(low[filled], least)
    high[filled] = np.fmax(high[filled], most)
    return low, high


def _at_borders(x: Floats, y: Floats, borders: Floats) -> Floats:
    """y of shape (points, lines) interpolated at the borders, of shape (borders, lines); NaN outside of the lines."""
    before = np.clip(x.searchsorted(borders, "right") - 1, 0, max(len(x) - 2, 0))
    after = np.minimum(before + 1, len(x) - 1)
    width = x[after] - x[before]
    share = np.divide(borders - x[before], width, out=np.zeros(len(borders)), where=width > 0)[:, None]
    start = y[before]
    crossed: Floats = start + share * (y[after] - start)
    crossed[(borders < x[0]) | (borders > x[-1])] = np.nan
    return crossed


def merged(low: Floats, high: Floats, gap: float) -> tuple[NDArray[np.intp], Floats, Floats]:
    """The union of extents of shape (columns, lines): column, low and high of parts more than `gap` apart."""
    order = np.argsort(low, axis=1)  # NaN last
    order += np.arange(len(low))[:, None] * low.shape[1]
    low = low.ravel()[order]
    reach = np.fmax.accumulate(high.ravel()[order], axis=1)
    begins = np.ones(low.shape, bool)
    begins[:, 1:] = low[:, 1:] > reach[:, :-1] + gap
    there = np.flatnonzero(~np.isnan(low.ravel()))
    starts = np.flatnonzero(begins.ravel()[there])
    ends = np.append(starts[1:], len(there))[: len(starts)] - 1
    return there[starts] // low.shape[1], low.ravel()[there[starts]], reach.ravel()[there[ends]]


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
        self._parts: list[tuple[QPen, PrimitiveArray]] = []
        self._bounds = QRectF()

    def show_lines(
        self,
        lines: Sequence[DenseLine],
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        size_px: tuple[int, int],
    ) -> None:
        """Draw the lines in a view of these ranges and this size."""
        borders = np.linspace(*x_range, size_px[0] + 1)
        pixel = (y_range[1] - y_range[0]) / max(size_px[1], 1)
        extents: dict[str, list[tuple[Floats, Floats]]] = {}
        for group in _of_same_x(lines):
            low, high = column_extents(group[0].x, np.stack([line.y for line in group], axis=1), borders)
            places: dict[str, list[int]] = {}
            for place, line in enumerate(group):
                low[dash_gaps(line.dash, size_px[0]), place] = np.nan
                places.setdefault(line.colour, []).append(place)
            for colour, own in places.items():
                extents.setdefault(colour, []).append((low[:, own], high[:, own]))
        centre = (borders[:-1] + borders[1:]) / 2
        self._parts = [(_pen(colour), _strokes(parts, centre, pixel)) for colour, parts in extents.items()]
        self.prepareGeometryChange()
        self._bounds = QRectF(x_range[0], y_range[0], x_range[1] - x_range[0], y_range[1] - y_range[0])
        self.update()

    def clear(self) -> None:
        """Draw nothing."""
        if self._parts:
            self.prepareGeometryChange()
            self._parts, self._bounds = [], QRectF()
            self.update()

    def boundingRect(self) -> QRectF:
        return self._bounds

    def paint(self, painter: QPainter, *_: object) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        for pen, strokes in self._parts:
            painter.setPen(pen)
            painter.drawLines(*strokes.drawargs())


def _of_same_x(lines: Sequence[DenseLine]) -> list[list[DenseLine]]:
    groups: list[list[DenseLine]] = []
    for line in lines:
        x = groups[-1][0].x if groups else None
        if x is not None and len(x) == len(line.x) and (x == line.x).all():
            groups[-1].append(line)
        else:
            groups.append([line])
    return groups


def _strokes(extents: Sequence[tuple[Floats, Floats]], centre: Floats, pixel: float) -> PrimitiveArray:
    """One vertical line for each part, at least a pixel high."""
    lows, highs = (np.concatenate([extent[side] for extent in extents], axis=1) for side in (0, 1))
    column, low, high = merged(lows, highs, 2 * pixel)
    strokes = PrimitiveArray(QLineF, 4)
    strokes.resize(len(column))
    ends = strokes.ndarray()
    ends[:, 0] = ends[:, 2] = centre[column]
    ends[:, 1], ends[:, 3] = low - pixel / 2, high + pixel / 2
    return strokes


def _pen(colour: str) -> QPen:
    pen = QPen(QColor(colour))
    pen.setCosmetic(True)
    pen.setWidth(1)
    return pen
