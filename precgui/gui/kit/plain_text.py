"""Text that is shown as it is, never as HTML: Qt guesses, and HTML from a file could hide words or open files.

Titles, names of tensors and metrics, paths and messages come from files of others. Every label, tool tip and message
box of the window is made here.
"""

from __future__ import annotations

import re

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtGui import Qt as GuiQt
from PySide6.QtWidgets import QInputDialog, QLabel, QMessageBox, QSizePolicy, QTextBrowser, QWidget

from precgui.gui.theme import themes

_NO_BREAK = "\N{NO-BREAK SPACE}"
_UNITS = r"%|[nµm]?s|min|h|[KMGT]iB|[kMGT]?B|bytes|[kMG]?W|m?J|points?|dB|[kMGT]?op/s|[KMGT]?B/s"
_BEFORE_UNIT = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?![\w/]))")


class PlainLabel(QLabel):
    """A label without markup; `&` marks the key of its buddy, if it has one."""

    def __init__(self, text: str | QWidget | None = "", parent: QWidget | None = None) -> None:
        super().__init__(text if isinstance(text, QWidget) else parent)
        self.setTextFormat(Qt.TextFormat.PlainText)
        if isinstance(text, str):
            self.setText(text)

    def setText(self, text: str) -> None:
        """Show a text, in which no line breaks between a number and its unit."""
        super().setText(_BEFORE_UNIT.sub(_NO_BREAK, text))

    def text(self) -> str:
        """The text as it was given."""
        return super().text().replace(_NO_BREAK, " ")


class ElidedLabel(PlainLabel):
    """One line that ends in dots where there is no room for it; the tool tip has all of it."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._shorter = ""
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def setText(self, text: str, shorter: str = "") -> None:
        """Show a text, its lines in one, or `shorter` where there is no room for all of it."""
        self._shorter = shorter
        super().setText(" ".join(filter(None, text.splitlines())))
        self.setToolTip(plain_tip(text))

    @property
    def shown(self) -> str:
        """The text as it is drawn: whole, the shorter one, or cut off with dots."""
        room, metrics = self._room().width(), self.fontMetrics()
        text = self._shorter if self._shorter and metrics.horizontalAdvance(self.text()) > room else self.text()
        return metrics.elidedText(text, Qt.TextElideMode.ElideRight, room)

    def _room(self) -> QRect:
        return self.contentsRect().adjusted(max(self.indent(), 0), 0, 0, 0)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        flags = int(self.alignment())
        self.style().drawItemText(
            painter, self._room(), flags, self.palette(), self.isEnabled(), self.shown, self.foregroundRole()
        )


class RichLabel(QLabel):
    """A label whose text is HTML of precgui's own; text from elsewhere goes through `html.escape` first."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setTextFormat(Qt.TextFormat.RichText)
        themes().follow(self, self._parse_again)

    def _parse_again(self) -> None:
        """The colour of links is that of the palette at the time when the text was set."""
        text = self.text()
        self.setText("")
        self.setText(text)


class OwnDocument(QTextBrowser):
    """A view of a document that belongs to precgui, never of a file from elsewhere; links are left to the caller."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setOpenLinks(False)


class PlainMessageBox(QMessageBox):
    """A message box whose text and informative text are plain, and wrap."""

    def __init__(self, parent: QWidget | None, title: str, text: str, more: str = "") -> None:
        super().__init__(parent)
        themes().dress(self)
        self.setWindowTitle(title)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setText(text)
        self.setInformativeText(more)
        for label in self.findChildren(QLabel):
            label.setTextFormat(Qt.TextFormat.PlainText)
            label.setWordWrap(not label.pixmap() or label.pixmap().isNull())


class PlainInputDialog(QInputDialog):
    """A dialog that asks for one value, with a plain question."""

    def __init__(self, parent: QWidget | None, title: str, question: str) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(title)
        self.setLabelText(question)
        for label in self.findChildren(QLabel):
            label.setTextFormat(Qt.TextFormat.PlainText)


def plain_tip(text: str | None) -> str:
    """The text for a tool tip that shows it as it is; Qt knows no other way to say that it is not HTML."""
    if not text or not GuiQt.mightBeRichText(text):
        return text or ""
    from html import escape  # seldom needed

    return f"<p style='white-space: pre-wrap'>{escape(text)}</p>"


def without_key(text: str) -> str:
    """A title without the mark of its key, which in Chinese stands behind it: `打开(&O)...`."""
    return re.sub(r"\(&\w\)", "", text).replace("&", "")
