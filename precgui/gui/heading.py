"""The head of a panel: its title at the left, what concerns the whole panel at the right."""

from __future__ import annotations

from PySide6.QtWidgets import QHBoxLayout, QLabel, QWidget


def panel_head(title: str, *parts: QWidget) -> QHBoxLayout:
    label = QLabel(title)
    label.setProperty("kind", "title")
    head = QHBoxLayout()
    head.setSpacing(8)
    head.addWidget(label)
    head.addStretch(1)
    for part in parts:
        head.addWidget(part)
    return head


def named(text: str, part: QWidget) -> QLabel:
    """A label for a part of the head, to stand before it; its key with Alt leads there."""
    label = QLabel(text)
    label.setBuddy(part)
    return label
