"""Engine work beside the runs (asking torch, measuring rates): one child process per task, its events as signals."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import QCoreApplication, QObject, QTimer, Signal

from precgui.gui.workers.child_process import ChildThread

DRAIN_MS = 50

running: set[EngineTask] = set()  # their processes have not ended


@atexit.register
def _end_all() -> None:
    """A QThread that is destroyed while it runs aborts the interpreter."""
    for task in list(running):
        task.close()


class _Child(ChildThread):
    """Keeps why the process ended, when it did not end well."""

    fault = ""

    def process_ended(self, clean: bool, death: str) -> None:
        self.fault = "" if clean else "\n".join([death, *self.last_words().splitlines()[-1:]])


class EngineTask(QObject):
    """One task "module:function" of precgui in a child process. Kept alive here until the process has ended.

    `said` carries each event in order; `ended` comes last, with "" or with what went wrong. The process ends with
    the application.
    """

    said = Signal(object)
    ended = Signal(str)

    def __init__(self, task: str, arguments: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._task, self._arguments = task, dict(arguments or {})
        self._child = _Child(self)
        self._child.finished.connect(self._finish)
        self._timer = QTimer(self, interval=DRAIN_MS)
        self._timer.timeout.connect(self._drain)

    def start(self) -> None:
        running.add(self)
        if app := QCoreApplication.instance():
            app.aboutToQuit.connect(self.close)
        self._child.start()
        self._child.begin_task(self._task, self._arguments)
        self._timer.start()

    def stop(self) -> None:
        """Ask the task to end; `ended` follows within a second."""
        self._child.stop()

    def close(self) -> None:
        """Stop and wait for the process; at most a second."""
        self._child.stop()
        self._child.wait()

    def _drain(self) -> None:
        while self._child.inbox:
            for event in self._child.inbox.popleft():
                self.said.emit(event)

    def _finish(self) -> None:
        self._timer.stop()
        self._drain()
        running.discard(self)
        self.ended.emit("" if self._child.stopping else self._child.fault)
