"""Turns of the event loop of a window that is not run; needs no more of precgui than PySide6."""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtCore import QCoreApplication


def turn(seconds: float) -> None:
    """Let the window live for a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        QCoreApplication.processEvents()
        time.sleep(0.005)


def until(condition: Callable[[], bool], limit_s: float = 120) -> None:
    """Turn the event loop while something is awaited. Raises TimeoutError after `limit_s` seconds."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the window was not ready within {limit_s:.0f} s")
        turn(0.02)
