"""One entry of the Tensors panel in one step: its histogram, and the way to its numbers in the Formats panel."""

from __future__ import annotations

from functools import partial
from math import floor, isfinite, isnan
from typing import Any

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QPointF, Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QMenu, QToolButton, QToolTip, QVBoxLayout, QWidget

from precgui.events import TENSOR_STATS
from precgui.gui.kit.plain_text import ElidedLabel, plain_tip
from precgui.gui.panels.inspect.tensors.spectrogram import LIMIT_LABELS, limits, line_pens, octave_text
from precgui.gui.panels.inspect.tensors.summary_text import short
from precgui.gui.plots.axes import ValueAxis, wrap_label
from precgui.gui.plots.menus import own_menu
from precgui.gui.plots.signals import grouped
from precgui.gui.theme import themes
from precgui.runs.tensors.confidence import share_text
from precgui.runs.tensors.grouping import View
from precgui.runs.tensors.what_if import BIAS, Range
from precgui.words import L_, _, translated


class ExponentHistogram(pg.PlotWidget):  # type: ignore[misc]
    """The exponents of one tensor in one step, as shares of its elements. `exponent_chosen`: a bar was clicked."""

    exponent_chosen = Signal(int)

    def __init__(self) -> None:
        super().__init__(
            axisItems={"bottom": ValueAxis("bottom", "linear"), "left": ValueAxis("left", "linear")}, enableMenu=False
        )
        own_menu(self)
        self.setAccessibleName(_("Exponents in one step"))
        self.setMinimumHeight(120)
        self.setFrameShape(pg.PlotWidget.Shape.NoFrame)
        self.plotItem.hideButtons()
        self.plotItem.setMouseEnabled(False, False)
        self.plotItem.setContentsMargins(0, 0, 24, 0)  # as in the picture above it
        self.bars = pg.BarGraphItem(x=[], height=[], width=0.9)
        self.addItem(self.bars)
        self.lines = {name: pg.InfiniteLine(angle=90, movable=False) for name in LIMIT_LABELS}
        for line in self.lines.values():
            self.addItem(line, ignoreBounds=True)
        self._counts = np.zeros(256)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # what a click does is in the menu beside it, too
        self.scene().sigMouseClicked.connect(self._on_click)
        self.scene().sigMouseMoved.connect(self._on_mouse)
        themes().follow(self, self.recolour)
        self.recolour()

    def show_range(self, spans: Range, log2_scale: int) -> None:
        """The limits of a format, as in the spectrogram."""
        for name, place in limits(spans, log2_scale).items():
            self.lines[name].setValue(place)

    def show_row(self, exponents: NDArray[np.float64]) -> None:
        """`exponents` (256,)."""
        self._counts = exponents
        visited = np.flatnonzero(exponents[1:-1]) + 1
        if not len(visited):
            self.bars.setOpts(x=[], height=[])
            return
        bins = np.arange(visited[0], visited[-1] + 1)
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
        self.plotItem.setLabel("bottom", _("exponent of two; height: share of all elements"), color=theme.muted)
        wrap_label(self.getAxis("bottom"))
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
        """Show the numbers of the bar under the mouse as a tool tip."""
        exponent = floor(self.plotItem.vb.mapSceneToView(place).x())
        if self.plotItem.vb.sceneBoundingRect().contains(place) and self._is_drawn(exponent):
            QToolTip.showText(
                self.mapToGlobal(self.mapFromScene(place)), plain_tip(octave_text(self._counts, exponent)), self
            )
        else:
            QToolTip.hideText()


_NUMBERS = (("amax", L_("Largest")), ("rms", L_("Root mean square")), ("amin_nonzero", L_("Smallest that is not zero")))
_NO_BITS = L_("No finite number was recorded of this step.")


class StepView(QWidget):
    """`number_requested`: a value of the tensor, before scaling, whose bits are to be shown."""

    number_requested = Signal(float)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.text = ElidedLabel(self)
        self.text.setProperty("kind", "muted")
        self.bits = QToolButton(self)
        self.bits.setText(_("Bits ▾"))
        self.bits.setToolTip(_("Show a number of this tensor bit by bit in Formats; or click a bar"))
        self.bits.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.bits.setStyleSheet("QToolButton::menu-indicator { image: none; }")
        self.bits.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.bits.setMenu(QMenu(self.bits))
        self.histogram = ExponentHistogram()
        head = QHBoxLayout()
        head.setContentsMargins(8, 2, 0, 0)
        head.addWidget(self.text, 1)
        head.addWidget(self.bits)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(2)
        column.addLayout(head)
        column.addWidget(self.histogram, 1)
        self.histogram.exponent_chosen.connect(lambda exponent: self.number_requested.emit(2.0**exponent))

    def show_moment(self, view: View, entry: int) -> None:
        """An entry of a view of one row."""
        self.histogram.show_row(view.histograms(entry)[0])
        name, odd = translated(view.names[entry]), _odd(view, entry)
        if view.rows.stride > 1:
            text = _("{name}, step {step}{odd}; one of {stride} blocks was counted")
        else:
            text = _("{name}, step {step}{odd}")
        step = grouped(int(view.steps[0]))
        self.text.setText(text.format(name=short(name), step=step, odd=odd, stride=view.rows.stride))
        self.text.setToolTip(plain_tip(text.format(name=name, step=step, odd=odd, stride=view.rows.stride)))
        self._fill(view.stats[0, entry])

    def _fill(self, stats: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        menu = self.bits.menu()
        menu.clear()
        for name, title in _NUMBERS:
            value = float(stats[TENSOR_STATS.index(name)])
            if isfinite(value) and not isnan(value) and value > 0:
                text = _("{name}: {value}").format(name=translated(title), value=f"{value:.6g}")
                menu.addAction(text, partial(self.number_requested.emit, value))
        if menu.isEmpty():
            menu.addAction(translated(_NO_BITS)).setEnabled(False)


def _odd(view: View, entry: int) -> str:
    """Counts that the histogram cannot show, to follow a step; each begins with a comma."""
    counts = {
        name: view.stat(stat)[0, entry] for stat, name in (("nan", "NaN"), ("pos_inf", "Inf"), ("neg_inf", "-Inf"))
    }
    parts = [f"{grouped(count)} {name}" for name, count in counts.items() if count > 0]
    count, zeros = float(view.stat("count")[0, entry]), float(view.stat("zeros")[0, entry])
    if np.isnan(count):
        return _(", ") + _("not recorded in it")
    if zeros > 0:
        parts.insert(0, _("{share} zeros").format(share=share_text(zeros / count)))
    return "".join(_(", ") + part for part in parts)
