"""Cells of a table in the colours of its model."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, Qt
from PySide6.QtGui import QBrush, QColor, QPainter
from PySide6.QtWidgets import QStyle, QStyledItemDelegate, QStyleOptionViewItem

from precgui.gui.theme import themes


class FilledCells(QStyledItemDelegate):
    """Fills a cell with its colour: a style sheet on the table leaves the model's background out."""

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        brush = index.data(Qt.ItemDataRole.BackgroundRole)
        if brush is not None:
            rect: QRect = option.rect
            painter.fillRect(rect.adjusted(1, 1, -1, -1), brush)
        super().paint(painter, option, index)


class OwnColours(QStyledItemDelegate):
    """A chosen cell keeps the colour of its text: a style sheet on the table gives it that of all chosen cells."""

    def initStyleOption(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> None:
        super().initStyleOption(option, index)
        if option.state & QStyle.StateFlag.State_Selected:
            option.state &= ~QStyle.StateFlag.State_Selected
            option.backgroundBrush = QBrush(QColor(themes().theme.chosen))
