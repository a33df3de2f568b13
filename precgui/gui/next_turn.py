"""Work in parts, each in a turn of the event loop of its own, so that no key or click waits for more than one."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, QTimer

NEXT_TURN_MS = 1  # with 0 Qt posts an event, and takes events that came while it took others in the same turn


def in_next_turn(owner: QObject, act: Callable[[], object]) -> None:
    """Call `act` in a later turn of the event loop, after the input that waits; never when `owner` is gone."""
    QTimer.singleShot(NEXT_TURN_MS, owner, lambda: act())
