"""Lines of code to take away: why they are there, the lines, and a button that copies them."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QScrollArea, QWidget

from precgui.gui.kit.measures import fixed_font
from precgui.gui.kit.parts import button, column, label, row
from precgui.words import L_, _, translated

COPY = L_("Copy")


class CodeBlock(QFrame):
    """A sentence above selectable lines; without lines only the sentence, and no button."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.sentence, self.code = label("", "muted"), label("", wrap=False, selectable=True)
        self.code.setFont(fixed_font())
        self.code.setAccessibleName(_("Lines to paste"))
        self.copy = button(translated(COPY), self._copy, _("Copy these lines"))
        self.setProperty("kind", "card")
        self._room = QScrollArea(self)  # so that a long line neither widens its panel nor is cut
        self._room.setFrameShape(QFrame.Shape.NoFrame)
        self._room.setWidgetResizable(True)
        self._room.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._room.setWidget(self.code)
        self.code.setAutoFillBackground(False)
        column(row((self.sentence, 1), self.copy), self._room, spacing=8, margins=(12, 8, 12, 4), on=self)

    def show_lines(self, sentence: str, code: str = "") -> None:
        """Show other lines."""
        self.sentence.setText(sentence)
        self.code.setText(code)
        bar_px = self._room.horizontalScrollBar().sizeHint().height()
        self._room.setFixedHeight(self.code.sizeHint().height() + bar_px)
        for part in (self._room, self.copy):
            part.setVisible(bool(code))

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.code.text())
