"""Text to be read beside the pictures: labels that wrap and can be copied, in areas that scroll."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QScrollArea, QWidget


def wrapped_label(kind: str = "") -> QLabel:
    """An empty label that wraps and whose text can be selected; `kind` is a kind of the style sheet."""
    label = QLabel()
    label.setWordWrap(True)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    if kind:
        label.setProperty("kind", kind)
    return label


def scrolled(widget: QWidget, least_width: int, least_height: int) -> QScrollArea:
    """The widget in a scroll area of at least this size in pixels."""
    area = QScrollArea()
    area.setWidgetResizable(True)
    area.setWidget(widget)
    area.setMinimumSize(least_width, least_height)
    return area
