"""Buttons of this panel: with a tip that is their spoken name, and with a menu that is filled when it opens."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtWidgets import QMenu, QPushButton, QToolButton


def tip_button(words: str, tip: str, slot: Callable[[], None]) -> QPushButton:
    button = QPushButton(words)
    button.setToolTip(tip)
    button.setAccessibleName(tip)
    button.setAutoRepeat(True)
    button.clicked.connect(slot)
    return button


def menu_button(words: str, fill: Callable[[QMenu], None]) -> QToolButton:
    """A button whose menu is filled anew each time it opens."""
    button = QToolButton()
    button.setText(words)
    button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
    menu = QMenu(button)
    menu.aboutToShow.connect(menu.clear)
    menu.aboutToShow.connect(lambda: fill(menu))
    button.setMenu(menu)
    return button
