"""The exponents of one tensor in one step, with the limits of a format drawn in."""

from __future__ import annotations

from math import floor
from typing import Any

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QPointF, Qt, Signal
from PySide6.QtWidgets import QToolTip

from precgui.gui.panels.tensors_spectrogram import TOLD, limits, line_pens, octave_text
from precgui.gui.plots.axes import ValueAxis
from precgui.gui.theme import themes
from precgui.runs.whatif import BIAS, Range


class Histogram(pg.PlotWidget):  # type: ignore[misc]
    """The exponents of one tensor in one step, as shares of its elements. `exponent_chosen`: a bar was clicked."""

    exponent_chosen = Signal(int)

    def __init__(self) -> None:
        super().__init__(axisItems={"bottom": ValueAxis("bottom", "linear"), "left": ValueAxis("left", "linear")})
        self.setAccessibleName("Exponents in one step")
        self.setMinimumHeight(120)
        self.setFrameShape(pg.PlotWidget.Shape.NoFrame)
        self.plotItem.hideButtons()
        self.plotItem.setMenuEnabled(False)
        self.plotItem.setMouseEnabled(False, False)
        self.plotItem.setContentsMargins(0, 0, 24, 0)  # as in the picture above it
        self.bars = pg.BarGraphItem(x=[], height=[], width=0.9)
        self.addItem(self.bars)
        self.lines = {name: pg.InfiniteLine(angle=90, movable=False) for name in TOLD}
        for line in self.lines.values():
            self.addItem(line, ignoreBounds=True)
        self._counts = np.zeros(256)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # what a click does is in the menu beside it, too
        self.scene().sigMouseClicked.connect(self._on_click)
        self.scene().sigMouseMoved.connect(self._on_mouse)
        themes().changed.connect(self.recolour)
        self.recolour()

    def show_range(self, spans: Range, log2_scale: int) -> None:
        """The limits of a format, as in the spectrogram."""
        for name, place in limits(spans, log2_scale).items():
            self.lines[name].setValue(place)

    def show_row(self, exponents: NDArray[np.float64]) -> None:
        """`exponents` (256,)."""
        self._counts = exponents
        seen = np.flatnonzero(exponents[1:-1]) + 1
        if not len(seen):
            self.bars.setOpts(x=[], height=[])
            return
        bins = np.arange(seen[0], seen[-1] + 1)
        share = exponents[bins] / max(float(exponents.sum()), 1.0)
        self.bars.setOpts(x=bins - BIAS + 0.5, height=share, width=0.9)
        self.plotItem.vb.setRange(
            xRange=(bins[0] - BIAS - 1, bins[-1] - BIAS + 2), yRange=(0, float(share.max()) * 1.08), padding=0
        )

    def recolour(self) -> None:
        theme = themes().theme
        self.setBackground(theme.base)
        self.bars.setOpts(brush=theme.accent, pen=None)
        for name, pen in line_pens().items():
            self.lines[name].setPen(pen)
        self.plotItem.setLabel("bottom", "exponent of two", color=theme.muted)
        self.plotItem.setLabel("left", "share", color=theme.muted)
        for side in ("left", "bottom"):
            self.getAxis(side).setPen(theme.line)
            self.getAxis(side).setTextPen(theme.muted)
            self.getAxis(side).setStyle(tickFont=self.font())

    def _on_click(self, event: Any) -> None:
        place = self.plotItem.vb.mapSceneToView(event.scenePos())
        exponent = floor(place.x())
        if self._is_drawn(exponent):
            self.exponent_chosen.emit(exponent)

    def _is_drawn(self, exponent: int) -> bool:
        drawn = self.bars.opts["x"]
        return bool(len(drawn) and drawn[0] - 0.5 <= exponent <= drawn[-1] and -126 <= exponent <= 127)

    def _on_mouse(self, place: QPointF) -> None:
        """Tell the numbers of the bar under the mouse."""
        exponent = floor(self.plotItem.vb.mapSceneToView(place).x())
        if self.plotItem.vb.sceneBoundingRect().contains(place) and self._is_drawn(exponent):
            QToolTip.showText(self.mapToGlobal(self.mapFromScene(place)), octave_text(self._counts, exponent), self)
        else:
            QToolTip.hideText()
