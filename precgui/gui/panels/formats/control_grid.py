"""Controls with a caption above each, in as many columns as the width has room for."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QGridLayout, QLabel, QVBoxLayout, QWidget

COLUMN_PX, GAP_PX = 204, 16  # the least width of a column


class ControlGrid(QWidget):
    """One column in a narrow place, two or three in a wide one; the order of reading and of Tab stays."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._cells: dict[QWidget, QWidget] = {}  # by their control
        self._hidden: set[QWidget] = set()
        self._columns = 1
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(GAP_PX)
        self._grid.setVerticalSpacing(8)

    def add(self, caption: QLabel, control: QWidget) -> None:
        """One more control, after those that are there."""
        caption.setBuddy(control)
        cell = QWidget()
        column = QVBoxLayout(cell)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(8)
        column.addWidget(caption)
        column.addWidget(control)
        self._cells[control] = cell
        self._place()

    def show_control(self, control: QWidget, displayed: bool) -> None:
        """Leave a control out, or take it in again; the others close the gap."""
        change = self._hidden.discard if displayed else self._hidden.add
        change(control)
        self._cells[control].setVisible(displayed)
        self._place()

    def minimumSizeHint(self) -> QSize:
        """Of one column: more columns never keep the place from becoming narrow again."""
        width = max((cell.minimumSizeHint().width() for cell in self._cells.values()), default=0)
        return QSize(width, super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        needed = max((self._cells[each].sizeHint().width() for each in self._shown()), default=0)
        columns = min(max((self.width() + GAP_PX) // (max(needed, COLUMN_PX) + GAP_PX), 1), 3)
        if columns != self._columns:
            self._columns = columns
            self._place()

    def _shown(self) -> list[QWidget]:
        return [control for control in self._cells if control not in self._hidden]

    def _place(self) -> None:
        for index, control in enumerate(self._shown()):
            cell = self._cells[control]
            self._grid.addWidget(cell, index // self._columns, index % self._columns, Qt.AlignmentFlag.AlignTop)
        for column in range(3):
            self._grid.setColumnStretch(column, int(column < self._columns))
