"""Small print behind a button: the button says how much there is, its tool tip is the text."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QToolButton, QWidget

from precgui.gui.kit.icons import icon
from precgui.gui.kit.parts import label
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.theme import themes
from precgui.words import _


class FoldedText(QToolButton):
    """Shows and hides `note`, a label that its owner lays out; both are hidden while there is no text."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.note = label("", "muted", selectable=True)
        self.note.setParent(parent)
        self.setProperty("kind", "fold")
        self.setCheckable(True)
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.toggled.connect(lambda _: self._show())
        themes().follow(self, self._recolour)
        self._recolour()
        self.set_text("", "")

    def set_text(self, title: str, text: str, tip: str = "") -> None:
        """Fold a text behind a title; an empty text hides both."""
        self.setText(title)
        self.setToolTip(plain_tip(tip or text))
        self.note.setText(text)
        self._show()

    def set_remarks(self, remarks: Sequence[str]) -> None:
        """Fold one line for each remark, with their number as the title."""
        title = _("1 remark") if len(remarks) == 1 else _("{count} remarks").format(count=len(remarks))
        self.set_text(title, "\n".join(f"• {each}" for each in remarks), "\n\n".join(remarks))

    def _show(self) -> None:
        has_text = bool(self.note.text())
        self.setVisible(has_text and self.parent() is not None)
        self.note.setVisible(has_text and self.isChecked() and self.note.parent() is not None)

    def _recolour(self) -> None:
        self.setIcon(icon("info", themes().theme.info, 16))
