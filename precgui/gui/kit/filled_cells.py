"""Cells of a table in the colours of its model."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, Qt
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QStyledItemDelegate, QStyleOptionViewItem


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
