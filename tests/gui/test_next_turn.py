"""Parts of work have a turn of the event loop each."""

from __future__ import annotations

import time

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from precgui.gui.next_turn import NEXT_TURN_MS, in_next_turn


def test_that_one_turn_of_the_event_loop_does_one_part_however_long_it_takes(qtbot: QtBot) -> None:
    owner = QObject()
    parts: list[int] = []

    def work() -> None:
        time.sleep(2 * NEXT_TURN_MS / 1000)  # the next part is due at once
        parts.append(len(parts))
        if len(parts) < 4:
            in_next_turn(owner, work)

    in_next_turn(owner, work)
    most = 0
    while len(parts) < 4:
        before = len(parts)
        QApplication.processEvents()
        most = max(most, len(parts) - before)
    assert most == 1


def test_that_nothing_is_done_for_an_owner_that_is_gone(qtbot: QtBot) -> None:
    owner, parts = QObject(), list[str]()
    in_next_turn(owner, lambda: parts.append("owner"))
    in_next_turn(other := QObject(), lambda: parts.append("other"))
    del owner
    qtbot.waitUntil(lambda: bool(parts))
    assert parts == ["other"]
    assert other.parent() is None
