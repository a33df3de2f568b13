"""The precision as a row of cards: its name and what it does in one sentence. One of them is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QMouseEvent, QResizeEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QRadioButton,
    QVBoxLayout,
    QWidget,
)

CARD_WIDTH = 210
MOST_COLUMNS = 4


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
        self.head = QHBoxLayout()
        self.head.setSpacing(4)
        self.head.addWidget(self.button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 8, 12, 12)
        layout.setSpacing(4)
        layout.addLayout(self.head)
        layout.addWidget(told, 1)

    def _on_toggled(self, checked: bool) -> None:
        self.setProperty("chosen", checked)
        self.style().polish(self)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.button.setFocus()
        self.button.click()


class OpenCard(ChoiceCard):
    """The card of a family of names: a prefix, and a line for what follows it."""

    def __init__(self, prefix: str, text: str, example: str, parent: QWidget) -> None:
        super().__init__(prefix, text, parent)
        self.prefix = prefix
        self.rest = QLineEdit(example, self)
        self.rest.setAccessibleName(f"What follows {prefix}")
        self.rest.textEdited.connect(lambda _: self.button.setChecked(True))
        self.head.addWidget(self.rest, 1)


class ChoiceCards(QWidget):
    """An editor for names that are explained; `family` is the prefix of more names, its text, and an example."""

    edited = Signal()

    def __init__(
        self, choices: Mapping[str, str], family: tuple[str, str, str] | None = None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._group = QButtonGroup(self)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(8)
        self.cards = {name: ChoiceCard(name, text, self) for name, text in choices.items()}
        self.family = OpenCard(*family, self) if family else None
        if self.family:
            self.cards[self.family.prefix] = self.family
            self.family.rest.textChanged.connect(self.edited)
        self._columns = 0
        for card in self.cards.values():
            self._group.addButton(card.button)
        self._group.buttonToggled.connect(lambda _, checked: self.edited.emit() if checked else None)
        self._arrange(2)

    def get(self) -> Any:
        chosen = next((name for name, card in self.cards.items() if card.button.isChecked()), None)
        if self.family and chosen == self.family.prefix:
            return chosen + self.family.rest.text().strip()
        return chosen

    def set(self, value: Any) -> None:
        if self.family and value not in self.cards:
            self.family.rest.setText(str(value).removeprefix(self.family.prefix))
            value = self.family.prefix
        self.cards[value].button.setChecked(True)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange(max(1, min(len(self.cards), self.width() // CARD_WIDTH, MOST_COLUMNS)))

    def _arrange(self, columns: int) -> None:
        if columns == self._columns:
            return
        for column in range(self._columns):
            self._grid.setColumnStretch(column, 0)
        self._columns = columns
        for n, card in enumerate(self.cards.values()):
            self._grid.addWidget(card, n // columns, n % columns)
            self._grid.setColumnStretch(n % columns, 1)
