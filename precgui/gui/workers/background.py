"""Work that may take long (disk, network folders), in a thread of its own; the answer comes back in the GUI thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QThread, Signal

from precgui.gui.workers import unfinished


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
        unfinished.add(self)
        self.start()

    def run(self) -> None:
        self.answered.emit(self._work())

    def _let_go(self) -> None:
        self.wait()
        unfinished.over(self)
