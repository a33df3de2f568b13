"""Threads that are still at work when the application ends: waited for a moment, then left behind.

A QThread that is destroyed while it runs aborts the interpreter, and one that hangs in the system (a dead network
folder, a damaged disk) never ends. So the process ends at once where a moment was not enough.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from typing import Any

from PySide6.QtCore import QThread

PATIENCE_S = 2.0

_running: set[QThread] = set()
_kept: list[Any] = []


def add(thread: QThread) -> None:
    """Keep a thread alive until `over`."""
    _running.add(thread)


def over(thread: QThread) -> None:
    _running.discard(thread)


def wait(patience_s: float = PATIENCE_S) -> bool:
    """Whether all threads have ended, at the latest after that time."""
    until = time.monotonic() + patience_s
    return all(thread.wait(max(0, round(1000 * (until - time.monotonic())))) for thread in list(_running))


def keep(*objects: Any) -> None:
    """Do not destroy these, on which a thread that hangs depends; the process ends with them."""
    _kept.extend(objects)


@atexit.register
def _end_process_if_stuck() -> None:
    if not wait():
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(0)
