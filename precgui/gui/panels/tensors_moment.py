"""One entry of the Tensors panel in one step: its histogram, and the way to its numbers in the Formats panel."""

from __future__ import annotations

from functools import partial
from math import isfinite, isnan

import numpy as np
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QMenu, QSizePolicy, QToolButton, QVBoxLayout, QWidget

from precgui.events import TENSOR_STATS
from precgui.gui.panels.tensors_histogram import Histogram
from precgui.gui.panels.tensors_verdict import short
from precgui.gui.plots.signals import grouped
from precgui.runs.certainty import share_text
from precgui.runs.tensor_view import View

_NUMBERS = (("amax", "Largest"), ("rms", "Root mean square"), ("amin_nonzero", "Smallest that is not zero"))
_NO_BITS = "No finite number was recorded of this step."


class Moment(QWidget):
    """`number_wanted`: a value of the tensor, before scaling, whose bits are to be shown."""

    number_wanted = Signal(float)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.text = QLabel(self)
        self.text.setProperty("kind", "muted")
        self.text.setTextFormat(Qt.TextFormat.PlainText)
        self.text.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.bits = QToolButton(self)
        self.bits.setText("Bits ▾")
        self.bits.setToolTip("Show a number of this tensor bit by bit in Formats; or click a bar")
        self.bits.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.bits.setStyleSheet("QToolButton::menu-indicator { image: none; }")
        self.bits.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.bits.setMenu(QMenu(self.bits))
        self.histogram = Histogram()
        head = QHBoxLayout()
        head.setContentsMargins(6, 2, 0, 0)
        head.addWidget(self.text, 1)
        head.addWidget(self.bits)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(2)
        column.addLayout(head)
        column.addWidget(self.histogram, 1)
        self.histogram.exponent_chosen.connect(lambda exponent: self.number_wanted.emit(2.0**exponent))

    def show_moment(self, view: View, entry: int) -> None:
        """An entry of a view of one row."""
        self.histogram.show_row(view.histograms(entry)[0])
        sampled = f"; one of {view.rows.stride} blocks was looked at" if view.rows.stride > 1 else ""
        told = f", step {grouped(int(view.steps[0]))}{_odd(view, entry)}{sampled}"
        self.text.setText(f"{short(view.names[entry])}{told}")
        self.text.setToolTip(f"{view.names[entry]}{told}")
        self._fill(view.stats[0, entry])

    def _fill(self, stats: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        menu = self.bits.menu()
        menu.clear()
        for name, title in _NUMBERS:
            value = float(stats[TENSOR_STATS.index(name)])
            if isfinite(value) and not isnan(value) and value > 0:
                menu.addAction(f"{title}: {value:.6g}", partial(self.number_wanted.emit, value))
        if menu.isEmpty():
            menu.addAction(_NO_BITS).setEnabled(False)


def _odd(view: View, entry: int) -> str:
    """What the histogram cannot show."""
    counts = {
        name: view.stat(stat)[0, entry] for stat, name in (("nan", "NaN"), ("pos_inf", "Inf"), ("neg_inf", "-Inf"))
    }
    told = ", ".join(f"{grouped(count)} {name}" for name, count in counts.items() if count > 0)
    count, zeros = float(view.stat("count")[0, entry]), float(view.stat("zeros")[0, entry])
    if np.isnan(count):
        return ", not recorded in it"
    if zeros > 0:
        told = f"{share_text(zeros / count)} zeros{', ' if told else ''}{told}"
    return f", {told}" if told else ""
