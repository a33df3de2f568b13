"""A line that must not be overlooked: why a figure beside it does not mean what one would think."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QWidget

from precgui.gui.kit.icons import pixmap
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.theme import themes


class CaveatLabel(QFrame):
    """A text with a warning mark; hidden while it is empty."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "banner")
        self.setProperty("severity", "warning")
        self._mark = PlainLabel(self)
        self.text = PlainLabel(self)
        self.text.setTextFormat(Qt.TextFormat.PlainText)
        self.text.setWordWrap(True)
        self.text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        line = QHBoxLayout(self)
        line.setContentsMargins(10, 6, 10, 6)
        line.setSpacing(8)
        line.addWidget(self._mark, 0, Qt.AlignmentFlag.AlignTop)
        line.addWidget(self.text, 1)
        themes().follow(self, self._recolour)
        self._recolour()
        self.hide()

    def set_text(self, text: str) -> None:
        """Show a text, or hide when it is empty."""
        self.text.setText(text)
        self.setVisible(bool(text))

    def _recolour(self) -> None:
        self._mark.setPixmap(pixmap("warning", themes().theme.warning, 18, self.devicePixelRatioF()))
