"""How numbers are rounded and what becomes of overflow: the controls of the two switches, side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QSizePolicy, QSpinBox, QWidget

from precgui.formats.conventions import PRESETS, as_in
from precgui.formats.model import Format
from precgui.formats.rounding import ROUNDINGS, CastPolicy, RoundingMode
from precgui.gui.kit.plain_text import PlainLabel, plain_tip

ROUNDING_WORDS = {
    "nearest_even": "to nearest, ties to even", "nearest_away": "to nearest, ties away", "toward_zero": "toward zero",
    "up": "up", "down": "down", "to_odd": "to odd", "stochastic": "stochastic",
}  # fmt: skip


class ConventionRow(QWidget):
    """Rounding, overflow as in a stack, and the seed of stochastic rounding."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.rounding = QComboBox()
        for name in ROUNDINGS:
            self.rounding.addItem(ROUNDING_WORDS[name], name)
        self.stack = QComboBox()
        for preset in PRESETS:
            self.stack.addItem(preset.name)
            self.stack.setItemData(self.stack.count() - 1, plain_tip(preset.about), Qt.ItemDataRole.ToolTipRole)
        self.seed = QSpinBox()
        self.seed.setRange(0, 2**31 - 1)
        self.seed.setPrefix("seed ")
        self.seed.setToolTip("Stochastic rounding draws from this seed; another seed may give the other neighbour.")
        self.seed.hide()
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        for caption, widget in (("&Rounding", self.rounding), ("&Overflow as in", self.stack)):
            label = PlainLabel(caption)
            label.setBuddy(widget)
            widget.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
            widget.setMinimumContentsLength(8)
            widget.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
            widget.setMaximumWidth(260)
            widget.currentIndexChanged.connect(self._changed)
            row.addWidget(label)
            row.addWidget(widget, 2)
        row.addWidget(self.seed)
        row.addStretch(0)
        self.seed.valueChanged.connect(self._changed)

    def _changed(self) -> None:
        self.seed.setVisible(self.mode == "stochastic")
        self.changed.emit()

    @property
    def mode(self) -> RoundingMode:
        chosen: RoundingMode = self.rounding.currentData()
        return chosen

    def cast_policy(self) -> Callable[[Format], CastPolicy]:
        """The cast policy that is chosen now, for a format; may be called in any thread."""
        return partial(as_in, self.stack.currentText(), self.mode)
