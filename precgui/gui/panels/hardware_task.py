"""One function in a thread of its own, its answer back in the GUI thread: for questions that may take long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, QThread, Signal


class Task(QThread):
    """Runs `work` once; `answered` carries what it returns. The owner keeps the Task until `finished`, or closes it."""

    answered = Signal(object)

    def __init__(self, work: Callable[[], Any], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._work = work

    def run(self) -> None:
        self.answered.emit(self._work())

    def close(self) -> None:
        """Wait for the end; a QThread that is destroyed while it runs takes the application with it."""
        self.wait()
