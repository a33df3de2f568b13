"""A share as a bar with its number: to the right what adds to the error, in grey what takes from it."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, Qt
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import QStyledItemDelegate, QStyleOptionViewItem

from precgui.gui.theme import themes

SHARE_ROLE = int(Qt.ItemDataRole.UserRole) + 1
_TICK_PX, _NUMBER_PX = 28, 56


class ShareDelegate(QStyledItemDelegate):
    """Draws the number of `SHARE_ROLE`, 1 for the whole error."""

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        super().paint(painter, option, index)
        share = index.data(SHARE_ROLE)
        if not isinstance(share, float):
            return
        theme, rect = themes().theme, QRect(option.rect)
        room = rect.adjusted(_TICK_PX, 3, -_NUMBER_PX, -3)
        bar = QRect(room)
        bar.setWidth(round(room.width() * min(1.0, abs(share))))
        painter.save()
        painter.fillRect(bar, QColor(theme.accent if share >= 0 else theme.muted))
        painter.setPen(QColor(theme.text))
        numbers = rect.adjusted(0, 0, -6, 0)
        painter.drawText(numbers, int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter), f"{share:z.1%}")
        painter.restore()
