"""Cards: one framed box per device or theme, with a title and rows of name and value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QScrollArea, QToolButton, QVBoxLayout, QWidget

from precgui.gui.kit.plain_text import PlainLabel, RichLabel

_LEAST_PX, _MOST_COLUMNS = 325, 5  # of a card, and of a row


def label(text: str, kind: str = "", *, rich: bool = False) -> QLabel:
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
    return created


def scrolled(page: QWidget) -> QScrollArea:
    """The page in an area that scrolls when it is too small for it."""
    area = QScrollArea()
    area.setWidgetResizable(True)
    area.setWidget(page)
    return area


class DeviceCard(QFrame):
    """A title, a line below it, a warning, rows, and a link. Empty values are left out."""

    def __init__(
        self,
        title: str,
        below: str = "",
        rows: Iterable[tuple[str, str]] = (),
        warning: str = "",
        link: tuple[str, Callable[[], object]] | None = None,
    ) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.setAccessibleName(title)
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 12, 16, 12)
        column.setSpacing(4)
        column.addWidget(label(title, "heading"))
        if below:
            column.addWidget(label(below, "muted"))
        if warning:
            column.addWidget(label(warning, "error"))
        column.addLayout(self._grid(rows))
        column.addStretch(1)
        if link is not None:
            self.link = QToolButton(self)
            self.link.setText(link[0])
            self.link.setProperty("kind", "link")
            self.link.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
            self.link.clicked.connect(lambda _: link[1]())
            column.addWidget(self.link, 0, Qt.AlignmentFlag.AlignLeft)

    def _grid(self, rows: Iterable[tuple[str, str]]) -> QGridLayout:
        grid = QGridLayout()
        grid.setContentsMargins(0, 8, 0, 0)
        grid.setHorizontalSpacing(16)
        grid.setVerticalSpacing(4)
        grid.setColumnStretch(1, 1)
        displayed = [(name, value) for name, value in rows if value]
        for row, (name, value) in enumerate(displayed):
            grid.addWidget(label(name, "muted"), row, 0, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(label(value), row, 1, Qt.AlignmentFlag.AlignTop)
        return grid


class Cards(QWidget):
    """Cards side by side, as many in a row as fit, up to five; the rows hold about the same number."""

    def __init__(self) -> None:
        super().__init__()
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
        fitting = max(1, min(_MOST_COLUMNS, self.width() // _LEAST_PX))
        columns = math.ceil(len(self._cards) / max(1, math.ceil(len(self._cards) / fitting))) or 1
        if columns == self._columns:
            return
        for column in range(max(self._columns, columns)):
            self._grid.setColumnStretch(column, int(column < columns))
        self._columns = columns
        for index, card in enumerate(self._cards):
            self._grid.addWidget(card, index // columns, index % columns)
