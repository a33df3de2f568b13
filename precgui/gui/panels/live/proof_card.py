"""The proof of a finding above the plots of Live: its sentence, its numbers with their limit, and the ways on."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QFrame, QWidget

from precgui.gui.kit.parts import button, column, label, row
from precgui.gui.next_turn import in_next_turn
from precgui.gui.open_run import OpenRun
from precgui.gui.plots.chart import colour_of
from precgui.gui.plots.signals import Scale, number, to_plot
from precgui.gui.plots.simple_plot import SimplePlot
from precgui.gui.proof import Proof
from precgui.gui.theme import severity_colour, themes
from precgui.words import _, translated

if TYPE_CHECKING:
    from precgui.runs.diagnosis.findings import Evidence, Finding

MOST = 3  # plots, which stand side by side
_PLOT_PX, _LEAST_PLOT_PX = 190, 120  # high; less where the window is low
_LOG_FROM = 1000.0  # largest over smallest value, from which the axis is logarithmic
_SHADE = 28  # of 255: how dense the steps of the finding are shaded
_DOTS_BELOW = 60  # points: with fewer each is marked


class ProofCard(QFrame):
    """Shows the proof that it is made for; `closed` when it is no longer wanted.

    The first of its plots is there at once, each further one comes in a turn of the event loop of its own.
    """

    closed = Signal()

    def __init__(self, proof: Proof, opened: OpenRun, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "card")
        finding = proof.finding
        self.title = label(f"{opened.name}: {translated(finding.title)}", "heading")
        self.more = button(_("More in Inspect"), proof.more or (lambda: None), _("The tab of Inspect that is about it"))
        self.close_button = button(_("Close the proof"), self.closed.emit, _("Back to the plots as they were (Esc)"))
        self.plots: list[ProofPlot] = []
        self.texts = [label(translated(each.text), "muted", selectable=True) for each in proof.evidence[:MOST]]
        for text in self.texts:
            text.setAlignment(Qt.AlignmentFlag.AlignTop)
        rooms = [column(text, 1, spacing=2) for text in self.texts]
        self._left = [
            (room, partial(ProofPlot, each, finding, opened)) for room, each in zip(rooms, proof.evidence, strict=False)
        ]
        head = row((self.title, 1), self.more, self.close_button)
        column(head, row(*((room, 1) for room in rooms), spacing=12), spacing=8, margins=(12, 12, 12, 12), on=self)
        self.more.setVisible(proof.more is not None)
        self._add_plot()

    def _add_plot(self) -> None:
        if not self._left:
            return
        room, make = self._left.pop(0)
        plot = make()
        plot.setMinimumHeight(_LEAST_PLOT_PX)
        plot.setMaximumHeight(_PLOT_PX)
        self.plots.append(plot)
        room.addWidget(plot)
        in_next_turn(self, self._add_plot)


class ProofPlot(SimplePlot):
    """The line has the recorded numbers; red marks are not finite, the shade has the steps of the finding."""

    def __init__(self, evidence: Evidence, finding: Finding, opened: OpenRun, parent: QWidget | None = None) -> None:
        self.evidence, self._finding, self._opened = evidence, finding, opened
        self.scale_kind = scale_of(evidence)
        super().__init__(translated(evidence.signal), self.scale_kind, parent=parent)
        self.redraw()
        self.show_all()

    def draw(self) -> str:
        steps, values = (np.asarray(part, dtype=float) for part in zip(*self.evidence.series, strict=True))
        self.name_axes(_("Step"), translated(self.evidence.signal))
        first, last = self._finding.first_step, self._finding.last_step
        tint = QColor(severity_colour(self._finding.severity))
        tint.setAlpha(_SHADE)
        shade = pg.LinearRegionItem((first - 0.5, last + 0.5), brush=tint, pen=pg.mkPen(None), movable=False)
        self.addItem(shade, ignoreBounds=True)
        plotted = to_plot(values, 1.0, self.scale_kind)
        symbol = "o" if len(steps) < _DOTS_BELOW else None
        colour = colour_of(self._opened)
        pen, brush = pg.mkPen(colour, width=2), pg.mkBrush(colour)
        self.addItem(pg.PlotDataItem(steps, plotted, pen=pen, symbol=symbol, symbolSize=5, symbolPen=None,
                                     symbolBrush=brush, connect="finite"))  # fmt: skip
        self._draw_limit(steps)
        self._draw_lost(steps, plotted)
        return ""

    def _draw_limit(self, steps: np.ndarray) -> None:
        if not math.isfinite(limit := self.evidence.limit):
            return
        at = float(to_plot(np.asarray([limit]), 1.0, self.scale_kind)[0])
        pen = pg.mkPen(severity_colour("error"), width=1.5, style=Qt.PenStyle.DashLine)
        self.addItem(pg.PlotCurveItem([float(steps[0]), float(steps[-1])], [at, at], pen=pen))
        name = pg.TextItem(
            _("limit {value}").format(value=number(limit, 4)), color=severity_colour("error"), anchor=(1, 1)
        )
        name.setFont(self.font())
        name.setPos(float(steps[-1]), at)
        self.addItem(name, ignoreBounds=True)

    def _draw_lost(self, steps: np.ndarray, plotted: np.ndarray) -> None:
        """Mark values that cannot be drawn at the upper edge of those that can."""
        lost = ~np.isfinite(plotted)
        if lost.any():
            top = float(np.nanmax(plotted[~lost])) if (~lost).any() else 0.0
            pen = pg.mkPen(themes().theme.error, width=1.5)
            self.addItem(pg.ScatterPlotItem(steps[lost], np.full(int(lost.sum()), top), symbol="x", size=8, pen=pen))


def scale_of(evidence: Evidence) -> Scale:
    """Logarithmic where positive values, with their limit, span three powers of ten."""
    known = [value for _, value in (*evidence.series, (0, evidence.limit)) if math.isfinite(value)]
    spans = bool(known) and min(known) > 0 and max(known) >= _LOG_FROM * min(known)
    return "log10" if spans else "linear"
