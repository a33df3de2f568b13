"""The menu that pyqtgraph makes for every plot, also where it is switched off."""

from __future__ import annotations

import pyqtgraph as pg


def own_menu(plot: pg.PlotWidget) -> None:
    """Let the menu of a plot, seven windows, end with the plot. The widgets in it hold its options.

    It is no child of the plot, for its forty widgets would take part in each change of the theme.
    """
    plot.destroyed.connect(plot.getPlotItem().ctrlMenu.deleteLater)
