"""Four plots over one x axis: one timer, one redraw a tick, one cursor, follow, pause, zoom and keys."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, QTimer
from PySide6.QtCore import Signal as QtSignal
from PySide6.QtGui import QKeyEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QGridLayout, QScrollArea, QWidget

from precgui.gui.kit.when_visible import is_covered
from precgui.gui.next_turn import in_next_turn
from precgui.gui.plots.chart import Chart
from precgui.gui.plots.crosshair import Crosshair
from precgui.gui.plots.curve_chart import CurveChart
from precgui.gui.plots.frame import PlotFrame
from precgui.gui.plots.signals import DEFAULT_SIGNALS, SIGNALS, Signal
from precgui.gui.theme import themes
from precgui.runs.signals import Axis
from precgui.words import _

_ZOOM, _PAN = 1.25, 0.1


def act_on(plots: LinkedPlots, event: QKeyEvent) -> bool:
    """Do what a key means in these plots. False for a key that means nothing in them."""
    match event.key():
        case Qt.Key.Key_Left | Qt.Key.Key_Right as key:
            _go(
                plots, 1 if key == Qt.Key.Key_Right else -1, bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
            )
        case Qt.Key.Key_Plus | Qt.Key.Key_Equal:
            _zoom(plots, 1 / _ZOOM)
        case Qt.Key.Key_Minus:
            _zoom(plots, _ZOOM)
        case Qt.Key.Key_F | Qt.Key.Key_Home:
            plots.follow()
        case Qt.Key.Key_A:
            plots.autoscale()
        case Qt.Key.Key_Space:
            plots.set_paused(not plots.paused)
        case Qt.Key.Key_Escape:
            plots.crosshair.hide()
        case _:
            return False
    return True


def _go(plots: LinkedPlots, way: int, by_point: bool) -> None:
    low, high = plots.x_range
    if by_point:
        plots.crosshair.step(way, (low + high) / 2)
    else:
        plots.show_range(low + way * _PAN * (high - low), high + way * _PAN * (high - low))


def _zoom(plots: LinkedPlots, factor: float) -> None:
    low, high = plots.x_range
    place = plots.crosshair.place
    centre = place if place is not None and low <= place <= high else (low + high) / 2
    plots.show_range(centre - (centre - low) * factor, centre + (high - centre) * factor)


if TYPE_CHECKING:
    from precgui.gui.open_run import DrawnRun

TICK_MS = 33
PAUSE_FACTOR = 50.0  # times as long as the last pull took
GROWTH = 1.10  # the x range grows in steps of a tenth while it follows a run
_LEAST_GROWTH: Mapping[Axis, float] = {"step": 50.0, "time_s": 2.0}
_ROOM = 1.01  # a little room at both ends, so that no mark is cut
TWO_COLUMNS_PX = 1150
_JUMP_POINTS = 50.0  # shown on each side of a place that was jumped to


@dataclass(frozen=True)
class Zoom:
    """The part of the runs that the plots show: the x axis and its ends, and the signal of each plot."""

    over: Axis
    following: bool
    x_range: tuple[float, float]
    signals: tuple[str, ...]


class LinkedPlots(QScrollArea):
    """The plots of a session of runs. New data mark plots as stale; each tick of the timer renews one of them.

    `view_changed`: following, paused or zoomed; `failed(sentence)`: a file could not be saved.
    """

    view_changed = QtSignal()
    failed = QtSignal(str)

    def __init__(
        self,
        signals: Sequence[str] = DEFAULT_SIGNALS,
        parent: QWidget | None = None,
        *,
        choices: Mapping[str, Signal] = SIGNALS,
        two_columns_px: int = TWO_COLUMNS_PX,
    ) -> None:
        super().__init__(parent)
        self._two_columns_px = two_columns_px
        self.over: Axis = "step"
        self.smoothing = 1
        self.following, self.paused = True, False
        self.paused_at: float | None = None
        self._range = (0.0, 10.0)
        self._runs: list[DrawnRun] = []
        self._stale: list[PlotFrame] = []
        self._pulled: list[PlotFrame] = []  # whose new data are not drawn yet
        self._paused_until: dict[PlotFrame, float] = {}
        self._body = QWidget(self)
        self.frames = [PlotFrame(key, self._body, choices) for key in signals]
        self.crosshair = Crosshair(self.frames)
        self._timer = QTimer(self, interval=TICK_MS)
        self._timer.setObjectName("tick")
        self._timer.timeout.connect(self._tick)
        self._arrange()
        for frame in self.frames:
            self._connect_frame(frame)
        themes().follow(self, self._restyle)

    def _arrange(self) -> None:
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)  # Tab enters the plots one by one
        self.setAccessibleName(_("Plots"))
        self._grid = QGridLayout(self._body)
        self._grid.setContentsMargins(0, 0, 8, 0)
        self._grid.setSpacing(8)
        self._columns = 0
        self._place(1)
        self.setWidget(self._body)

    def show_frames(self, wanted: Sequence[PlotFrame]) -> None:
        """Show these plots only."""
        if [frame for frame in self.frames if not frame.isHidden()] == list(wanted):
            return
        for frame in self.frames:
            frame.setVisible(frame in wanted)
        self._place(self._columns, again=True)
        self.refresh()

    def _place(self, columns: int, *, again: bool = False) -> None:
        if columns == self._columns and not again:
            return
        self._columns = columns
        for frame in self.frames:
            self._grid.removeWidget(frame)
        shown = [frame for frame in self.frames if not frame.isHidden()]
        used = max(1, min(columns, len(shown)))  # a plot that is alone has all of the width
        for index, frame in enumerate(shown):
            self._grid.addWidget(frame, index // used, index % used)
        for column in range(2):
            self._grid.setColumnStretch(column, 1 if column < used else 0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place(2 if event.size().width() >= self._two_columns_px else 1)
        self.refresh()

    def _connect_frame(self, frame: PlotFrame) -> None:
        frame.chart_replaced.connect(lambda: self._adopt(frame))
        frame.scale_changed.connect(lambda: self._mark(frame))
        frame.failed.connect(self.failed)
        self._connect_chart(frame)

    def _connect_chart(self, frame: PlotFrame) -> None:
        chart = frame.chart
        chart.moved.connect(lambda x, y: self._on_moved(frame, x, y))
        chart.reset.connect(self.follow)
        chart.hovered.connect(lambda x: self._on_hovered(chart, x))
        chart.left.connect(self.crosshair.hide)

    def _adopt(self, frame: PlotFrame) -> None:
        """Give the new chart of a frame its runs, range and data."""
        self._connect_chart(frame)
        frame.chart.set_over(self.over)
        frame.chart.set_smoothing(self.smoothing)
        frame.chart.show_x_range(*self._range)
        frame.set_runs(self._runs)
        frame.chart.pull()
        self._mark(frame)

    # Data

    def set_runs(self, runs: Sequence[DrawnRun]) -> None:
        """The runs to draw, in this order; call it again when name, colour or visibility has changed."""
        if {run.key for run in self._runs} - {run.key for run in runs}:
            self.crosshair.hide()  # it may show a value of a run that is gone
        self._runs = list(runs)
        for frame in self.frames:
            frame.set_runs(self._runs)
        if not self.paused:
            self.frames[0].chart.pull()  # the others follow, one a tick: a million points each take a while
        self._keep_up(exactly=True)
        self.refresh()

    def data_arrived(self) -> None:
        """Mark the plots as stale: some run has new data."""
        if not self.paused:
            self.refresh()

    def refresh(self) -> None:
        """Renew every plot, one a tick."""
        for frame in self.frames:
            self._mark(frame)

    def _mark(self, frame: PlotFrame) -> None:
        if frame not in self._stale and not frame.isHidden():
            self._stale.append(frame)
        if not self._timer.isActive() and not is_covered(self):
            self._timer.start()

    def showEvent(self, event: QShowEvent) -> None:
        """Draw now all that has become stale while the plots were hidden."""
        super().showEvent(event)
        if self._stale:
            self._timer.start()

    def _tick(self) -> None:
        self.crosshair.show_pointed()
        if not self._stale or is_covered(self):
            self._timer.stop()
            return
        now = time.perf_counter()
        ready = next((frame for frame in self._stale if self._paused_until.get(frame, 0.0) <= now), None)
        if ready is not None:
            self._stale.remove(ready)
            self._pull(ready)
            self._pulled.append(ready)
            in_next_turn(self, self._draw_pulled)

    def _pull(self, frame: PlotFrame) -> None:
        """Take over new data; a signal that is dear to compute is asked for less often."""
        if self.paused:
            return
        start, was_reading = time.perf_counter(), frame.chart.has_unread_runs
        frame.pull()
        now = time.perf_counter()
        self._keep_up(exactly=was_reading)
        if frame.chart.has_unread_runs:
            self._mark(frame)
        else:
            self._paused_until[frame] = now + PAUSE_FACTOR * (now - start)

    def _draw_pulled(self) -> None:
        """Draw the plot that has waited longest since its data were taken over, unless `draw_pending` has."""
        if self._pulled:
            self._draw(self._pulled.pop(0))

    def _draw(self, frame: PlotFrame) -> None:
        self._apply_range(frame.chart)
        frame.draw()

    def draw_pending(self) -> None:
        """Draw everything that waits, now."""
        while self._stale:
            frame = self._stale.pop(0)
            self._pull(frame)
            self._pulled.append(frame)
        while self._pulled:
            self._draw_pulled()

    # The x range

    @property
    def x_range(self) -> tuple[float, float]:
        return self._range

    def last_x(self) -> float | None:
        ends = [end for frame in self.frames if (end := frame.chart.last_x()) is not None]
        return max(ends, default=None)

    def _keep_up(self, exactly: bool = False) -> None:
        """Extend the x range for new data while following, by a tenth at a time."""
        end = self.last_x()
        if not self.following or end is None or end <= 0:
            return
        running = [opened.run for opened in self._runs if opened.visible and opened.run.status == "running"]
        if not running:
            self._set_range(end * (1 - _ROOM), end * _ROOM)
        elif exactly or end > self._range[1]:
            high = max(end * GROWTH, end + _LEAST_GROWTH[self.over])
            if self.over == "step" and end <= (planned := max(run.total_steps for run in running)):
                high = min(high, float(planned))
            self._set_range(high * (1 - _ROOM), high)

    def _set_range(self, low: float, high: float) -> None:
        if (low, high) != self._range:
            self._range = (low, high)
            for frame in self.frames:  # all at once, so that they never disagree; the lines follow one a tick
                self._apply_range(frame.chart)
            self.refresh()

    def _apply_range(self, chart: Chart) -> None:
        if chart.x_range() != self._range:
            chart.show_x_range(*self._range)

    def _on_moved(self, frame: PlotFrame, x: bool, y: bool) -> None:
        """A person zoomed or panned one plot: the others go along at once."""
        if x:
            self.show_range(*frame.chart.x_range())
        if y:
            self._mark(frame)
        self.view_changed.emit()

    def show_range(self, low: float, high: float) -> None:
        """Show this part of the x axis in every plot and stop following."""
        self.following = False
        self._set_range(low, high)
        self.view_changed.emit()

    def zoom(self) -> Zoom:
        """How the plots are zoomed now."""
        return Zoom(self.over, self.following, self._range, tuple(frame.chart.signal.key for frame in self.frames))

    def restore(self, zoom: Zoom) -> None:
        """Show what was shown when `zoom` was taken."""
        for frame, key in zip(self.frames, zoom.signals, strict=True):
            frame.show_signal(key)
        self.set_over(zoom.over)
        if zoom.following:
            self.follow()
        else:
            self.show_range(*zoom.x_range)

    def jump_to(self, x: float) -> None:
        """Show the surroundings of x as far as there are data, with the cursor on it."""
        end = max(self.last_x() or x, x)
        index_span = max(end * 0.01, 1e-3) if self.over == "time_s" else _JUMP_POINTS
        self.show_range(max(x - index_span, 0.0), min(x + index_span, end + 0.02 * index_span))
        self.crosshair.put(x)

    # View

    def follow(self) -> None:
        """Show every run as a whole again, and follow new data."""
        self.following = True
        self._keep_up(exactly=True)
        self.autoscale()

    def autoscale(self) -> None:
        """Fit every value axis to the finite values in view."""
        for frame in self.frames:
            if isinstance(frame.chart, CurveChart):
                frame.chart.auto_y = True
        self.refresh()
        self.view_changed.emit()

    def set_paused(self, paused: bool) -> None:
        """Freeze the picture; the runs go on and their data are kept."""
        self.paused = paused
        self.paused_at = self.last_x() if paused else None
        if not paused:
            self.refresh()
        self.view_changed.emit()

    def set_over(self, over: Axis) -> None:
        """Plot over steps or over time."""
        if over == self.over:
            return
        self.over = over
        self.crosshair.hide()
        for frame in self.frames:
            frame.chart.set_over(over)
            frame.chart.pull()
        self.follow()

    def set_smoothing(self, points: int) -> None:
        """Draw the mean of this many points in every plot of a noisy signal; 1: what was recorded."""
        self.smoothing = points
        for frame in self.frames:
            frame.chart.set_smoothing(points)
        self.refresh()

    def _restyle(self) -> None:
        for frame in self.frames:
            frame.chart.restyle()
        self.refresh()
        self.crosshair.restyle()

    def _on_hovered(self, chart: Chart, x: float) -> None:
        self.crosshair.point(chart, x)
        if not self._timer.isActive():
            self._timer.start()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if not act_on(self, event):
            super().keyPressEvent(event)
