"""Parts of work have a turn of the event loop each."""

from __future__ import annotations

import time

from PySide6.QtCore import QObject, QTimer
from pytestqt.qtbot import QtBot

from precgui.gui.next_turn import in_next_turn


def test_that_other_timers_have_their_turn_between_the_parts(qtbot: QtBot) -> None:
    owner, tick = QObject(), QTimer(interval=1)
    turns: list[str] = []

    def work() -> None:
        time.sleep(0.02)
        turns.append("part")
        if turns.count("part") < 6:
            in_next_turn(owner, work)

    tick.timeout.connect(lambda: turns.append("tick"))
    tick.start()
    in_next_turn(owner, work)
    qtbot.waitUntil(lambda: turns.count("part") == 6)
    tick.stop()
    assert "part, part" not in ", ".join(turns)


def test_that_nothing_is_done_for_an_owner_that_is_gone(qtbot: QtBot) -> None:
    owner, parts = QObject(), list[str]()
    in_next_turn(owner, lambda: parts.append("owner"))
    in_next_turn(other := QObject(), lambda: parts.append("other"))
    del owner
    qtbot.waitUntil(lambda: bool(parts))
    assert parts == ["other"]
    assert other.parent() is None
