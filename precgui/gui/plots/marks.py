"""Marks for what a line cannot show: NaN and Inf at the top edge, events in their rows; never two in one pixel.

All marks of a plot are one graphics item: an item for each run would make every frame and every change of the view
dear, and take some hundred kilobytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from pyqtgraph.graphicsItems.ScatterPlotItem import drawSymbol, renderSymbol
from pyqtgraph.Qt.internals import PrimitiveArray
from PySide6.QtCore import QRectF
from PySide6.QtGui import QBrush, QColor, QPainter, QPen, QPixmap

from precgui.events import Incident
from precgui.runs.growable import GrowableArray
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
        self._places: dict[tuple[str, Axis], GrowableArray] = {}
        self._astray: set[tuple[str, Axis]] = set()  # of which a place lies before an earlier one

    def pull(self) -> bool:
        """Take over new incidents. True when there were some."""
        if self._complete:
            return False
        self._complete = self._run.status != "running"
        fresh = self._run.events(since=self._count)
        self._count += len(fresh)
        of: defaultdict[str, list[Incident]] = defaultdict(list)
        for incident in fresh:
            of[incident.kind].append(incident)
        for kind, own in of.items():
            self._by_kind.setdefault(kind, []).extend(own)
            for over in AXES:
                self._add_places(kind, over, [float(getattr(incident, over)) for incident in own])
        return bool(fresh)

    def _add_places(self, kind: str, over: Axis, fresh: Sequence[float]) -> None:
        places = self._places.setdefault((kind, over), GrowableArray())
        before = len(places)
        places.append(fresh)
        if not (np.diff(places.view[max(before - 1, 0) :]) >= 0).all():
            self._astray.add((kind, over))

    def kinds(self) -> list[str]:
        return list(self._by_kind)

    def of_kind(self, kind: str) -> Sequence[Incident]:
        return self._by_kind.get(kind, ())

    def places(self, kind: str, over: Axis) -> NDArray[np.float64]:
        """Where the incidents of a kind lie on the x axis, in the order of the run."""
        return self._places[kind, over].view if (kind, over) in self._places else np.empty(0)

    def in_view(
        self, kinds: Sequence[str], over: Axis, x0: float, x1: float, pixels: int
    ) -> tuple[int, NDArray[np.float64]]:
        """How many incidents of these kinds are in view, and where they are marked: once in a pixel of the width."""
        recorded = [kind for kind in kinds if kind in self._by_kind]
        if len(recorded) == 1 and (recorded[0], over) not in self._astray:
            x = self.places(recorded[0], over)
            start, stop = x.searchsorted(x0), x.searchsorted(x1, "right")
            return int(stop - start), x[first_in_pixels(x.take, int(start), int(stop), x0, x1, pixels)]
        x = np.concatenate([np.empty(0), *(self.places(kind, over) for kind in recorded)])
        x = np.sort(x[(x >= x0) & (x <= x1)])
        return len(x), x[first_in_pixels(x.take, 0, len(x), x0, x1, pixels)]


_FEW = 16  # points a pixel up to which all of them are looked at


def first_in_pixels(
    at: Callable[[NDArray[np.integer[Any]]], NDArray[np.float64]], start: int, stop: int,
    x0: float, x1: float, pixels: int,
) -> NDArray[np.intp]:  # fmt: skip
    """Of the points `start` to `stop`, all in view, the first of each pixel of the width. `at` gives the x of points,
    which ascends."""
    pixels = max(pixels, 1)
    if stop - start <= 1 or x1 <= x0:
        return np.arange(start, stop)

    def columns(points: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        return ((at(points) - x0) / (x1 - x0) * pixels).astype(np.int64)

    if stop - start <= _FEW * pixels:
        inside = np.arange(start, stop)
        return inside[np.unique(columns(inside), return_index=True)[1]]
    wanted = np.arange(pixels + 1)  # the place x1 itself is a column of its own
    low, high = np.full(pixels + 1, start), np.full(pixels + 1, stop)
    while len(open_ := np.flatnonzero(low < high)):
        middle = (low[open_] + high[open_]) // 2
        below = columns(middle) < wanted[open_]
        low[open_] = np.where(below, middle + 1, low[open_])
        high[open_] = np.where(below, high[open_], middle)
    return np.unique(low[low < stop])


def symbol_of(value: float) -> str:
    """The mark of a value that cannot be drawn: a cross for NaN, a triangle for an infinity."""
    if np.isnan(value):
        return NAN
    return PLUS_INF if value > 0 else MINUS_INF


@dataclass(frozen=True, slots=True)
class MarkGroup:
    """Marks of one run: `name` says which (`dots`, `edge` ...). An `edge` colour lifts them off the lines beneath."""

    name: str
    key: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    symbols: str | Sequence[str]  # one for all, or one for each
    colour: str
    edge: str = ""
    size_px: int = SYMBOL_PX


_Style = tuple[str, str, str, int]  # symbol, colour, colour of the edge, pixels


class Marks(pg.GraphicsObject):  # type: ignore[misc]  # pyqtgraph is untyped
    """Draws groups of marks above the lines, in pixels of the screen; as shapes where a picture is exported."""

    def __init__(self) -> None:
        super().__init__()
        self.setZValue(10.0)
        self.groups: tuple[MarkGroup, ...] = ()
        self._parts: list[tuple[_Style, NDArray[np.float64]]] = []  # places of shape (marks, 2), in the order of runs
        self._fragments = PrimitiveArray(QPainter.PixmapFragment, 10)

    def show_groups(self, groups: Sequence[MarkGroup]) -> None:
        """Draw these marks in place of those before."""
        self.groups = tuple(group for group in groups if len(group.x))
        self._parts = []
        for group in self.groups:
            both = np.column_stack([group.x, group.y])
            for symbol in dict.fromkeys([group.symbols] if isinstance(group.symbols, str) else group.symbols):
                own = both if isinstance(group.symbols, str) else both[np.array(group.symbols) == symbol]
                self._parts.append(((symbol, group.colour, group.edge or group.colour, group.size_px), own))
        self.update()

    def boundingRect(self) -> QRectF:
        return self.viewRect() or QRectF()

    def viewTransformChanged(self) -> None:
        self.prepareGeometryChange()
        super().viewTransformChanged()

    def paint(self, painter: QPainter, option: object, widget: Any = None) -> None:
        transform, ratio = painter.transform(), widget.devicePixelRatioF() if widget is not None else 1.0
        painter.resetTransform()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for style, places in self._parts:
            mapped = pg.transformCoordinates(transform, places.T).T
            mapped = mapped[(np.abs(mapped) < _FARTHEST_PX).all(axis=1)]
            if self._exportOpts is not False:
                _draw_shapes(painter, style, mapped)
            elif len(mapped):
                stamp = _stamp(*style, ratio)
                self._fragments.resize(len(mapped))
                parts = self._fragments.ndarray()
                parts[:, 0:2] = mapped
                parts[:, 2:] = [0.0, 0.0, stamp.width(), stamp.height(), 1 / ratio, 1 / ratio, 0.0, 1.0]
                painter.drawPixmapFragments(*self._fragments.drawargs(), stamp)  # type: ignore[call-arg]


_FARTHEST_PX = 2.0**15  # from the corner of the plot


def _draw_shapes(painter: QPainter, style: _Style, places: NDArray[np.float64]) -> None:
    symbol, colour, edge, size_px = style
    for x, y in places.tolist():
        painter.resetTransform()
        painter.translate(x, y)
        drawSymbol(painter, symbol, size_px, _edge_pen(edge), QBrush(QColor(colour)))


@lru_cache(maxsize=256)
def _stamp(symbol: str, colour: str, edge: str, size_px: int, ratio: float) -> QPixmap:
    """The picture of a mark."""
    return QPixmap.fromImage(renderSymbol(symbol, size_px, _edge_pen(edge), QBrush(QColor(colour)), dpr=ratio))


def _edge_pen(colour: str) -> QPen:
    pen = QPen(QColor(colour), 1.0)
    pen.setCosmetic(True)
    return pen


def scatter(size: int = SYMBOL_PX) -> pg.ScatterPlotItem:
    """An empty set of marks, drawn above the lines."""
    item = pg.ScatterPlotItem(size=size, pxMode=True)
    item.setZValue(10.0)
    return item


def paint(marks: pg.ScatterPlotItem, colour: str) -> None:
    """Give marks a colour."""
    marks.setBrush(QColor(colour))
    marks.setPen(_edge_pen(colour))
