"""Plots of this panel in the colours of the theme."""

from __future__ import annotations

import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor

from precgui.gui.theme import themes


def plot(bottom: str = "", left: str = "", axes: dict[str, pg.AxisItem] | None = None) -> pg.PlotWidget:
    """An empty plot that follows the theme."""
    widget = pg.PlotWidget(axisItems=axes or {})
    item = widget.getPlotItem()
    item.hideButtons()
    item.setMenuEnabled(False)
    item.setLabels(bottom=bottom, left=left)
    widget.setFocusPolicy(Qt.FocusPolicy.StrongFocus)

    def recolour() -> None:
        theme = themes().theme
        widget.setBackground(theme.base)
        for side in ("bottom", "left"):
            axis = item.getAxis(side)
            axis.enableAutoSIPrefix(False)
            axis.setPen(pg.mkPen(theme.line))
            axis.setTextPen(pg.mkPen(theme.muted))

    recolour()
    themes().changed.connect(recolour)
    return widget


def pen(colour: str, width: float = 1.0, opacity: float = 1.0, dashed: bool = False) -> pg.mkPen:
    shade = QColor(colour)
    shade.setAlphaF(opacity)
    return pg.mkPen(shade, width=width, style=Qt.PenStyle.DashLine if dashed else Qt.PenStyle.SolidLine)


def brush(colour: str, opacity: float) -> pg.mkBrush:
    shade = QColor(colour)
    shade.setAlphaF(opacity)
    return pg.mkBrush(shade)


def row_colour(place: int) -> str:
    """The colour of the n-th format."""
    runs = themes().theme.runs
    return runs[place % len(runs)]
