"""Differences of branches from FP32 over the steps at which they begin, with the mean and its interval."""

from __future__ import annotations

import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor

from precgui.gui.plots.axes import colour_axes
from precgui.gui.plots.menus import own_menu
from precgui.gui.theme import themes
from precgui.runs.twins import TwinResult
from precgui.words import _

_BAND_ALPHA = 50  # of 255


class BranchPlot(pg.PlotWidget):  # type: ignore[misc]  # pyqtgraph is untyped
    """One dot a branch: filled for the precision, hollow for the rounding twins; branches that broke have none."""

    def __init__(self) -> None:
        super().__init__(enableMenu=False)
        own_menu(self)
        self.setMouseEnabled(x=False, y=False)
        self.hideButtons()
        self.setMinimumHeight(160)
        self.low = pg.ScatterPlotItem(size=9, pen=None)
        self.twins = pg.ScatterPlotItem(size=8, symbol="o", brush=None)
        self.mean = pg.InfiniteLine(angle=0)
        self.zero = pg.InfiniteLine(pos=0, angle=0)
        self.interval = pg.LinearRegionItem(orientation="horizontal", movable=False)
        for item in (self.interval, self.zero, self.mean, self.twins, self.low):
            self.addItem(item, ignoreBounds=item in (self.zero, self.mean))
        self.getAxis("bottom").setLabel(_("step at which the branch begins"))
        self.getAxis("left").setLabel(_("held-out loss minus that of FP32"))
        self.getAxis("left").enableAutoSIPrefix(False)
        self.setAccessibleName(_("Differences of the branches from FP32"))
        themes().follow(self, self._recolour)
        self._recolour()

    def show_result(self, result: TwinResult) -> None:
        """Draw the branches of a result."""
        low = [(p.step, p.low - p.reference) for p in result.branches if p.low is not None]
        twins = [(p.step, v - p.reference) for p in result.branches for v in p.twins if v is not None]
        self.low.setData([x for x, _ in low], [y for _, y in low])
        self.twins.setData([x for x, _ in twins], [y for _, y in twins])
        drift = result.drift
        for item in (self.mean, self.interval):
            item.setVisible(drift.mean is not None)
        if drift.mean is not None and drift.low is not None and drift.high is not None:
            self.mean.setPos(drift.mean)
            self.interval.setRegion((drift.low, drift.high))
        self.autoRange()

    def _recolour(self) -> None:
        theme = themes().theme
        colour_axes(self)
        self.low.setBrush(theme.accent)
        self.twins.setPen(pg.mkPen(theme.text, width=1))
        self.zero.setPen(pg.mkPen(theme.muted, width=1))
        self.mean.setPen(pg.mkPen(theme.accent, width=1, style=Qt.PenStyle.DashLine))
        band = QColor(theme.accent)
        band.setAlpha(_BAND_ALPHA)
        self.interval.setBrush(band)
        for line in self.interval.lines:
            line.setPen(pg.mkPen(None))
