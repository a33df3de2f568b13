"""The word that stands where a view is being made: an empty area would look like a fault."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QWidget

from precgui.gui.widgets.plain_text import PlainLabel


def loading_label(title: str, parent: QWidget | None = None) -> QLabel:
    """A label "Loading TITLE..." for the middle of an empty page."""
    label = PlainLabel(f"Loading {title}...", parent)
    label.setProperty("kind", "muted")
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setAlignment(Qt.AlignmentFlag.AlignCenter)
    return label
