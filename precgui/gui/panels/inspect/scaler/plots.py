"""Three plots over the steps, one below the other: scale, skipped steps, share that becomes zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QScrollArea, QVBoxLayout, QWidget

from precgui.gui.colours import DASHES
from precgui.gui.plots.axes import ValueAxis, wrap_label
from precgui.gui.plots.menus import own_menu
from precgui.gui.plots.view import PlotView
from precgui.gui.theme import themes
from precgui.runs.scaler_simulation import MOST_POLICIES, Simulation
from precgui.runs.signals import Series
from precgui.words import L_, _, translated

Values = NDArray[np.float64]
TITLES = (L_("Loss scale"), L_("Skipped steps"), L_("To zero (%)"))
_MOST_POINTS = 3000
_MARGIN = 0.07
_AXIS_PX = 34  # of the x axis below the last plot, with its name


class SimulationPlots(QWidget):
    """`step_clicked`: a person clicked at a step of any plot."""

    step_clicked = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.plots = [self._plot(translated(title), place) for place, title in enumerate(TITLES)]
        self.curves = [[plot.plot() for policy in range(MOST_POLICIES)] for plot in self.plots]
        self.limit, self.recorded = self.plots[0].plot(), self.plots[0].plot()
        self._marks: list[Any] = []
        self._steps: NDArray[np.int64] = np.empty(0, np.int64)
        self._injected: tuple[int, ...] = ()
        body, area, whole = QWidget(), QScrollArea(self), QVBoxLayout(self)
        area.setWidget(body)
        area.setWidgetResizable(True)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.addWidget(area)
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        for plot in self.plots:
            column.addWidget(plot, 4 if plot is self.plots[-1] else 3)
        for plot in self.plots[1:]:
            plot.setXLink(self.plots[0])
        for plot in self.plots[:-1]:
            plot.getAxis("bottom").setStyle(showValues=False)
        self.plots[-1].getAxis("bottom").setLabel(_("Step"))
        themes().follow(self, self.restyle)
        self.restyle()

    def _plot(self, title: str, place: int) -> Any:
        left = ValueAxis("left", "log2" if place == 0 else "linear")
        view = PlotView()
        axes = {"left": left, "bottom": ValueAxis("bottom", "step")}
        plot = pg.PlotWidget(viewBox=view, axisItems=axes, enableMenu=False)
        own_menu(plot)
        plot.setMinimumHeight(6 * self.fontMetrics().height() + _AXIS_PX * (place == len(TITLES) - 1))
        plot.setFrameShape(pg.PlotWidget.Shape.NoFrame)
        plot.hideButtons()
        plot.setAccessibleName(title)
        plot.setTitle(None)
        plot.plotItem.setContentsMargins(2, 4, 12, 2)  # the frame of the focus
        left.setWidth(84)
        left.setLabel(title)
        wrap_label(left)
        for axis in (left, plot.getAxis("bottom")):
            axis.setGrid(80)
        view.reset.connect(self.show_whole)
        plot.scene().sigMouseClicked.connect(lambda event, view=view: self._on_click(event, view))
        return plot

    def _on_click(self, event: Any, view: PlotView) -> None:
        """A click at a step; of a double click both come, so that what the first has changed is put back."""
        if event.button() != Qt.MouseButton.LeftButton or not len(self._steps):
            return
        if not view.sceneBoundingRect().contains(event.scenePos()):
            return
        requested = view.mapSceneToView(event.scenePos()).x()
        self.step_clicked.emit(int(self._steps[np.argmin(np.abs(self._steps - requested))]))

    def show_whole(self) -> None:
        """All steps."""
        if len(self._steps):
            first, last = float(self._steps[0]), float(self._steps[-1])
            self.plots[0].setXRange(first - 0.5, max(last, first + 1) + 0.5, padding=0)

    def show_simulations(
        self,
        steps: NDArray[np.int64],
        simulations: Sequence[Simulation | None],
        limits: Values,
        injected: tuple[int, ...],
        recorded: Series | None = None,
    ) -> None:
        """Draw a simulation for each policy that is shown, the least scale that overflows in each step, and the scale
        that was `recorded` as (step, scale)."""
        fresh = not np.array_equal(steps, self._steps)
        self._steps = steps
        heights: list[list[Values]] = [[], [], []]
        for place, each in enumerate(simulations):
            series = _series(each) if each is not None else (np.empty(0),) * 3
            for row, values in enumerate(series):
                self.curves[row][place].setData(*min_max(steps[: len(values)], values))
                heights[row].append(values)
        drawn = np.where((limits > 0) & np.isfinite(limits), limits, np.nan)
        self.limit.setData(*min_max(steps[: len(drawn)], np.log2(drawn)), connect="finite")
        heights[0].append(self._draw_recorded(recorded))
        for row, (plot, values_of) in enumerate(zip(self.plots, heights, strict=True)):
            _fit(plot, values_of, is_count=row > 0)
        if fresh:
            self.show_whole()
        if injected != self._injected:
            self._mark(injected)

    def _draw_recorded(self, recorded: Series | None) -> Values:
        """Draw the recorded scale; its log2, NaN where it is 0 or not finite."""
        steps, scale = recorded if recorded is not None else (np.empty(0), np.empty(0))
        height = np.log2(np.where((scale > 0) & np.isfinite(scale), scale, np.nan))
        self.recorded.setData(steps, height, connect="finite")
        return height

    def _mark(self, injected: tuple[int, ...]) -> None:
        for plot, mark in self._marks:
            plot.removeItem(mark)
        self._injected = injected
        pen = pg.mkPen(themes().theme.error, width=1, style=Qt.PenStyle.DashLine)
        self._marks = [(plot, pg.InfiniteLine(step, pen=pen)) for plot in self.plots for step in injected]
        for plot, mark in self._marks:
            plot.addItem(mark, ignoreBounds=True)

    def restyle(self) -> None:
        theme = themes().theme
        for plot, curves in zip(self.plots, self.curves, strict=True):
            plot.setBackground(theme.base)
            for name in ("bottom", "left"):
                plot.getAxis(name).setPen(theme.line)
                plot.getAxis(name).setTextPen(theme.muted)
            for place, curve in enumerate(curves):
                pen = pg.mkPen(theme.runs[place], width=1.5)
                if DASHES[place]:
                    pen.setDashPattern(DASHES[place])
                curve.setPen(pen)
        self.limit.setPen(pg.mkPen(theme.muted, width=1, style=Qt.PenStyle.DotLine))
        self.recorded.setPen(pg.mkPen(theme.muted, width=1))
        self._mark(self._injected)


def _series(simulation: Simulation) -> tuple[Values, Values, Values]:
    return np.log2(simulation.scale), np.cumsum(simulation.skipped, dtype=np.float64), 100 * simulation.underflow


def _fit(plot: Any, values_of: list[Values], *, is_count: bool) -> None:
    """Show all finite values of a plot; counts and shares begin at zero."""
    known = np.concatenate([values[np.isfinite(values)] for values in values_of] or [np.empty(0)])
    if len(known):
        low, high = float(known.min()), float(known.max())
        if is_count:
            low, high = 0.0, high or 1.0
        margin = max(_MARGIN * (high - low), 0.5 if high == low else 1e-9)
        plot.setYRange(low - margin, high + margin, padding=0)


def min_max(x: NDArray[Any], y: Values) -> tuple[NDArray[Any], Values]:
    """Points to draw, at most some 3000: of many neighbours the smallest and the largest, so that no peak is lost."""
    if len(y) <= _MOST_POINTS:
        return x, y
    width = -(-len(y) // (_MOST_POINTS // 2))
    starts = np.arange(0, len(y), width)
    low, high = np.fmin.reduceat(y, starts), np.fmax.reduceat(y, starts)
    return np.repeat(x[starts], 2), np.stack((low, high), 1).ravel()
