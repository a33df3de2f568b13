"""A field for Python code with line numbers, and marks on some of its lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from PySide6.QtCore import QRect, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QDragEnterEvent,
    QDragMoveEvent,
    QDropEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QTextCursor,
    QTextFormat,
)
from PySide6.QtWidgets import QPlainTextEdit, QTextEdit, QWidget

from precgui.gui.kit.measures import fixed_font
from precgui.gui.theme import severity_colour, themes

_PAD_PX = 6
_MARK_OPACITY = 0.18


class _LineNumbers(QWidget):
    """The strip to the left of the text."""

    def __init__(self, edit: CodeEdit) -> None:
        super().__init__(edit)
        self._edit = edit

    def sizeHint(self) -> QSize:
        return QSize(self._edit.numbers_width(), 0)

    def paintEvent(self, event: QPaintEvent) -> None:
        self._edit.paint_numbers(self, event)


class CodeEdit(QPlainTextEdit):
    """`file_dropped` carries the path of a file that was dropped. Lines count from 1."""

    file_dropped = Signal(object)

    def __init__(self, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._marks: dict[int, str] = {}
        self.setAccessibleName(name)
        self.setFont(fixed_font())
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setTabChangesFocus(True)
        self._numbers = _LineNumbers(self)
        self.blockCountChanged.connect(lambda _: self._fit())
        self.updateRequest.connect(self._scroll)
        themes().follow(self, self._show_marks)
        self._fit()

    def mark(self, marks: Mapping[int, str]) -> None:
        """Mark lines by the severity of their findings."""
        self._marks = dict(marks)
        self._show_marks()

    def go_to(self, line: int) -> None:
        """Put the cursor at the beginning of a line and show it."""
        block = self.document().findBlockByNumber(line - 1)
        if block.isValid():
            self.setTextCursor(QTextCursor(block))
            self.centerCursor()

    def numbers_width(self) -> int:
        return self.fontMetrics().horizontalAdvance("9") * max(3, len(str(self.blockCount()))) + 2 * _PAD_PX

    def paint_numbers(self, strip: QWidget, event: QPaintEvent) -> None:
        """Paint the numbers of the lines in sight, those with findings in their colours."""
        painter, theme = QPainter(strip), themes().theme
        block, height = self.firstVisibleBlock(), self.fontMetrics().height()
        while block.isValid():
            top = round(self.blockBoundingGeometry(block).translated(self.contentOffset()).top())
            if top > event.rect().bottom():
                break
            line = block.blockNumber() + 1
            severity = self._marks.get(line)
            painter.setPen(QColor(severity_colour(severity) if severity else theme.muted))
            place = QRect(0, top, strip.width() - _PAD_PX, height)
            painter.drawText(place, int(Qt.AlignmentFlag.AlignRight), str(line))
            block = block.next()
        painter.end()

    def _show_marks(self) -> None:
        shown = []
        for line, severity in self._marks.items():
            block = self.document().findBlockByNumber(line - 1)
            if block.isValid():
                each = QTextEdit.ExtraSelection()
                colour = QColor(severity_colour(severity))
                colour.setAlphaF(_MARK_OPACITY)
                each.format.setBackground(colour)
                each.format.setProperty(QTextFormat.Property.FullWidthSelection, True)
                each.cursor = QTextCursor(block)
                shown.append(each)
        self.setExtraSelections(shown)
        self._numbers.update()

    def _fit(self) -> None:
        self.setViewportMargins(self.numbers_width(), 0, 0, 0)
        self._place_numbers()

    def _place_numbers(self) -> None:
        inside = self.contentsRect()
        self._numbers.setGeometry(QRect(inside.left(), inside.top(), self.numbers_width(), inside.height()))

    def _scroll(self, area: QRect, dy: int) -> None:
        if dy:
            self._numbers.scroll(0, dy)
        else:
            self._numbers.update(0, area.y(), self._numbers.width(), area.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place_numbers()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if event.mimeData().hasUrls():
            event.acceptProposedAction()
        else:
            super().dragEnterEvent(event)

    def dragMoveEvent(self, event: QDragMoveEvent) -> None:
        if event.mimeData().hasUrls():
            event.acceptProposedAction()
        else:
            super().dragMoveEvent(event)

    def dropEvent(self, event: QDropEvent) -> None:
        files = [Path(url.toLocalFile()) for url in event.mimeData().urls() if url.isLocalFile()]
        if files:
            event.acceptProposedAction()
            self.file_dropped.emit(files[0])
        else:
            super().dropEvent(event)
