"""A label in the place of a view that is being created, where an empty area would resemble a fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QVBoxLayout, QWidget

from precgui.gui.widgets.plain_text import PlainLabel


def loading_label(title: str, parent: QWidget | None = None) -> QLabel:
    """A label "Loading TITLE..." for the middle of an empty page."""
    label = PlainLabel(f"Loading {title}...", parent)
    label.setProperty("kind", "muted")
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setAlignment(Qt.AlignmentFlag.AlignCenter)
    return label


@contextmanager
def loading(title: str, page: QVBoxLayout) -> Iterator[None]:
    """While the block makes the content of `page`, the page says that it loads, at once."""
    label = loading_label(title)
    page.addWidget(label)
    label.show()
    label.repaint()
    try:
        yield
    finally:
        page.removeWidget(label)
        label.hide()
        label.deleteLater()
