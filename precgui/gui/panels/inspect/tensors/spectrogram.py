"""The octave spectrogram: how many elements have which exponent, over the steps, with the range of a format on it."""

from __future__ import annotations

from math import floor
from typing import Any

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QFocusEvent, QKeyEvent, QPen
from PySide6.QtWidgets import QGraphicsSimpleTextItem, QToolTip

from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.plots.axes import TICK_TEXT_TOP_PX, ValueAxis, wrap_label
from precgui.gui.plots.marks import NAN, PLUS_INF, paint, scatter
from precgui.gui.plots.menus import own_menu
from precgui.gui.plots.signals import grouped, power_label
from precgui.gui.plots.view import PlotView
from precgui.gui.theme import themes
from precgui.runs.tensors.what_if import BIAS, Range
from precgui.words import L_, _, translated

_FAINTEST = 1e-6  # the share of elements that is still drawn
_COLUMNS = 480
_MARGIN = 3  # octaves beyond the recorded ones
_SIDE_MARGIN = 0.012  # of the width, so that marks in the first step are whole
_MOST_TICKS = 64  # more would be a solid line
_TICK_SHARE = 0.025  # of the height
_NAME_PX = 52  # from the left end of the axis of steps to its name
_ABOUT = L_(
    "The colour is the share of the elements, logarithmic from 10⁻⁶ to 1. Marks at the upper edge: × steps with NaN or "
    "Inf, ▲ steps in which something overflows; ticks at the lower edge: the recorded steps. Click or use "
    "the arrow keys for a step; wheel and drag zoom, a double click or Home shows all."
)

LIMIT_LABELS = {
    "zero": L_("becomes zero below"),
    "normal": L_("loses digits below"),
    "overflow": L_("overflows above"),
}


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

    `step_chosen` carries the step that was clicked or reached with the keys.
    """

    step_chosen = Signal(float)

    def __init__(self) -> None:
        self.view = PlotView()
        axes = {"left": ValueAxis("left", "log2"), "bottom": ValueAxis("bottom", "step")}
        super().__init__(viewBox=self.view, axisItems=axes, enableMenu=False)
        own_menu(self)
        self.setAccessibleName(_("Exponents over the steps"))
        self.setAccessibleDescription(translated(_ABOUT))
        self.setMinimumHeight(200)
        self.setFrameShape(pg.PlotWidget.Shape.NoFrame)
        self.plotItem.hideButtons()
        self.plotItem.setContentsMargins(2, 8, 24, 2)  # the frame of the focus
        self.image = pg.ImageItem(axisOrder="col-major")
        self.image.setZValue(-2)
        self.addItem(self.image)
        self.lines = {name: self._line() for name in LIMIT_LABELS}
        self.chosen = pg.InfiniteLine(angle=90, movable=False)
        self.chosen.hide()
        self.addItem(self.chosen, ignoreBounds=True)
        self._axis_name = QGraphicsSimpleTextItem(_("step"), self.getAxis("bottom"))
        self._axis_name.setFont(self.font())
        self._axis_name.setPos(-_NAME_PX, TICK_TEXT_TOP_PX)
        self.ticks = pg.VTickGroup(yrange=[0, _TICK_SHARE])
        self.ticks.setZValue(-1)  # below the lines and their words
        self.addItem(self.ticks, ignoreBounds=True)
        self._steps, self._counts = np.empty(0, np.int64), np.empty((0, 256))
        self._whole: tuple[tuple[float, float], tuple[float, float]] | None = None
        self._is_zoomed = False
        self._top = 0.0
        self._bad_steps, self._over_steps = np.empty(0), np.empty(0)
        self.bad, self.over = scatter(), scatter(7)
        for marks in (self.bad, self.over):
            self.addItem(marks, ignoreBounds=True)
        self.scene().sigMouseClicked.connect(self._on_click)
        self.scene().sigMouseMoved.connect(self._on_mouse)
        self.view.moved.connect(self._on_moved)
        self.view.reset.connect(self.show_all)
        themes().follow(self, self.recolour)
        self.recolour()

    def _line(self) -> Any:
        line = pg.InfiniteLine(
            angle=0, movable=False, label="", labelOpts={"position": 0.98, "anchors": [(1, 0), (1, 1)]}
        )
        line.hide()
        self.addItem(line, ignoreBounds=True)
        return line

    def show_rows(self, steps: NDArray[np.int64], exponents: NDArray[np.float64]) -> None:
        """`steps` (rows,) and `exponents` (rows, 256). A row reaches to the next one, the last as far as others do."""
        self._steps, self._counts = steps, exponents
        counts = exponents.copy()
        counts[:, -1] = 0
        share = counts / np.maximum(exponents.sum(1, dtype=np.float64), 1)[:, None]
        share[:, 0] = 0  # zeros have no exponent
        visited = np.flatnonzero(share.any(0))
        low, high = (int(visited[0]) - _MARGIN, int(visited[-1]) + _MARGIN + 1) if len(visited) else (100, 140)
        low, high = max(low, 0), min(high, share.shape[1] - 1)
        gaps = np.diff(steps) if len(steps) > 1 else np.ones(1)
        left, right = float(steps[0]), float(steps[-1] + min(np.median(gaps), gaps[-1]))
        grid = np.linspace(left, right, _COLUMNS)
        rows = np.clip(np.searchsorted(steps, grid, "right") - 1, 0, len(steps) - 1)
        with np.errstate(divide="ignore"):
            level = np.log10(np.maximum(share[rows, low:high], 0) / _FAINTEST)
        self.image.setImage(np.clip(level, 0, None), levels=(0.0, -np.log10(_FAINTEST)), autoLevels=False)
        self.image.setRect(QRectF(left, low - BIAS, right - left, high - low))
        self.ticks.setXVals(steps.tolist() if len(steps) <= _MOST_TICKS else [])
        beyond = _SIDE_MARGIN * (right - left)
        self._whole = (left - beyond, right + beyond), (low - BIAS, high - BIAS)
        self._top = high - BIAS
        if not self._is_zoomed:
            self.show_all()
        self._place_marks()

    def show_all(self) -> None:
        """Reset the zoom."""
        self._is_zoomed = False
        if self._whole is not None:
            self.view.setRange(xRange=self._whole[0], yRange=self._whole[1], padding=0)

    def _on_moved(self, *_: bool) -> None:
        self._is_zoomed = True

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
        """Put the marks at the upper edge, above all exponents."""
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
                line.label.setFormat(translated(LIMIT_LABELS[name]))
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
        self.ticks.setPen(pg.mkPen(theme.muted, width=1))
        self.view.rbScaleBox.setPen(pg.mkPen(theme.accent))
        self._axis_name.setBrush(QColor(theme.muted))
        self.setLabel("left", _("magnitude"), color=theme.muted)
        wrap_label(self.getAxis("left"))
        paint(self.bad, theme.error)
        paint(self.over, theme.warning)
        for side in ("left", "bottom"):
            axis = self.getAxis(side)
            axis.setPen(pg.mkPen(theme.accent, width=2) if self.hasFocus() else theme.line)
            axis.setTextPen(theme.muted)
            axis.setStyle(tickFont=self.font())

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.recolour()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.recolour()

    def _on_click(self, event: Any) -> None:
        if not self.view.sceneBoundingRect().contains(event.scenePos()):
            return
        marked = self.bad.pointsAt(self.bad.mapFromScene(event.scenePos()))
        place = marked[0].pos() if len(marked) else self.view.mapSceneToView(event.scenePos())
        self.step_chosen.emit(float(place.x()))

    def _on_mouse(self, place: QPointF) -> None:
        """Show the numbers under the mouse as a tool tip."""
        inside = self.view.sceneBoundingRect().contains(place)
        point = self.view.mapSceneToView(place)
        reported = self.cell_text(point.x(), floor(point.y())) if inside else ""
        if reported:
            QToolTip.showText(self.mapToGlobal(self.mapFromScene(place)), plain_tip(reported), self)
        else:
            QToolTip.hideText()

    def cell_text(self, step: float, exponent: int) -> str:
        """The numbers of the cell at `step` and the octave from 2^exponent."""
        if not len(self._steps) or not 0 < exponent + BIAS < 255:
            return ""
        row = max(int(np.searchsorted(self._steps, step, "right")) - 1, 0)
        text = _("Measured at step {step}").format(step=grouped(int(self._steps[row])))
        return f"{text}\n{octave_text(self._counts[row], exponent)}"

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Left and right: the measured steps one by one; Home and Escape: the whole picture."""
        ways = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}
        if event.key() in ways and len(self._steps):
            at = self.chosen.value() if self.chosen.isVisible() else float(self._steps[-1])
            row = int(np.searchsorted(self._steps, at, "right")) - 1
            if not self.chosen.isVisible():
                row += 1
            row = min(max(row + ways[Qt.Key(event.key())], 0), len(self._steps) - 1)
            self.step_chosen.emit(float(self._steps[row]))
        elif event.key() in (Qt.Key.Key_Home, Qt.Key.Key_Escape):
            self.show_all()
        else:
            event.ignore()


def octave_text(counts: NDArray[np.float64], exponent: int) -> str:
    """How many of the elements counted in a histogram (256,) lie in one octave."""
    own, whole = float(counts[exponent + BIAS]), float(counts.sum())
    share = own / whole if whole else 0.0
    return _("{low} to {high}: {percent} % of the elements, {part} of {all}").format(
        low=power_label(exponent, 2), high=power_label(exponent + 1, 2), percent=f"{100 * share:.3g}",
        part=grouped(round(own)), all=grouped(round(whole)),
    )  # fmt: skip
