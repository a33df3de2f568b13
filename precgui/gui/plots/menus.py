"""The menu that pyqtgraph makes for every plot, also where it is switched off."""

from __future__ import annotations

import pyqtgraph as pg


def own_menu(plot: pg.PlotWidget) -> None:
    """Let the menu of a plot, seven windows without a parent, go with the plot. The widgets in it hold its options.

    Without a parent they would belong to Python, whose collector may delete them in another thread.
    """
    menu = plot.getPlotItem().ctrlMenu
    menu.setParent(plot)
    menu.hide()  # a child that was never hidden would be shown with the plot
