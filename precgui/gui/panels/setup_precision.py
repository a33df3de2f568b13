"""The precision as a row of cards: its name and what it does in one sentence. One of them is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QMouseEvent, QResizeEvent
from PySide6.QtWidgets import QButtonGroup, QFrame, QGridLayout, QLabel, QRadioButton, QVBoxLayout, QWidget

CARD_WIDTH = 210


class ChoiceCard(QFrame):
    """A radio button with a sentence; a click anywhere in the card chooses it."""

    def __init__(self, name: str, text: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setProperty("kind", "choice")
        self.button = QRadioButton(name, self)
        self.button.setAccessibleDescription(text)
        self.button.setProperty("kind", "heading")
        self.button.toggled.connect(self._on_toggled)
        told = QLabel(text, self)
        told.setProperty("kind", "muted")
        told.setWordWrap(True)
        told.setAlignment(Qt.AlignmentFlag.AlignTop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 8, 12, 12)
        layout.setSpacing(4)
        layout.addWidget(self.button)
        layout.addWidget(told, 1)

    def _on_toggled(self, checked: bool) -> None:
        self.setProperty("chosen", checked)
        self.style().polish(self)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.button.setFocus()
        self.button.click()


class ChoiceCards(QWidget):
    """An editor for a closed set with explanations (`precgui.gui.editors.Editor`)."""

    edited = Signal()

    def __init__(self, choices: Mapping[str, str], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._group = QButtonGroup(self)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(8)
        self.cards = {name: ChoiceCard(name, text, self) for name, text in choices.items()}
        self._columns = 0
        for card in self.cards.values():
            self._group.addButton(card.button)
        self._group.buttonToggled.connect(lambda _, checked: self.edited.emit() if checked else None)
        self._arrange(2)

    def get(self) -> Any:
        return next((name for name, card in self.cards.items() if card.button.isChecked()), None)

    def set(self, value: Any) -> None:
        self.cards[value].button.setChecked(True)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        fitting = max(1, min(len(self.cards), self.width() // CARD_WIDTH))
        self._arrange(fitting if len(self.cards) % fitting == 0 else max(1, fitting - 1))

    def _arrange(self, columns: int) -> None:
        if columns == self._columns:
            return
        for column in range(self._columns):
            self._grid.setColumnStretch(column, 0)
        self._columns = columns
        for n, card in enumerate(self.cards.values()):
            self._grid.addWidget(card, n // columns, n % columns)
            self._grid.setColumnStretch(n % columns, 1)
