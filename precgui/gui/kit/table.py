"""A table of finished texts, one column of which may be coloured by a word."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableWidget, QTableWidgetItem, QWidget

from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.theme import severity_colour, themes

SEVERITY = {
    "missed": "error", "undecided": "warning", "does not hold here": "error", "not decided here": "warning",
}  # fmt: skip
MEASURED_ROWS = 32  # for the widths of columns


class TextTable(QTableWidget):
    """Every cell can be read whole in its tool tip."""

    def __init__(self, columns: Sequence[str], about: str, parent: QWidget | None = None) -> None:
        super().__init__(0, len(columns), parent)
        self._columns: tuple[str, ...] = ()
        self.setAccessibleName(about)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.setWordWrap(False)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + 14)
        across = self.horizontalHeader()
        across.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        across.setResizeContentsPrecision(MEASURED_ROWS)
        across.setStretchLastSection(True)
        across.setHighlightSections(False)
        across.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self.set_columns(columns)

    def set_columns(self, columns: Sequence[str]) -> None:
        if self._columns == tuple(columns):
            return
        self._columns = tuple(columns)
        across = self.horizontalHeader()
        across.setSectionResizeMode(QHeaderView.ResizeMode.Fixed)  # else every title measures all columns anew
        self.setColumnCount(len(columns))
        for place, title in enumerate(columns):
            item = self.horizontalHeaderItem(place)
            if item is None or item.text() != title:
                item = QTableWidgetItem(title)
                item.setToolTip(plain_tip(title))
                self.setHorizontalHeaderItem(place, item)
        across.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)

    def fill(self, rows: Sequence[Sequence[str]], column: int = -1, words: Sequence[str] = ()) -> None:
        """Show these rows; the cells of `column` take the colour of their word, one for each row."""
        across = self.horizontalHeader()
        across.setSectionResizeMode(QHeaderView.ResizeMode.Fixed)  # else every cell measures its column anew
        self.setRowCount(len(rows))
        for number, cells in enumerate(rows):
            for place, text in enumerate(cells):
                item = self.item(number, place)
                if item is not None and item.text() == text and place != column:
                    continue
                item = QTableWidgetItem(text)
                item.setToolTip(plain_tip(text))
                if place == column:
                    word = words[number]
                    item.setForeground(
                        QColor(severity_colour(SEVERITY[word]) if word in SEVERITY else themes().theme.text)
                    )
                self.setItem(number, place, item)
        across.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)

    def fit_rows(self, rows: int) -> None:
        """Be no higher than so many rows need."""
        self.setMaximumHeight(self.height_px(rows))

    def height_px(self, rows: int) -> int:
        """The height at which that many rows need no scroll bar."""
        remainder = self.horizontalHeader().sizeHint().height() + 2 * self.frameWidth() + 14
        return remainder + rows * self.verticalHeader().defaultSectionSize()
