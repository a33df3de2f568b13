"""A plot to take away: a picture (PNG, SVG, clipboard) with title and legend, and the recorded values as CSV."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QBuffer, QByteArray, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetrics,
    QGuiApplication,
    QIcon,
    QImage,
    QImageWriter,
    QPainter,
    QPen,
    QPixmap,
)
from PySide6.QtSvg import QSvgGenerator

from precgui.gui.plots.chart import Chart, CsvRow, colour_of, dash_of
from precgui.gui.plots.marks import Marks
from precgui.gui.plots.signals import EVENTS
from precgui.gui.theme import themes
from precgui.runs.csv_cells import write_rows, write_table
from precgui.safe_open import replaced
from precgui.words import Sentence, translated

if TYPE_CHECKING:
    from precgui.gui.open_run import DrawnRun

PIXEL_RATIO = 2.0
CSV_CHUNK = 4000  # rows written between two turns of the event loop
_SWATCH_PX, _GAP_PX = 26, 16


def _legend_rows(runs: list[DrawnRun], width: float, metrics: QFontMetrics) -> list[list[DrawnRun]]:
    """The runs broken into lines that fit the width."""
    lines: list[list[DrawnRun]] = [[]]
    used = 0.0
    for run in runs:
        needed = _entry_width(run, width, metrics)
        if lines[-1] and used + needed > width:
            lines.append([])
            used = 0.0
        lines[-1].append(run)
        used += needed
    return lines


def _entry_width(run: DrawnRun, width: float, metrics: QFontMetrics) -> float:
    text = metrics.elidedText(run.name, Qt.TextElideMode.ElideMiddle, int(width) - _SWATCH_PX - 8)
    return _SWATCH_PX + 6 + metrics.horizontalAdvance(text) + _GAP_PX


class _Figure:
    """Title, legend and plot, arranged for a painter of any kind."""

    def __init__(self, chart: Chart) -> None:
        self._chart = chart
        self._title_font = QFont(chart.font())
        self._title_font.setBold(True)
        self._metrics = QFontMetrics(chart.font())
        self._lines = _legend_rows(chart.visible_runs(), chart.width() - 24, self._metrics)
        self._line_px = self._metrics.height() + 4
        self._head_px = self._line_px * (1 + len(self._lines)) + 12
        self.size = QSize(chart.width(), chart.height() + self._head_px)

    def paint(self, painter: QPainter) -> None:
        theme = themes().theme
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.fillRect(QRectF(QPointF(0, 0), self.size), QColor(theme.base))
        painter.setFont(self._title_font)
        painter.setPen(QColor(theme.text))
        baseline = 6.0 + self._metrics.ascent()
        painter.drawText(QPointF(12, baseline), translated(self._chart.signal.title))
        painter.setFont(self._chart.font())
        for line in self._lines:
            baseline += self._line_px
            self._paint_line(painter, line, baseline)
        target = QRectF(0, self._head_px, self._chart.width(), self._chart.height())
        marks = [item for item in self._chart.plotItem.items if isinstance(item, Marks)]
        for item in marks:  # as shapes, not as small pictures
            item.setExportMode(True, {"antialias": True, "resolutionScale": 1.0})
        self._chart.render(painter, target, self._chart.viewport().rect())
        for item in marks:
            item.setExportMode(False)

    def _paint_line(self, painter: QPainter, line: list[DrawnRun], baseline: float) -> None:
        left, width = 12.0, self._chart.width() - 24
        for run in line:
            painter.setPen(swatch_pen(run, 2.0))
            middle = baseline - self._metrics.ascent() / 2 + 1
            painter.drawLine(QPointF(left, middle), QPointF(left + _SWATCH_PX, middle))
            painter.setPen(QColor(themes().theme.text))
            text = self._metrics.elidedText(run.name, Qt.TextElideMode.ElideMiddle, width - _SWATCH_PX - 8)
            painter.drawText(QPointF(left + _SWATCH_PX + 6, baseline), text)
            left += _entry_width(run, width, self._metrics)


def swatch_pen(run: DrawnRun, width: float) -> QPen:
    """The pen of a run's line, at a width that a legend needs."""
    return _pen(colour_of(run), dash_of(run), width)


def _pen(colour: str, dash: tuple[float, ...], width: float) -> QPen:
    pen = QPen(QColor(colour), width)
    pen.setCapStyle(Qt.PenCapStyle.FlatCap)
    if dash:
        pen.setDashPattern(dash)
    return pen


def image(chart: Chart) -> QImage:
    """The plot as it is on the screen, with title and legend, at twice the resolution."""
    figure = _Figure(chart)
    created = QImage(figure.size * PIXEL_RATIO, QImage.Format.Format_RGB32)
    created.setDevicePixelRatio(PIXEL_RATIO)
    painter = QPainter(created)
    figure.paint(painter)
    painter.end()
    return created


def save_png(chart: Chart, path: Path) -> None:
    """Raises OSError when the file cannot be written."""
    writer = QImageWriter(str(path), QByteArray(b"png"))
    if not writer.write(image(chart)):
        why = writer.errorString()
        raise OSError(Sentence("{path} could not be written ({why}); choose another folder", path=path, why=why))


def save_svg(chart: Chart, path: Path) -> None:
    """The plot as vectors: the points that are drawn, not the pixels. Raises OSError when it cannot be written."""
    figure = _Figure(chart)
    drawing = QBuffer()
    generator = QSvgGenerator()
    generator.setOutputDevice(drawing)
    generator.setSize(figure.size)
    generator.setViewBox(QRectF(QPointF(0, 0), figure.size))
    generator.setTitle(translated(chart.signal.title))
    painter = QPainter(generator)
    figure.paint(painter)
    painter.end()
    path.write_bytes(drawing.data().data())


def copy_image(chart: Chart) -> None:
    QGuiApplication.clipboard().setImage(image(chart))


def write_csv(chart: Chart, path: Path) -> Iterator[int]:
    """Write every recorded value of the visible runs; yields the number of rows after each chunk.

    Long format: run, signal, step, time_s, value (events: severity and message). Floats are written so that they read
    back exactly, NaN and Inf as nan and inf. The file appears under its name only when it is complete.
    Raises OSError when it cannot be written.
    """
    rows, written = chart.rows(), 0
    with replaced(path) as binary, io.TextIOWrapper(binary, newline="", encoding="utf-8") as file:
        what = "event" if chart.signal.key == EVENTS else "value"
        write_table(file, ("run", "signal", "step", "time_s", what), ())
        while chunk := list(islice(rows, CSV_CHUNK)):
            write_rows(file, (_fields(row) for row in chunk))
            written += len(chunk)
            yield written


def _fields(row: CsvRow) -> tuple[str, str, str, str, str]:
    value = row.value if isinstance(row.value, str) else repr(row.value)
    step = f"{row.step:.0f}" if row.step.is_integer() else repr(row.step)
    return row.run, row.signal, step, repr(row.time_s), value


if TYPE_CHECKING:
    from precgui.gui.open_run import DrawnRun

SWATCH = QSize(30, 14)


def swatch_icon(opened: DrawnRun, width: float = 2.0) -> QIcon:
    """A piece of the run's line, in its colour and dash."""
    return _swatch(colour_of(opened), dash_of(opened), width)


@lru_cache(maxsize=256)  # lists of many runs are filled at every change of one
def _swatch(colour: str, dash: tuple[float, ...], width: float) -> QIcon:
    ratio = 2.0
    image = QPixmap(SWATCH * ratio)
    image.setDevicePixelRatio(ratio)
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    painter.setPen(_pen(colour, dash, width))
    middle = SWATCH.height() / 2
    painter.drawLine(QPointF(1, middle), QPointF(SWATCH.width() - 1, middle))
    painter.end()
    icon = QIcon(image)
    icon.addPixmap(image, QIcon.Mode.Selected)  # Qt would tint the selected run, whose colour then is no longer its own
    return icon
