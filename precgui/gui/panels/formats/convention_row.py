"""How numbers are rounded and what becomes of overflow: the controls of the two switches, side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QComboBox, QSpinBox, QWidget

from precgui.formats.conventions import PRESETS, as_in
from precgui.formats.model import Format
from precgui.formats.rounding import ROUNDINGS, CastPolicy, RoundingMode
from precgui.gui.kit.parts import holder, named, row
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.kit.wrapping_row import WrappingRow
from precgui.words import L_, _, translated

ROUNDING_WORDS = {
    "nearest_even": L_("to nearest, ties to even"),
    "nearest_away": L_("to nearest, ties away"),
    "toward_zero": L_("toward zero"),
    "up": L_("up"),
    "down": L_("down"),
    "to_odd": L_("to odd"),
    "stochastic": L_("stochastic"),
}


class ConventionRow(WrappingRow):
    """Rounding, overflow as in a stack, and the seed of stochastic rounding."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        self.rounding = QComboBox()
        for name in ROUNDINGS:
            self.rounding.addItem(translated(ROUNDING_WORDS[name]), name)
        self.stack = QComboBox()
        for preset in PRESETS:
            self.stack.addItem(translated(preset.name), preset.name)
            self.stack.setItemData(
                self.stack.count() - 1, plain_tip(translated(preset.about)), Qt.ItemDataRole.ToolTipRole
            )
        self.seed = QSpinBox()
        self.seed.setRange(0, 2**31 - 1)
        self.seed.setPrefix(_("seed "))
        self.seed.setToolTip(_("Stochastic rounding draws from this seed; another seed may give the other neighbour."))
        self.seed.hide()
        pairs = []
        for caption, widget in ((_("&Rounding"), self.rounding), (_("&Overflow as in"), self.stack)):
            widget.currentIndexChanged.connect(self._changed)
            pairs.append(holder(row(named(caption, widget), widget)))
        super().__init__([*pairs, self.seed], parent)
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
        return partial(as_in, self.stack.currentData(), self.mode)
