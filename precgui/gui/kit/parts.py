"""The parts of every panel, and layouts written as the picture that they make.

    column(row(named("&Figure", figure), figure, 1), (table, 2), notes, on=self)

is a widget `self` with a row above a table: an int is a stretch, a tuple a part with its own stretch; a spacing of -1
is that of the style. Parts need no parent; the layout that takes them gives them one. Hide a part only after that: one
without a parent is a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QLabel, QLayout, QPushButton, QVBoxLayout, QWidget

from precgui.gui.kit.plain_text import PlainLabel, RichLabel, plain_tip

Part = QWidget | QLayout | int | tuple[QWidget | QLayout, int]
Margins = tuple[int, int, int, int]  # left, top, right, bottom, in pixels


def label(text: str = "", kind: str = "", *, wrap: bool = True, selectable: bool = False, rich: bool = False) -> QLabel:
    """A text in a kind of the style sheet ("" for plain, "muted", "heading"); with `rich` it is HTML of precgui's."""
    made = RichLabel() if rich else PlainLabel()
    made.setText(text)
    made.setWordWrap(wrap)
    if kind:
        made.setProperty("kind", kind)
    if selectable:
        made.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return made


def named(text: str, part: QWidget) -> QLabel:
    """A label to stand before a part; its key with Alt leads there."""
    made = PlainLabel(text)
    made.setBuddy(part)
    return made


def button(text: str, act: Callable[[], object], tip: str = "", *, kind: str = "") -> QPushButton:
    """A button that calls `act` without arguments."""
    made = QPushButton(text)
    made.clicked.connect(lambda _: act())
    made.setToolTip(plain_tip(tip))
    if kind:
        made.setProperty("kind", kind)
    return made


def row(*parts: Part, spacing: int = 8, margins: Margins = (0, 0, 0, 0), on: QWidget | None = None) -> QHBoxLayout:
    """Parts from the left; `on` is the widget that they fill."""
    made = QHBoxLayout() if on is None else QHBoxLayout(on)
    _fill(made, parts, spacing, margins)
    return made


def column(*parts: Part, spacing: int = 8, margins: Margins = (0, 0, 0, 0), on: QWidget | None = None) -> QVBoxLayout:
    """Parts from above; `on` is the widget that they fill."""
    made = QVBoxLayout() if on is None else QVBoxLayout(on)
    _fill(made, parts, spacing, margins)
    return made


def holder(layout: QLayout) -> QWidget:
    """A widget with this layout."""
    made = QWidget()
    made.setLayout(layout)
    return made


def _fill(layout: QBoxLayout, parts: Iterable[Part], spacing: int, margins: Margins) -> None:
    layout.setContentsMargins(*margins)
    layout.setSpacing(spacing)
    for each in parts:
        if isinstance(each, int):
            layout.addStretch(each)
            continue
        part, stretch = each if isinstance(each, tuple) else (each, 0)
        if isinstance(part, QWidget):
            layout.addWidget(part, stretch)
        else:
            layout.addLayout(part, stretch)
