"""Work that may take long (disk, network folders), in a thread of its own; the answer comes back in the GUI thread."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QCoreApplication, QThread, Signal

_running: set[Background] = set()


@atexit.register
def _end_all() -> None:
    """A QThread that is destroyed while it runs aborts the interpreter."""
    for work in list(_running):
        work.wait()


class Background(QThread):
    """Runs `work` once. Kept alive here until it has ended, whatever becomes of who asked.

    `answered` carries what `work` returns; connect it to a method of a QObject, so that nobody is called who is gone.
    """

    answered = Signal(object)

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work
        self.finished.connect(self._let_go)

    def begin(self) -> None:
        if app := QCoreApplication.instance():
            app.aboutToQuit.connect(self._wait)
        _running.add(self)
        self.start()

    def run(self) -> None:
        self.answered.emit(self._work())

    def _wait(self) -> None:
        self.wait()

    def _let_go(self) -> None:
        self.wait()
        _running.discard(self)
