"""Base class of linked plots: axes of equal width, theme, mouse, cursor line and readout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import pyqtgraph as pg
from PySide6.QtCore import QEvent, QPointF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontMetrics, QKeyEvent
from PySide6.QtWidgets import QGraphicsSimpleTextItem

from precgui.gui.colours import DASHES
from precgui.gui.format_colours import place_colour
from precgui.gui.kit.plain_text import RichLabel
from precgui.gui.open_run import short_names
from precgui.gui.plots.axes import TICK_TEXT_TOP_PX, ValueAxis, axis_name, wrap_label
from precgui.gui.plots.menus import own_menu
from precgui.gui.plots.signals import Scale, place_text
from precgui.gui.plots.signals import Signal as PlotSignal
from precgui.gui.plots.view import PlotView
from precgui.gui.theme import themes
from precgui.runs.signals import Axis
from precgui.words import L_, _, translated

if TYPE_CHECKING:
    from precgui.gui.open_run import DrawnRun

LEFT_AXIS_TEXT = L_("Grad. NaN/Inf")  # the widest text on a left axis; all left axes are as wide as this needs
LOADING = L_("Loading...")
READOUT_LINES = 8
_READOUT_NAME_PX = 190
_READOUT_GAP_PX = 4
_READOUT_MARGINS_PX = 48  # of the label, its mark and the spaces in a line
_RIGHT_PX = 30  # half of the widest tick text of the x axis
_BEHIND = -200.0  # grid lines lie under the curves


@dataclass(frozen=True, slots=True)
class Value:
    """The recorded value nearest to the cursor, and its place."""

    text: str
    x: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class ReadoutLine:
    """One line of the readout: a run and its values."""

    colour: str
    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One recorded value for the CSV file."""

    run: str
    signal: str
    step: float
    time_s: float
    value: float | str


def colour_of(run: DrawnRun) -> str:
    return place_colour(run.colour_index, run.shade)


def dash_of(run: DrawnRun) -> tuple[float, ...]:
    return DASHES[run.dash_index % len(DASHES)]


class Chart(pg.PlotWidget):  # type: ignore[misc]  # pyqtgraph is untyped
    """A plot of one signal over the runs. The linked plots decide when it pulls data and when it draws.

    `moved(x, y)`: a person changed a range; `reset`: they want the whole picture back; `hovered(x)`: the mouse is
    over x; `left`: it is not over the plot any more.
    """

    moved = Signal(bool, bool)
    reset = Signal()
    hovered = Signal(float)
    left = Signal()

    def __init__(self, signal: PlotSignal) -> None:
        self.view = PlotView()
        self.value_axis, self.run_axis = ValueAxis("left", signal.scale), ValueAxis("bottom", "step")
        super().__init__(
            viewBox=self.view, axisItems={"left": self.value_axis, "bottom": self.run_axis}, enableMenu=False
        )
        own_menu(self)
        self.signal = signal
        self.scale: Scale = signal.scale
        self.over: Axis = "step"
        self.auto_y = True
        self.runs: list[DrawnRun] = []
        self.note = ""
        self._axis_name = QGraphicsSimpleTextItem(self.run_axis)
        self.cursor_line = pg.InfiniteLine(angle=90, movable=False)
        self.cursor_line.setZValue(5)
        self.cursor_line.hide()
        self.plotItem.addItem(self.cursor_line, ignoreBounds=True)
        self.readout = RichLabel(self)
        self.readout.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.readout.hide()
        self._arrange()
        self._connect()

    def _arrange(self) -> None:
        self.plotItem.hideButtons()
        self.plotItem.setContentsMargins(0, 8, _RIGHT_PX, 2)  # below: the frame of the focus
        self.setMinimumHeight(112)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(translated(self.signal.title))
        metrics = QFontMetrics(self.font())
        left_px = metrics.horizontalAdvance(translated(LEFT_AXIS_TEXT)) + 16
        self.value_axis.setWidth(left_px)
        self._axis_name.setFont(self.font())
        self._axis_name.setPos(6 - left_px, TICK_TEXT_TOP_PX)
        self.run_axis.setHeight(metrics.height() + 8)
        if self.signal.axis:
            self.value_axis.setLabel(escape(translated(self.signal.axis)))
            wrap_label(self.value_axis)
        for axis in (self.value_axis, self.run_axis):
            axis.setStyle(tickFont=self.font())
            axis.setGrid(255)
            axis.setZValue(_BEHIND)

    def _connect(self) -> None:
        self.view.moved.connect(self._on_moved)
        self.view.reset.connect(self.reset)
        self.scene().sigMouseMoved.connect(self._on_mouse)

    def sizeHint(self) -> QSize:
        """As high as is readable; pyqtgraph's 640 x 480 would make plots higher the more text stands in one of them."""
        return QSize(480, 140)

    def _on_moved(self, x: bool, y: bool) -> None:
        self.auto_y = self.auto_y and not y
        self.moved.emit(x, y)

    def _on_mouse(self, place: QPointF) -> None:
        if self.view.sceneBoundingRect().contains(place):
            self.point_at(place)
            self.hovered.emit(self.view.mapSceneToView(place).x())
        else:
            self.left.emit()

    def point_at(self, place: QPointF) -> None:
        """Take a position of the mouse in the scene; a chart may show a tool tip there."""

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self.left.emit()

    # What kinds of charts differ in

    def set_runs(self, runs: Sequence[DrawnRun]) -> None:
        raise NotImplementedError

    @property
    def has_unread_runs(self) -> bool:
        """Whether `pull` has left runs for its next calls."""
        return False

    def pull(self) -> bool:
        """Take over new data of the runs. True when there is something new to draw."""
        raise NotImplementedError

    def draw(self) -> None:
        raise NotImplementedError

    def is_empty(self) -> bool:
        """Whether there is nothing to draw, so that `empty_sentence` takes the place of the plot."""
        raise NotImplementedError

    def empty_sentence(self) -> str:
        """Why there is nothing to draw."""
        raise NotImplementedError

    def last_x(self) -> float | None:
        raise NotImplementedError

    def readings(self, x: float) -> list[ReadoutLine]:
        raise NotImplementedError

    def rows(self) -> Iterator[CsvRow]:
        """Every recorded value of the visible runs, as recorded."""
        raise NotImplementedError

    # The same for all

    def visible_runs(self) -> list[DrawnRun]:
        return [run for run in self.runs if run.visible]

    def x_range(self) -> tuple[float, float]:
        (low, high), _ = self.view.viewRange()
        return float(low), float(high)

    def show_x_range(self, low: float, high: float) -> None:
        self.view.setXRange(low, high, padding=0)
        self._name_axis()

    def width_px(self) -> int:
        return max(int(self.view.width()), 1)

    def set_over(self, over: Axis) -> None:
        """Plot over steps or over time; the data come with the next pull."""
        self.over = over
        self.run_axis.set_kind(over)
        self._name_axis()

    def set_scale(self, scale: Scale) -> None:
        self.scale = scale
        self.value_axis.set_kind(scale)
        self.auto_y = True

    def set_smoothing(self, points: int) -> None:
        """Draw the mean of this many points; charts without lines have none."""

    def restyle(self) -> None:
        """Take the colours of the present theme."""
        theme = themes().theme
        self.setBackground(theme.base)
        for axis in (self.value_axis, self.run_axis):
            axis.setPen(theme.line)
            axis.setTickPen(theme.line)
            axis.setTextPen(theme.muted)
        self._axis_name.setBrush(QColor(theme.muted))
        self.cursor_line.setPen(pg.mkPen(theme.muted, width=1))
        self.readout.setStyleSheet(
            f"QLabel {{ background: {_translucent(theme.window)}; color: {theme.text}; border: 1px solid {theme.line};"
            " border-radius: 4px; padding: 4px 6px; }"
        )
        self.view.rbScaleBox.setPen(pg.mkPen(theme.accent))
        tint = QColor(theme.accent)
        tint.setAlpha(40)
        self.view.rbScaleBox.setBrush(tint)

    def _name_axis(self) -> None:
        low, high = self.x_range()
        self._axis_name.setText(axis_name(self.over, high - low))

    def show_cursor(self, x: float, headed: bool) -> None:
        """Draw the cursor line at x and the readout beside it; `headed`: the readout names the place."""
        self.cursor_line.setPos(x)
        self.cursor_line.show()
        readings = self.readings(x)
        self.readout.setVisible(bool(readings))
        if not readings:
            return
        inside = self.view.sceneBoundingRect()
        line_px = self.view.mapViewToScene(QPointF(x, 0)).x()
        at_right = line_px < inside.center().x()
        room = (inside.right() - line_px if at_right else line_px - inside.left()) - 2 * _READOUT_GAP_PX
        self.readout.setText(self._readout_html(x, readings, headed))
        self.readout.adjustSize()
        width, height, fits = self.readout.width(), self.readout.height(), self.readout.width() <= room
        left = inside.right() - width if at_right else inside.left()
        top = inside.top() if fits else inside.bottom() - height  # where it hides no mark of the top edge
        shift = -_READOUT_GAP_PX if at_right else _READOUT_GAP_PX
        self.readout.move(int(left) + shift, int(top) + (2 if fits else -2))

    def hide_cursor(self) -> None:
        self.cursor_line.hide()
        self.readout.hide()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        event.ignore()  # the linked plots have the keys

    def contextMenuEvent(self, event: Any) -> None:
        event.ignore()  # the frame around the plot has the menu

    def _readout_html(self, x: float, readings: Sequence[ReadoutLine], headed: bool) -> str:
        heading = place_text(x, self.over)
        lines = [f"<b>{heading[:1].upper()}{heading[1:]}</b>"] if headed else []
        metrics, bold = QFontMetrics(self.readout.font()), QFont(self.readout.font())
        bold.setBold(True)
        room_px = int(self.view.width()) - 4 * _READOUT_GAP_PX - _READOUT_MARGINS_PX
        displayed = readings[:READOUT_LINES]
        for reading, name in zip(displayed, _fitting([reading.name for reading in displayed], metrics), strict=True):
            text_px = room_px - metrics.horizontalAdvance(name)
            values = _(", ").join(
                self._value_html(value, x, _cut(value.text, bold, text_px)) for value in reading.values
            )
            lines.append(f"<span style='color:{reading.colour}'>■</span> {escape(name)}&nbsp; {values}")
        if len(readings) > READOUT_LINES:
            lines.append(_("and {count} more").format(count=len(readings) - READOUT_LINES))
        return "<br>".join(lines)

    def _value_html(self, value: Value, x: float, text: str) -> str:
        shown = f"{escape(value.label)} <b>{escape(text)}</b>"
        if value.x == x:
            return shown
        return _("{value} at {place}").format(value=shown, place=place_text(value.x, self.over))


def _fitting(names: Sequence[str], metrics: QFontMetrics) -> list[str]:
    """The names without the words that all share, long ones cut in the middle; whole where that makes two alike."""
    short = short_names(names)
    cut = [metrics.elidedText(name, Qt.TextElideMode.ElideMiddle, _READOUT_NAME_PX) for name in short]
    return cut if len(set(cut)) == len(set(names)) else short


def _cut(text: str, font: QFont, room_px: int) -> str:
    """A message cut to the room in the plot; numbers are short enough as they are."""
    return QFontMetrics(font).elidedText(text, Qt.TextElideMode.ElideRight, max(room_px, _READOUT_NAME_PX))


def _translucent(colour: str) -> str:
    color = QColor(colour)
    return f"rgba({color.red()}, {color.green()}, {color.blue()}, 225)"
