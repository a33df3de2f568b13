"""Missing or damaged parts of the files of runs, reported once: also those that show late, and a record that stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from PySide6.QtCore import QObject, QTimer

from precgui.events import Event, Incident
from precgui.gui.open_run import OpenRun, Problem
from precgui.runs.file.reader import SavedRun
from precgui.words import translated

INTERVAL_MS = 1000


class DamageNotes(QObject):
    """Reports each note of the saved runs among `runs` (by key) once, as a warning, for as long as they are open.

    A column is read when something shows it, in whatever thread; so the notes are read once a second. An import
    has none: its caller reports the result.
    """

    def __init__(self, runs: Mapping[str, OpenRun], report: Callable[[Problem], object], parent: QObject) -> None:
        super().__init__(parent)
        self._runs, self._report = runs, report
        self._reported: dict[str, set[str]] = {}
        self._timer = QTimer(self, interval=INTERVAL_MS)
        self._timer.timeout.connect(self._report_all)

    @property
    def is_active(self) -> bool:
        """Whether a saved run is open."""
        return self._timer.isActive()

    def report_stopped(self, name: str, batch: Sequence[Event]) -> None:
        """Report at once that the record of a run has stopped while its training goes on."""
        for event in batch:
            if isinstance(event, Incident) and event.kind == "recording_stopped":
                self._report(Problem(f"{name}: {translated(event.message)}"))

    def add(self, key: str) -> None:
        """Report the notes of a run that has just been opened, and later ones of it."""
        if isinstance(run := self._runs[key].run, SavedRun):
            self._report_new(key, run)
            self._timer.start()

    def _report_new(self, key: str, run: SavedRun) -> None:
        reported = self._reported.setdefault(key, set())
        for note in run.notes:
            if note not in reported:
                reported.add(note)
                self._report(Problem(f"{run.path.name}: {translated(note)}", severity="warning"))

    def _report_all(self) -> None:
        saved = {key: opened.run for key, opened in self._runs.items() if isinstance(opened.run, SavedRun)}
        self._reported = {key: notes for key, notes in self._reported.items() if key in saved}
        for key, run in saved.items():
            if run.status != "running":  # a file that is being written may be read in the middle of a change
                self._report_new(key, run)
        if not saved:
            self._timer.stop()
