"""The octave spectrogram: how many elements have which exponent, over the steps, with the range of a format on it."""

from __future__ import annotations

from math import floor
from typing import Any

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QRectF, Qt, Signal
from PySide6.QtGui import QColor, QPen

from precgui.gui.plots.axes import ValueAxis
from precgui.gui.plots.marks import NAN, PLUS_INF, paint, scatter
from precgui.gui.theme import themes
from precgui.runs.whatif import BIAS, Range

_FAINTEST = 1e-6  # the share of elements that is still drawn
_COLUMNS = 480
_MARGIN = 3  # octaves beyond what was seen
_MARKS = "Marks at the upper edge: × steps with NaN or Inf, ▲ steps in which something overflows. Click for a step."

_TOLD = {"zero": "becomes zero below", "normal": "loses digits below", "overflow": "overflows above"}


def limits(spans: Range, log2_scale: int) -> dict[str, float]:
    """The exponents, before scaling by 2^log2_scale, at which something happens to a number in a format."""
    ends = {"zero": spans.zero_below, "normal": spans.smallest_normal, "overflow": float(np.log2(spans.overflow))}
    return {name: end - log2_scale for name, end in ends.items()}


def line_pens() -> dict[str, QPen]:
    """How the lines of `limits` are drawn in the present theme."""
    theme = themes().theme
    solid, dashed = Qt.PenStyle.SolidLine, Qt.PenStyle.DashLine
    return {
        "zero": pg.mkPen(theme.error, width=1.5, style=solid),
        "normal": pg.mkPen(theme.warning, width=1.5, style=dashed),
        "overflow": pg.mkPen(theme.error, width=1.5, style=solid),
    }


class Spectrogram(pg.PlotWidget):  # type: ignore[misc]  # pyqtgraph is untyped
    """Time from left to right, exponents of two from bottom to top, the share of the elements as colour.

    `step_chosen` tells which step was clicked.
    """

    step_chosen = Signal(float)

    def __init__(self) -> None:
        super().__init__(axisItems={"left": ValueAxis("left", "log2"), "bottom": ValueAxis("bottom", "step")})
        self.setAccessibleName("Exponents over the steps")
        self.setMinimumHeight(200)
        self.setFrameShape(pg.PlotWidget.Shape.NoFrame)
        self.plotItem.hideButtons()
        self.plotItem.setMenuEnabled(False)
        self.plotItem.setContentsMargins(0, 6, 24, 0)
        self.image = pg.ImageItem(axisOrder="col-major")
        self.addItem(self.image)
        self.lines = {name: self._line() for name in _TOLD}
        self.chosen = pg.InfiniteLine(angle=90, movable=False)
        self.chosen.hide()
        self.addItem(self.chosen, ignoreBounds=True)
        self._top = 0.0
        self._bad_steps, self._over_steps = np.empty(0), np.empty(0)
        self.bad, self.over = scatter(), scatter(7)
        for marks in (self.bad, self.over):
            self.addItem(marks, ignoreBounds=True)
        self.setToolTip(_MARKS)
        self.scene().sigMouseClicked.connect(self._on_click)
        themes().changed.connect(self.recolour)
        self.recolour()

    def _line(self) -> Any:
        line = pg.InfiniteLine(
            angle=0, movable=False, label="", labelOpts={"position": 0.98, "anchors": [(1, 1), (1, 0)]}
        )
        line.hide()
        self.addItem(line, ignoreBounds=True)
        return line

    def show_rows(self, steps: NDArray[np.int64], exponents: NDArray[np.float64]) -> None:
        """`steps` (rows,) and `exponents` (rows, 256). A row reaches to the next one."""
        counts = exponents.copy()
        counts[:, -1] = 0
        share = counts / np.maximum(exponents.sum(1, dtype=np.float64), 1)[:, None]
        share[:, 0] = 0  # zeros have no exponent
        seen = np.flatnonzero(share.any(0))
        low, high = (int(seen[0]) - _MARGIN, int(seen[-1]) + _MARGIN + 1) if len(seen) else (100, 140)
        low, high = max(low, 0), min(high, share.shape[1] - 1)
        left, right = float(steps[0]), float(max(steps[-1], steps[0] + 1))
        grid = np.linspace(left, right, _COLUMNS)
        rows = np.clip(np.searchsorted(steps, grid, "right") - 1, 0, len(steps) - 1)
        with np.errstate(divide="ignore"):
            level = np.log10(np.maximum(share[rows, low:high], 0) / _FAINTEST)
        self.image.setImage(np.clip(level, 0, None), levels=(0.0, -np.log10(_FAINTEST)), autoLevels=False)
        self.image.setRect(QRectF(left, low - BIAS, right - left, high - low))
        self.plotItem.vb.setRange(xRange=(left, right), yRange=(low - BIAS, high - BIAS), padding=0)
        self._top = high - BIAS
        self._place_marks()

    def show_bad(self, steps: NDArray[np.float64]) -> None:
        """Mark steps with NaN or Inf; a click on a mark chooses exactly that step."""
        self._bad_steps = steps
        self._place_marks()

    def show_over(self, steps: NDArray[np.float64]) -> None:
        """Mark steps in which something overflows the format, be it one element."""
        if not np.array_equal(steps, self._over_steps):
            self._over_steps = steps
            self._place_marks()

    def _place_marks(self) -> None:
        """At the upper edge, where no exponent is."""
        bad, over = self._bad_steps, self._over_steps
        self.bad.setData(bad, np.full(len(bad), self._top - 0.7), symbol=NAN)
        self.over.setData(over, np.full(len(over), self._top - 2.0), symbol=PLUS_INF)

    def show_range(self, spans: Range | None, log2_scale: int) -> None:
        """Draw what a format holds of tensors that are multiplied by 2^log2_scale first; None draws nothing."""
        if spans is None:
            for line in self.lines.values():
                line.hide()
            return
        for name, place in limits(spans, log2_scale).items():
            line = self.lines[name]
            if not line.isVisible():
                line.show()  # a label takes no text while its line is hidden
                line.label.setFormat(_TOLD[name])
            line.setValue(place)

    def choose(self, step: float | None) -> None:
        self.chosen.setVisible(step is not None)
        if step is not None:
            self.chosen.setValue(step)

    def recolour(self) -> None:
        theme = themes().theme
        self.setBackground(theme.base)
        ramp = [theme.base, theme.blend(theme.accent, 0.35), theme.accent, theme.blend(theme.text, 0.75, theme.accent)]
        colours = [QColor(colour) for colour in ramp]
        self.image.setColorMap(pg.ColorMap([0.0, 0.45, 0.85, 1.0], colours))
        for name, pen in line_pens().items():
            self.lines[name].setPen(pen)
            self.lines[name].label.setColor(pen.color())
            self.lines[name].label.fill = pg.mkBrush(theme.base)
        self.chosen.setPen(pg.mkPen(theme.text, width=1))
        paint(self.bad, theme.error)
        paint(self.over, theme.warning)
        for side in ("left", "bottom"):
            axis = self.getAxis(side)
            axis.setPen(theme.line)
            axis.setTextPen(theme.muted)
            axis.setStyle(tickFont=self.font())

    def _on_click(self, event: Any) -> None:
        if not self.plotItem.vb.sceneBoundingRect().contains(event.scenePos()):
            return
        marked = self.bad.pointsAt(self.bad.mapFromScene(event.scenePos()))
        place = marked[0].pos() if len(marked) else self.plotItem.vb.mapSceneToView(event.scenePos())
        self.step_chosen.emit(float(place.x()))


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
        self.bars = pg.BarGraphItem(x=[], height=[], width=0.9)
        self.addItem(self.bars)
        self.lines = {name: pg.InfiniteLine(angle=90, movable=False) for name in _TOLD}
        for line in self.lines.values():
            self.addItem(line, ignoreBounds=True)
        self.scene().sigMouseClicked.connect(self._on_click)
        themes().changed.connect(self.recolour)
        self.recolour()

    def show_range(self, spans: Range, log2_scale: int) -> None:
        """The limits of a format, as in the spectrogram."""
        for name, place in limits(spans, log2_scale).items():
            self.lines[name].setValue(place)

    def show_row(self, exponents: NDArray[np.float64]) -> None:
        """`exponents` (256,)."""
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
        for side in ("left", "bottom"):
            self.getAxis(side).setPen(theme.line)
            self.getAxis(side).setTextPen(theme.muted)
            self.getAxis(side).setStyle(tickFont=self.font())

    def _on_click(self, event: Any) -> None:
        place = self.plotItem.vb.mapSceneToView(event.scenePos())
        exponent = floor(place.x())
        drawn = self.bars.opts["x"]
        if len(drawn) and drawn[0] - 0.5 <= exponent <= drawn[-1] and -126 <= exponent <= 127:
            self.exponent_chosen.emit(exponent)
