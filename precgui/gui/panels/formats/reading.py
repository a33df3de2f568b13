"""Text to be read beside the pictures: labels that wrap and can be copied, in areas that scroll."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QScrollArea, QVBoxLayout, QWidget

from precgui.gui.kit.plain_text import PlainLabel, RichLabel


def wrapped_label(kind: str = "", *, rich: bool = False) -> QLabel:
    """An empty label that wraps and whose text can be selected; `kind` is a kind of the style sheet, `rich` is HTML."""
    label = RichLabel() if rich else PlainLabel()
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


def scrolled_down(widget: QWidget, least_width: int) -> QScrollArea:
    """The widget at the top of an area that scrolls when it is higher."""
    area = QScrollArea()
    area.setWidgetResizable(True)
    area.setMinimumWidth(least_width)
    holder = QWidget()
    column = QVBoxLayout(holder)
    column.setContentsMargins(0, 0, 4, 0)
    column.addWidget(widget)
    column.addStretch(1)
    area.setWidget(holder)
    return area


def with_result(controls: QWidget, *results: QWidget) -> QWidget:
    """Controls above and, always in sight, what comes of them below."""
    holder = QWidget()
    column = QVBoxLayout(holder)
    column.setContentsMargins(0, 0, 0, 0)
    column.addWidget(controls, 1)
    for result in results:
        result.setContentsMargins(8, 0, 8, 4)
        column.addWidget(result)
    return holder


def set_kind(widget: QWidget, kind: str) -> None:
    """Dress a widget as the style sheet does this kind ("error", "muted", or "" for plain)."""
    if (widget.property("kind") or "") != kind:
        widget.setProperty("kind", kind)
        widget.style().unpolish(widget)
        widget.style().polish(widget)
