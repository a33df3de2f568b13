"""The base of the window's threads: kept alive until they have ended, waited for when the application ends.

A QThread that is destroyed while it runs aborts the interpreter, and one that hangs in the system (a dead network
folder, a damaged disk) never ends. Where threads still run after PATIENCE_S, the process exits without them.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from functools import partial
from typing import Any

from PySide6.QtCore import QThread, QTimer
from shiboken6 import isValid

PATIENCE_S = 2.0

_running: dict[ManagedThread, Any] = {}  # each with an object that is kept as long
_kept: list[Any] = []


class ManagedThread(QThread):
    """A thread that needs no other reference from `launch` until it has ended."""

    def launch(self, owner: Any = None) -> None:
        """Start the thread; it and `owner`, which may be its parent, stay alive until it has ended."""
        _running[self] = owner
        self.finished.connect(self._release)  # after the slots that others have connected
        self.start()

    def on_application_end(self) -> None:
        """Called before `wait_for_all` waits; a thread that can be asked to end is asked here."""

    def _release(self) -> None:
        self.wait()
        QTimer.singleShot(0, partial(_forget, self))  # not inside a slot of the thread itself


def _forget(thread: ManagedThread) -> None:
    """Let a thread that has ended go; its connections may hold it, and what it has made."""
    _running.pop(thread, None)
    if isValid(thread):
        thread.finished.disconnect()


def running() -> list[ManagedThread]:
    """The threads that were launched and have not ended."""
    return [thread for thread in _running if isValid(thread)]


def wait_for_all(patience_s: float = PATIENCE_S) -> bool:
    """Ask the threads to end and wait. Returns whether all have ended within `patience_s` seconds."""
    until = time.monotonic() + patience_s
    threads = running()
    for thread in threads:
        thread.on_application_end()
    return all(thread.wait(max(0, round(1000 * (until - time.monotonic())))) for thread in threads)


def keep_forever(*objects: Any) -> None:
    """Never destroy these objects, which a hanging thread may use; the process ends with them."""
    _kept.extend(objects)


@atexit.register
def _exit_if_stuck() -> None:
    if not wait_for_all():
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(0)
