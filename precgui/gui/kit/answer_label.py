"""The answer of a place: its first sentence twice the size of other text, what follows in the usual one."""

from __future__ import annotations

import re

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QFont, QFontMetrics, QResizeEvent
from PySide6.QtWidgets import QWidget

from precgui.gui.kit.measures import TextSize, points
from precgui.gui.kit.parts import column, label

MOST_LINES = 3  # of the first sentence in the large size; a longer one has the size of a title
_FIRST_SENTENCE = re.compile(r"(.*?(?:[.!?](?=\s)|[。！？]))\s*(\S.*)", re.DOTALL)
_HIGHEST_PX = 100_000


class AnswerLabel(QWidget):
    """Plain text that wraps and can be selected."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.first = label("", "answer", selectable=True)
        self.more = label("", selectable=True)
        column(self.first, self.more, spacing=4, on=self)
        self.more.hide()

    def text(self) -> str:
        """All of the answer."""
        return " ".join(filter(None, (self.first.text(), self.more.text())))

    def setText(self, text: str) -> None:
        """Show an answer of one sentence or more."""
        found = _FIRST_SENTENCE.fullmatch(text)
        self.first.setText(found[1] if found else text)
        self.more.setText(found[2] if found else "")
        self.more.setVisible(bool(self.more.text()))
        self._choose_size()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._choose_size()

    def _choose_size(self) -> None:
        kind: TextSize = "answer" if self._lines_in("answer") <= MOST_LINES else "title"
        if self.first.property("kind") != kind:
            self.first.setProperty("kind", kind)
            self.first.style().unpolish(self.first)
            self.first.style().polish(self.first)
            self.first.updateGeometry()

    def _lines_in(self, size: TextSize) -> float:
        """Lines that the first sentence takes in the present width."""
        font = QFont(self.font())
        font.setPointSizeF(points(size))
        font.setWeight(QFont.Weight.DemiBold)
        metrics = QFontMetrics(font)
        room = QRect(0, 0, max(self.width(), 1), _HIGHEST_PX)
        return metrics.boundingRect(room, Qt.TextFlag.TextWordWrap, self.first.text()).height() / metrics.lineSpacing()
