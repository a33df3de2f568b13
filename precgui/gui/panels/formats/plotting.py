"""Plots of this panel in the colours of the theme."""

from __future__ import annotations

import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor

from precgui.gui.plots.axes import colour_axes
from precgui.gui.plots.menus import own_menu
from precgui.gui.theme import themes


class Plot(pg.PlotWidget):  # type: ignore[misc]  # pyqtgraph is untyped
    """An empty plot that follows the theme."""

    def __init__(self, bottom: str = "", left: str = "") -> None:
        super().__init__(enableMenu=False)
        own_menu(self)
        item = self.getPlotItem()
        item.hideButtons()
        item.setContentsMargins(0, 0, 2, 2)  # the frame of the focus
        item.setLabels(bottom=bottom, left=left)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        for side in ("bottom", "left"):
            item.getAxis(side).enableAutoSIPrefix(False)
        self.recolour()
        themes().follow(self, self.recolour)

    def recolour(self) -> None:
        """Take the colours of the present theme."""
        colour_axes(self)


def pen(colour: str, width: float = 1.0, opacity: float = 1.0, dashed: bool = False) -> pg.mkPen:
    shade = QColor(colour)
    shade.setAlphaF(opacity)
    return pg.mkPen(shade, width=width, style=Qt.PenStyle.DashLine if dashed else Qt.PenStyle.SolidLine)


def brush(colour: str, opacity: float) -> pg.mkBrush:
    shade = QColor(colour)
    shade.setAlphaF(opacity)
    return pg.mkBrush(shade)
