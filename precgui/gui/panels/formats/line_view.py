"""The picture of the number line: one row for each format, from all decades down to single values."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent

from precgui.formats.arrays import Floats
from precgui.formats.line import midpoints, stretch
from precgui.formats.real import ExtendedReal, to_float
from precgui.formats.registry import get
from precgui.formats.report import report
from precgui.formats.text import grouped
from precgui.gui.format_colours import format_colour
from precgui.gui.panels.formats.plotting import Plot, brush, pen
from precgui.gui.theme import themes
from precgui.words import L_, _, n_

BINADES, LINEAR = L_("Powers of two"), L_("Linear")
LIMITS = {BINADES: (-1080.0, 1030.0), LINEAR: (-8e307, 8e307)}  # the width of all is still a double
START = {BINADES: (-30.0, 20.0), LINEAR: (-8.0, 8.0)}
FINEST = 1e-12  # of the numbers in view, the least width of the view
LEAST_WIDTH = 1e-300
MOST_INTERVALS = 60
ROOM_FOR_WORDS = 20  # pixels above each row


class LineView(Plot):
    """Magnitudes over powers of two, or signed values over a linear axis; keys zoom and move."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = BINADES
        self.real: ExtendedReal | None = None
        self._half = 0.3  # of the height of a bar, in rows
        self.setMouseEnabled(x=True, y=False)
        self.setAccessibleName(_("Number line"))
        self.getPlotItem().getAxis("left").setWidth(84)
        self.sigXRangeChanged.connect(lambda _, ends: self._limit_zoom(*ends))

    @property
    def logarithmic(self) -> bool:
        return self.mode == BINADES

    @property
    def value(self) -> float | None:
        """The number on the line; None for NaN and infinity."""
        return to_float(self.real) if self.real is not None and self.real.is_finite else None

    # Looking around

    def zoom(self, factor: float) -> None:
        low, high = self.viewRange()[0]
        middle = self._place(self.value) if self.value is not None else None
        if middle is None or not low <= middle <= high:
            middle = (low + high) / 2
        self.show_span(middle - (middle - low) * factor, middle + (high - middle) * factor)

    def show_all(self) -> None:
        self.setLimits(xMin=LIMITS[self.mode][0], xMax=LIMITS[self.mode][1])
        words = _("magnitude, as a power of two") if self.logarithmic else _("value")
        self.getPlotItem().setLabels(bottom=words)
        self.show_span(*START[self.mode])

    def show_span(self, low: float, high: float) -> None:
        """Show this stretch of the axis, moved to where it lies within the limits."""
        first, last = LIMITS[self.mode]
        width = min(high - low, last - first)
        begin = min(max(low, first), last - width)
        if width > 0:
            self._limit_zoom(begin, begin + width)
            self.setXRange(begin, begin + width, padding=0)

    def _limit_zoom(self, low: float, high: float) -> None:
        """Limit the zoom to the resolution of doubles: a view at 1e-45 may be narrower than one at 1."""
        reach = 1.0 if self.logarithmic else max(abs(low), abs(high))
        least = max(reach * FINEST, LEAST_WIDTH)
        if self.getViewBox().state["limits"]["xRange"][0] != least:
            self.setLimits(minXRange=least)

    def show_number(self) -> None:
        """Zoom to the number until the values of the coarsest format around it are apart."""
        value = self.value
        middle = None if value is None else self._place(value)
        if value is None or middle is None:
            self.show_all()
        elif self.logarithmic:
            self.show_span(middle - 1.5, middle + 1.5)
        else:
            width = max(abs(value) / 4, 1e-300)
            self.show_span(value - width, value + width)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        low, high = self.viewRange()[0]
        step = (high - low) / 10
        match event.key():
            case Qt.Key.Key_Left | Qt.Key.Key_Right:
                move = -step if event.key() == Qt.Key.Key_Left else step
                self.show_span(low + move, high + move)
            case Qt.Key.Key_Plus | Qt.Key.Key_Equal:
                self.zoom(0.5)
            case Qt.Key.Key_Minus:
                self.zoom(2.0)
            case Qt.Key.Key_Home:
                self.show_all()
            case _:
                super().keyPressEvent(event)

    # Drawing

    def _place(self, value: float) -> float | None:
        """Where a value stands on the axis; None for one that has no place on it."""
        if not self.logarithmic:
            return value
        return math.log2(abs(value)) if value else None

    def draw(self, names: list[str], reported: Mapping[str, str]) -> None:
        """The rows of these formats from top to bottom, with what is `reported` of each."""
        item = self.getPlotItem()
        item.clear()
        item.getAxis("left").setTicks([[(-n, name) for n, name in enumerate(names)]])
        row = max(self.getPlotItem().vb.height() / max(len(names), 1), 1.0)
        self._half = min(max(0.5 - 0.5 * ROOM_FOR_WORDS / row, 0.1), 0.3)
        self.setYRange(-len(names) + 0.9 - self._half, max(0.6, self._half + ROOM_FOR_WORDS / row), padding=0)
        low, high = self.viewRange()[0]
        for n, name in enumerate(names):
            self._draw_row(name, -n, low, high, reported.get(name, ""))
        where = None if self.value is None else self._place(self.value)
        if where is not None:
            item.addItem(pg.InfiniteLine(where, pen=pen(themes().theme.text, 1.0, 0.7, dashed=True)))

    def _draw_row(self, name: str, y: int, low: float, high: float, sentence: str) -> None:
        fmt, item, colour = get(name), self.getPlotItem(), format_colour(name)
        bounds = (2.0 ** max(low, -1074), 2.0 ** min(high, 1023.9)) if self.logarithmic else (low, high)
        result = stretch(fmt, *bounds)
        displayed = result.values[result.values > 0] if self.logarithmic else result.values
        values = np.log2(displayed) if self.logarithmic else displayed
        if result.complete and 1 < len(values) <= MOST_INTERVALS:
            self._draw_intervals(displayed, y, colour)
        if not result.complete:
            reach = (result.smallest, result.largest) if self.logarithmic else (-result.largest, result.largest)
            ends = [max(min(v, bounds[1]), bounds[0]) for v in reach]
            left, right = (math.log2(v) for v in ends) if self.logarithmic else ends
            item.addItem(self._bars([left], [right], y, colour, 0.28))
        if len(values):
            xs, ys = np.repeat(values, 2), np.tile([y - self._half, y + self._half], len(values))
            item.addItem(pg.PlotCurveItem(xs, ys, connect="pairs", pen=pen(colour, 1.4)))
        self._draw_stored(name, y)
        counted = n_("{count} value in view", "{count} values in view", result.count)
        text = pg.TextItem(
            f"{counted.format(count=grouped(result.count))}   {sentence}", color=themes().theme.muted, anchor=(0, 0.9)
        )
        text.setPos(low, y + self._half)
        item.addItem(text)

    def _draw_intervals(self, values: Floats, y: int, colour: str) -> None:
        """Every second rounding interval, shaded."""
        edges = midpoints(values)
        edges = np.log2(edges[edges > 0]) if self.logarithmic else edges
        left, right = edges[:-1:2], edges[1::2]
        if len(left):
            self.getPlotItem().addItem(self._bars(left, right, y, colour, 0.16))

    def _draw_stored(self, name: str, y: int) -> None:
        stored = None if self.real is None else report(self.real, get(name)).stored.real
        where = self._place(to_float(stored)) if stored is not None and stored.is_finite else None
        if where is not None:
            dot = pg.ScatterPlotItem(
                [where], [y], size=9, pen=pen(themes().theme.base), brush=brush(format_colour(name), 1)
            )
            self.getPlotItem().addItem(dot)

    def _bars(
        self, left: Floats | list[float], right: Floats | list[float], y: int, colour: str, opacity: float
    ) -> pg.BarGraphItem:
        low, high = [y - self._half] * len(left), [y + self._half] * len(left)
        return pg.BarGraphItem(x0=left, x1=right, y0=low, y1=high, pen=None, brush=brush(colour, opacity))
