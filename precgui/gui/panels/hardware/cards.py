"""Cards: one framed box per device or theme, with a title and rows of name and value."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QScrollArea, QVBoxLayout, QWidget

from precgui.gui.kit.plain_text import PlainLabel, RichLabel


def label(text: str, kind: str = "", bold: bool = False, *, rich: bool = False) -> QLabel:
    """A label that wraps and whose text can be selected; `kind` is a property that the style sheet knows.

    With `rich`, HTML is set later.
    """
    created = RichLabel() if rich else PlainLabel(text)
    created.setWordWrap(True)
    created.setTextInteractionFlags(
        Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
    )
    created.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    if kind:
        created.setProperty("kind", kind)
    if bold:
        font = QFont(created.font())
        font.setBold(True)
        font.setPointSizeF(font.pointSizeF() * 1.1)
        created.setFont(font)
    return created


def scrolled(page: QWidget) -> QScrollArea:
    """The page in an area that scrolls when it is too small for it."""
    area = QScrollArea()
    area.setWidgetResizable(True)
    area.setWidget(page)
    return area


class DeviceCard(QFrame):
    """A title, a line below it, a warning, and rows. Empty values are left out."""

    def __init__(self, title: str, below: str = "", rows: Iterable[tuple[str, str]] = (), warning: str = "") -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.setAccessibleName(title)
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 12, 16, 14)
        column.setSpacing(4)
        column.addWidget(label(title, bold=True))
        if below:
            column.addWidget(label(below, "muted"))
        if warning:
            column.addWidget(label(warning, "error"))
        column.addLayout(self._grid(rows))
        column.addStretch(1)

    def _grid(self, rows: Iterable[tuple[str, str]]) -> QGridLayout:
        grid = QGridLayout()
        grid.setContentsMargins(0, 6, 0, 0)
        grid.setHorizontalSpacing(16)
        grid.setVerticalSpacing(5)
        grid.setColumnStretch(1, 1)
        displayed = [(name, value) for name, value in rows if value]
        for row, (name, value) in enumerate(displayed):
            grid.addWidget(label(name, "muted"), row, 0, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(label(value), row, 1, Qt.AlignmentFlag.AlignTop)
        return grid


class Cards(QWidget):
    """Cards side by side, as many in a row as fit."""

    def __init__(self, least_width: int = 340) -> None:
        super().__init__()
        self._least_width = least_width
        self._cards: list[DeviceCard] = []
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(12)
        self._columns = 0

    def show_cards(self, cards: Iterable[DeviceCard]) -> None:
        """Put these cards in the place of the present ones."""
        for old in self._cards:
            self._grid.removeWidget(old)
            old.deleteLater()
        self._cards = list(cards)
        self._columns = 0
        self._arrange()

    def resizeEvent(self, event: object) -> None:
        self._arrange()

    def _arrange(self) -> None:
        columns = max(1, min(len(self._cards) or 1, self.width() // self._least_width))
        if columns == self._columns:
            return
        for column in range(max(self._columns, columns)):
            self._grid.setColumnStretch(column, int(column < columns))
        self._columns = columns
        for index, card in enumerate(self._cards):
            self._grid.addWidget(card, index // columns, index % columns)
