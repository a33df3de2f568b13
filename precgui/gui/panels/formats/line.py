"""The number line: the values of several formats side by side, from all decades down to single values."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QLineEdit, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from precgui.formats.arrays import Floats
from precgui.formats.line import binade_histogram, midpoints, shares, stretch
from precgui.formats.parse import InputError, parse
from precgui.formats.real import to_float
from precgui.formats.registry import get
from precgui.formats.report import report
from precgui.gui.panels.formats.choose import FormatMenu
from precgui.gui.panels.formats.plotting import Plot, brush, pen, row_colour
from precgui.gui.panels.formats.run_source import Recorded, RunSource
from precgui.gui.panels.formats.tensor_source import TensorSource
from precgui.gui.theme import themes

FORMATS = ("fp32", "bf16", "fp16", "e4m3fn", "e5m2", "e2m1")
BINADES, LINEAR = "Powers of two", "Linear"
LIMITS = {BINADES: (-1080.0, 1030.0), LINEAR: (-1.7e308, 1.7e308)}
START = {BINADES: (-30.0, 20.0), LINEAR: (-8.0, 8.0)}
MOST_INTERVALS = 60
HALF = 0.3


class LineTab(QWidget):
    """Magnitudes over powers of two, or signed values over a linear axis."""

    def __init__(self, state: object, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._names: list[str] = list(FORMATS)
        self._value: float | None = 0.1
        self._tensor: Floats | None = None
        self._recorded: Recorded | None = None
        self._bins: tuple[NDArray[np.int_], Floats] | None = None
        self._state = state
        self._shares: dict[str, str] = {}
        self._later = QTimer(self, singleShot=True, interval=0)
        self._later.timeout.connect(self._draw)
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 12, 4, 4)
        column.addLayout(self._make_controls())
        column.addLayout(self._make_second_row())
        self._make_plots(column)
        themes().changed.connect(self._later.start)
        self._typed(self.edit.text())
        self.show_all()

    # Making

    def _make_controls(self) -> QHBoxLayout:
        self.mode = QComboBox()
        self.mode.addItems([BINADES, LINEAR])
        self.mode.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.mode.setMinimumContentsLength(12)
        self.mode.currentTextChanged.connect(self.show_all)
        self.edit = QLineEdit("0.1")
        self.edit.setMinimumWidth(70)
        self.edit.setMaximumWidth(220)
        self.edit.setAccessibleName("Number on the line")
        self.edit.textEdited.connect(self._typed)
        self.menu = FormatMenu(FORMATS, self)
        self.menu.changed.connect(self._choose)
        self.source = TensorSource()
        self.source.loaded.connect(self.show_tensor)
        self.source.failed.connect(self._say)
        row = QHBoxLayout()
        label = QLabel("&Number")
        label.setBuddy(self.edit)
        for widget in (label, self.edit, self.mode):
            row.addWidget(widget)
        for words, tip, slot in (
            ("−", "zoom out (minus)", partial(self.zoom, 2.0)),
            ("+", "zoom in (plus)", partial(self.zoom, 0.5)),
            ("Number", "until its neighbours are apart", self.show_number),
            ("All", "the whole line (Home)", self.show_all),
        ):
            button = QPushButton(words)
            button.setToolTip(tip)
            button.setAccessibleName(tip)
            button.clicked.connect(lambda _=False, slot=slot: slot())
            row.addWidget(button)
        row.addStretch(1)
        return row

    def _make_second_row(self) -> QHBoxLayout:
        self.message = QLabel()
        self.message.setProperty("kind", "muted")
        self.message.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.runs = RunSource(self._state)
        self.runs.loaded.connect(self.show_recorded)
        self.runs.failed.connect(self._say)
        row = QHBoxLayout()
        row.addWidget(self.source)
        row.addWidget(self.runs)
        row.addWidget(self.message, 1)
        row.addWidget(self.menu)
        return row

    def _make_plots(self, column: QVBoxLayout) -> None:
        self.histogram = Plot(left="share of values")
        self.histogram.setMaximumHeight(160)
        self.histogram.hide()
        self.view = Plot()
        self.view.setMouseEnabled(x=True, y=False)
        self.view.installEventFilter(self)
        self.view.setAccessibleName("Number line")
        self.view.getPlotItem().getAxis("left").setWidth(84)
        self.histogram.getPlotItem().getAxis("left").setWidth(84)
        self.histogram.setMouseEnabled(x=True, y=False)
        self.histogram.setXLink(self.view)
        self.view.sigXRangeChanged.connect(lambda *_: self._later.start())
        column.addWidget(self.histogram)
        column.addWidget(self.view, 1)

    # Changes

    def _choose(self, names: list[str]) -> None:
        self._names = names
        self._count_shares()
        self._later.start()

    def _typed(self, words: str) -> None:
        try:
            real = parse(words)
        except InputError as error:
            self._say(str(error))
            return
        self._say("")
        self._value = to_float(real) if real.is_finite else None
        self._later.start()

    def _say(self, words: str) -> None:
        self.message.setText(words)
        self.message.setToolTip(words)

    def show_tensor(self, values: Floats, name: str) -> None:
        """Lay the histogram of a tensor over the line and count what each format loses of it."""
        self._tensor, self._recorded = values.ravel(), None
        exponents, counts = binade_histogram(self._tensor)
        self._show_bins(f"{name}: {self._tensor.size} values", exponents, counts / max(self._tensor.size, 1))

    def show_recorded(self, recorded: Recorded) -> None:
        """The same from the exponent histogram that a run has recorded."""
        self._tensor, self._recorded = None, recorded
        self._show_bins(recorded.title, recorded.exponents, recorded.share)

    def _show_bins(self, title: str, exponents: NDArray[np.int_], share: Floats) -> None:
        self._bins = exponents, share
        self._say(title)
        self._count_shares()
        if self.mode.currentText() != BINADES:
            self.mode.setCurrentText(BINADES)
        if exponents.size:
            self.view.setXRange(float(exponents[0]) - 4, float(exponents[-1]) + 5, padding=0)
        self._later.start()

    def _count_shares(self) -> None:
        self._shares = {name: _told(self._losses(name)) for name in self._names}

    def _losses(self, name: str) -> tuple[float, float, float] | None:
        if self._tensor is not None:
            found = shares(self._tensor, get(name))
            return found.underflow, found.subnormal, found.saturated
        try:
            return None if self._recorded is None else self._recorded.losses(name)
        except ValueError:  # integers and code books: exponents do not say what becomes of them
            return None

    def zoom(self, factor: float) -> None:
        low, high = self.view.viewRange()[0]
        middle = self._place(self._value) if self._value is not None else None
        if middle is None or not low <= middle <= high:
            middle = (low + high) / 2
        self.view.setXRange(middle - (middle - low) * factor, middle + (high - middle) * factor, padding=0)

    def show_all(self) -> None:
        mode = self.mode.currentText()
        self.view.setLimits(xMin=LIMITS[mode][0], xMax=LIMITS[mode][1], minXRange=1e-12)
        words = "magnitude, as a power of two" if mode == BINADES else "value"
        self.view.getPlotItem().setLabels(bottom=words)
        self.view.setXRange(*START[mode], padding=0)
        self._later.start()

    def show_number(self) -> None:
        """Zoom to the number until the values of the coarsest format around it are apart."""
        if self._value is None:
            return
        value, middle = self._value, self._place(self._value)
        if middle is None:
            self.show_all()
        elif self.mode.currentText() == BINADES:
            self.view.setXRange(middle - 1.5, middle + 1.5, padding=0)
        else:
            width = max(abs(value) / 4, 1e-300)
            self.view.setXRange(value - width, value + width, padding=0)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            low, high = self.view.viewRange()[0]
            step = (high - low) / 10
            match event.key():
                case Qt.Key.Key_Left | Qt.Key.Key_Right:
                    move = -step if event.key() == Qt.Key.Key_Left else step
                    self.view.setXRange(low + move, high + move, padding=0)
                case Qt.Key.Key_Plus | Qt.Key.Key_Equal:
                    self.zoom(0.5)
                case Qt.Key.Key_Minus:
                    self.zoom(2.0)
                case Qt.Key.Key_Home:
                    self.show_all()
                case _:
                    return super().eventFilter(watched, event)
            return True
        return super().eventFilter(watched, event)

    # Drawing

    def _place(self, value: float) -> float | None:
        """Where a value stands on the axis; None for one that has no place on it."""
        if self.mode.currentText() == LINEAR:
            return value
        return math.log2(abs(value)) if value else None

    def _draw(self) -> None:
        item = self.view.getPlotItem()
        item.clear()
        names = self._names
        item.getAxis("left").setTicks([[(-n, name) for n, name in enumerate(names)]])
        self.view.setYRange(-len(names) + 0.4, 0.6, padding=0)
        low, high = self.view.viewRange()[0]
        for n, name in enumerate(names):
            self._draw_row(name, -n, low, high)
        where = None if self._value is None else self._place(self._value)
        if where is not None:
            item.addItem(pg.InfiniteLine(where, pen=pen(themes().theme.text, 1.0, 0.7, dashed=True)))
        self._draw_histogram()

    def _draw_row(self, name: str, y: int, low: float, high: float) -> None:
        logarithmic = self.mode.currentText() == BINADES
        fmt, item, colour = get(name), self.view.getPlotItem(), row_colour(-y)
        bounds = (2.0 ** max(low, -1074), 2.0 ** min(high, 1023.9)) if logarithmic else (low, high)
        found = stretch(fmt, *bounds)
        values = np.log2(found.values[found.values > 0]) if logarithmic else found.values
        if found.complete and 1 < len(values) <= MOST_INTERVALS:
            self._draw_intervals(
                found.values[found.values > 0] if logarithmic else found.values, y, logarithmic, colour
            )
        if not found.complete:
            reach = (found.smallest, found.largest) if logarithmic else (-found.largest, found.largest)
            ends = [max(min(v, bounds[1]), bounds[0]) for v in reach]
            left, right = (math.log2(v) for v in ends) if logarithmic else ends
            bar = pg.BarGraphItem(
                x0=[left], x1=[right], y0=[y - HALF], y1=[y + HALF], pen=None, brush=brush(colour, 0.28)
            )
            item.addItem(bar)
        if len(values):
            xs, ys = np.repeat(values, 2), np.tile([y - HALF, y + HALF], len(values))
            item.addItem(pg.PlotCurveItem(xs, ys, connect="pairs", pen=pen(colour, 1.4)))
        self._draw_stored(name, y)
        words = f"{found.count:_} value{'' if found.count == 1 else 's'} in view".replace("_", "\u202f")
        text = pg.TextItem(f"{words}   {self._shares.get(name, '')}", color=themes().theme.muted, anchor=(0, 0.5))
        text.setPos(low, y + HALF + 0.12)
        item.addItem(text)

    def _draw_intervals(self, values: Floats, y: int, logarithmic: bool, colour: str) -> None:
        """Every second rounding interval, shaded."""
        edges = midpoints(values)
        edges = np.log2(edges[edges > 0]) if logarithmic else edges
        left, right = edges[:-1:2], edges[1::2]
        if len(left):
            count = len(left)
            bars = pg.BarGraphItem(x0=left, x1=right, y0=[y - HALF] * count, y1=[y + HALF] * count, pen=None,
                                   brush=brush(colour, 0.16))  # fmt: skip
            self.view.getPlotItem().addItem(bars)

    def _draw_stored(self, name: str, y: int) -> None:
        if self._value is None:
            return
        stored = report(parse(self.edit.text()), get(name)).stored.real if _readable(self.edit.text()) else None
        where = self._place(to_float(stored)) if stored is not None and stored.is_finite else None
        if where is not None:
            dot = pg.ScatterPlotItem([where], [y], size=9, pen=pen(themes().theme.base), brush=brush(row_colour(-y), 1))
            self.view.getPlotItem().addItem(dot)

    def _draw_histogram(self) -> None:
        self.histogram.getPlotItem().clear()
        shown = self._bins is not None and self.mode.currentText() == BINADES
        self.histogram.setVisible(shown)
        if self._bins is None or not shown:
            return
        exponents, share = self._bins
        if exponents.size:
            bars = pg.BarGraphItem(x0=exponents, x1=exponents + 1, height=share, pen=None,
                                   brush=brush(themes().theme.accent, 0.6))  # fmt: skip
            self.histogram.addItem(bars)

    def open_file(self, path: Path) -> None:
        """Show the first tensor of a file."""
        self.source.open_file(path)


def _told(losses: tuple[float, float, float] | None) -> str:
    if losses is None:
        return ""
    named = zip(("underflow", "subnormal", "saturate"), losses, strict=True)
    return ", ".join(f"{100 * share:.3g} % {words}" for words, share in named if share) or "all kept in normal range"


def _readable(words: str) -> bool:
    try:
        parse(words)
    except InputError:
        return False
    return True
