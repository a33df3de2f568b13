"""A choice between views of one place, as buttons side by side."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QButtonGroup, QHBoxLayout, QPushButton, QWidget

from precgui.gui.kit.wrapping_row import WrappingRow
from precgui.words import translated


class SegmentedChoice(QWidget):
    """`chosen` carries the name when another one is chosen, by hand or by `choose`. `as_tabs`: many, drawn as tabs."""

    chosen = Signal(str)

    def __init__(
        self, names: Sequence[str], sentence: str, parent: QWidget | None = None, *, as_tabs: bool = False
    ) -> None:
        super().__init__(parent)
        self.setAccessibleName(sentence)
        self._group = QButtonGroup(self)
        self.buttons: dict[str, QPushButton] = {}
        line = QHBoxLayout(self)
        line.setContentsMargins(0, 0, 0, 0)
        line.setSpacing(0 if as_tabs else 2)
        for name in names:
            button = self.buttons[name] = QPushButton(translated(name), self)
            button.setCheckable(True)
            if as_tabs:
                button.setProperty("kind", "tab")
            self._group.addButton(button)
            if not as_tabs:
                line.addWidget(button)
        if as_tabs:
            line.addWidget(WrappingRow(list(self.buttons.values()), self, gap_px=0))
        self.buttons[names[0]].setChecked(True)
        self._group.buttonToggled.connect(lambda _, on: self.chosen.emit(self.current) if on else None)

    @property
    def current(self) -> str:
        return next(name for name, button in self.buttons.items() if button.isChecked())

    def choose(self, name: str) -> None:
        self.buttons[name].setChecked(True)
