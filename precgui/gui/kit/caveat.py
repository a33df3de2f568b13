"""A line that must not be overlooked: why a figure beside it does not mean what one would think."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QToolButton, QWidget

from precgui.gui.kit.icons import pixmap
from precgui.gui.kit.plain_text import ElidedLabel, PlainLabel, plain_tip
from precgui.gui.theme import themes
from precgui.words import _


class CaveatLabel(QFrame):
    """A text with a warning mark; hidden while it is empty.

    `folded`: a longer one is `first`, a single line that ends in dots, until it is unfolded.
    """

    def __init__(self, parent: QWidget | None = None, *, folded: bool = False) -> None:
        super().__init__(parent)
        self._folded = folded
        self.setProperty("kind", "banner")
        self.setProperty("severity", "warning")
        self._mark = PlainLabel(self)
        self.text = PlainLabel(self)
        self.text.setTextFormat(Qt.TextFormat.PlainText)
        self.text.setWordWrap(True)
        self.text.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
        self.text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        line = QHBoxLayout(self)
        line.setContentsMargins(12, 8, 12, 8)
        line.setSpacing(8)
        line.addWidget(self._mark, 0, Qt.AlignmentFlag.AlignTop)
        self.first = ElidedLabel(self)
        self.first.hide()
        line.addWidget(self.first, 1, Qt.AlignmentFlag.AlignVCenter)
        line.addWidget(self.text, 1)
        self.more = QToolButton(self)
        self.more.setProperty("kind", "link")
        self.more.setCheckable(True)
        self.more.hide()
        self.more.toggled.connect(lambda _: self._fold())
        line.addWidget(self.more, 0, Qt.AlignmentFlag.AlignTop)
        themes().follow(self, self._recolour)
        self._recolour()
        self.hide()

    def set_text(self, text: str) -> None:
        """Show a text, or hide when it is empty."""
        self.text.setText(text)
        self.setVisible(bool(text))
        self._fold()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fold()

    def _fold(self) -> None:
        """Show the first line in the place of a longer text while it is folded."""
        if not self._folded:
            return
        shown = self.text if self.first.isHidden() else self.first
        is_long = self.text.heightForWidth(max(shown.width(), 1)) > self.text.fontMetrics().lineSpacing() + 4
        self.first.setText(self.text.text())
        self.first.setVisible(is_long and not self.more.isChecked())
        self.text.setVisible(self.first.isHidden())
        self.more.setVisible(is_long)
        self.more.setText(_("Less") if self.more.isChecked() else _("More"))
        self.setToolTip("" if self.more.isChecked() else plain_tip(self.text.text()))

    def _recolour(self) -> None:
        self._mark.setPixmap(pixmap("warning", themes().theme.warning, 18, self.devicePixelRatioF()))
