"""The pictures of a quantised tensor: its histogram before and after, and some of its elements."""

from __future__ import annotations

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QSpinBox, QSplitter, QVBoxLayout, QWidget

from precgui.formats.comparison import FormatComparison
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.panels.formats.plotting import Plot, brush, pen
from precgui.gui.theme import themes
from precgui.words import _, error_text

ELEMENTS_PER_VIEW = 128


class QuantisePlots(QSplitter):
    """Histogram above, elements below. `failed` brings one sentence."""

    failed = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(Qt.Orientation.Vertical, parent)
        self._comparison: FormatComparison | None = None
        self.histogram = Plot(bottom=_("value"), left=_("elements in a bin"))
        self.histogram.setAccessibleName(_("Histogram before and after"))
        self.elements = Plot(bottom=_("element"), left=_("value"))
        self.elements.setAccessibleName(_("Elements before and after"))
        self._legends = [plot.addLegend(offset=(-12, 4), colCount=2) for plot in (self.histogram, self.elements)]
        for plot, rows in ((self.histogram, 1), (self.elements, 2)):
            plot.getPlotItem().vb.sigResized.connect(lambda _, plot=plot, rows=rows: _leave_room(plot, rows))
        self.first = QSpinBox()
        self.first.setSingleStep(ELEMENTS_PER_VIEW)
        self.first.setAccessibleName(_("First element that is shown"))
        self.first.valueChanged.connect(self._draw_elements)
        lower = QWidget()
        column = QVBoxLayout(lower)
        column.setContentsMargins(0, 0, 0, 0)
        row = QHBoxLayout()
        row.setContentsMargins(8, 0, 0, 0)
        label = PlainLabel(_("{count} elements from").format(count=ELEMENTS_PER_VIEW))
        label.setBuddy(self.first)
        for widget in (label, self.first):
            row.addWidget(widget)
        row.addStretch(1)
        column.addLayout(row)
        column.addWidget(self.elements, 1)
        self.setChildrenCollapsible(False)
        self.addWidget(self.histogram)
        self.addWidget(lower)

    def show_comparison(self, comparison: FormatComparison) -> None:
        self._comparison = comparison
        self.first.blockSignals(True)
        self.first.setRange(0, min(max(comparison.source.size - ELEMENTS_PER_VIEW, 0), 2**31 - 1))
        self.first.blockSignals(False)
        self.draw()

    def draw(self) -> None:
        """Draw again, in the colours of the theme."""
        for legend in self._legends:
            legend.setLabelTextColor(themes().theme.text)
            legend.setBrush(brush(themes().theme.base, 0.8))
        self._draw_histogram()
        self._draw_elements()

    def _draw_histogram(self) -> None:
        item, theme, displayed = self.histogram.getPlotItem(), themes().theme, self._comparison
        item.clear()
        if displayed is None:
            return
        view = {"pen": None, "brush": brush(theme.muted, 0.45), "name": _("before")}
        item.addItem(pg.BarGraphItem(x0=displayed.edges[:-1], x1=displayed.edges[1:], height=displayed.counts, **view))
        if displayed.levels.size:
            share = displayed.level_counts * (displayed.counts.max() / max(displayed.level_counts.max(), 1))
            x, y = np.repeat(displayed.levels, 2), np.column_stack([np.zeros_like(share), share]).ravel()
            item.addItem(pg.PlotCurveItem(x, y, connect="pairs", pen=pen(theme.accent, 2), name=_("after (scaled)")))
        else:
            line = pg.PlotCurveItem(
                displayed.edges, displayed.after, stepMode="center", pen=pen(theme.accent, 2), name=_("after")
            )
            item.addItem(line)
        _leave_room(self.histogram, rows=1)

    def _draw_elements(self) -> None:
        item, theme = self.elements.getPlotItem(), themes().theme
        item.clear()
        if self._comparison is None:
            return
        start = self.first.value()
        try:
            part = self._comparison.part(start, start + ELEMENTS_PER_VIEW)
        except ValueError as error:  # the file is gone
            self.failed.emit(error_text(error))
            return
        before, after, clipped, zeroed = part.before, part.after, part.clipped, part.zeroed
        place = start + np.arange(before.size)
        known = np.isfinite(before) & np.isfinite(after)
        lines = np.column_stack([before, after])[known].ravel()
        item.addItem(pg.PlotCurveItem(np.repeat(place[known], 2), lines, connect="pairs", pen=pen(theme.line, 1)))
        for mask, values, colour, symbol, name in (
            (known, before, theme.muted, "o", _("before")),
            (known & ~clipped & ~zeroed, after, theme.accent, "o", _("after")),
            (known & zeroed, after, theme.warning, "d", _("became zero")),
            (known & clipped, after, theme.error, "s", _("clipped")),
        ):
            marks = {"size": 6 if symbol == "o" else 8, "symbol": symbol, "pen": None, "brush": brush(colour, 0.9)}
            item.addItem(pg.ScatterPlotItem(place[mask], values[mask], name=name, **marks))
        _leave_room(self.elements, rows=2)


def _leave_room(plot: Plot, rows: int) -> None:
    """Show all values, with room above them for the rows of the legend."""
    view = plot.getPlotItem().vb
    view.autoRange()
    low, high = view.viewRange()[1]
    share = min(0.6, (rows + 0.5) * plot.fontMetrics().height() * 1.4 / max(plot.height() - 40, 100))
    plot.setYRange(low, low + (high - low) / (1 - share), padding=0)
