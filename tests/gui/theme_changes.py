"""A change of the theme as a person sees it: of all parts of the window."""

from __future__ import annotations

from typing import cast

from pytestqt.qtbot import QtBot

from precgui.gui.theme import Mode, themes


def change_theme(qtbot: QtBot, mode: str) -> None:
    """Pin a theme, or follow the system, and wait until every part of the window has taken it."""
    themes().set_mode(cast(Mode, mode))
    qtbot.waitUntil(lambda: not themes().is_changing)
