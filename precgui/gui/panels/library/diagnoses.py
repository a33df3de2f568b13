"""The diagnosis of each run of the folder, read in a thread, one after the other while somebody looks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from precgui.gui.answer import Answer, thread
from precgui.gui.diagnosing import examined
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.runs.library_index import LibraryEntry

if TYPE_CHECKING:
    from precgui.runs.diagnosis.findings import Diagnosis

MOST = 200  # runs, the newest first: each is read as a whole
Judged: TypeAlias = "tuple[Path, float, Diagnosis | None]"


class FolderDiagnoses(QObject):
    """`judged(path, diagnosis)` comes for each run once, and again when its file has changed."""

    judged = Signal(object, object)

    def __init__(self, view: QWidget) -> None:
        super().__init__(view)
        self._view = view
        self._waiting: list[Path] = []
        self._times: dict[Path, float] = {}
        self._reading = Answer(self, answered=self._take)

    def ask(self, entries: Sequence[LibraryEntry]) -> None:
        """Judge the runs that have ended, as far as that was not done before."""
        ended = [entry for entry in entries if not entry.error and entry.status not in (None, "running")]
        newest = sorted(ended, key=lambda entry: entry.created, reverse=True)[:MOST]
        self._waiting = [entry.path for entry in newest if self._times.get(entry.path) != _changed_s(entry.path)]
        self.go_on()

    def go_on(self) -> None:
        """Read the next run, if the view is shown and none is being read."""
        if self._waiting and self._view.isVisible() and not self._reading.busy:
            self._reading.ask(thread(_judge, self._waiting.pop(0)))

    def _take(self, answer: Judged) -> None:
        path, changed_s, diagnosis = answer
        self._times[path] = changed_s
        if diagnosis is not None:
            self.judged.emit(path, diagnosis)
        self.go_on()


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _judge(path: Path) -> Judged:
    changed_s = _changed_s(path)
    try:
        with open_run(path) as run:
            return path, changed_s, examined(run)
    except RunFileError:
        return path, changed_s, None
