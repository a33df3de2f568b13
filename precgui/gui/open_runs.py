"""The runs that are open in the window, by key, the one that every panel is about, and how their files are opened."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Signal

from precgui import paths
from precgui.events import Event, Incident
from precgui.examples import title_for_reader
from precgui.gui.open_run import COLOURS, DASHES, OpenRun, Problem, distinct_name, usual_colour
from precgui.gui.undo import Undo
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import SavedRun, open_run
from precgui.runs.line_styles import precision_place
from precgui.runs.run import Run
from precgui.runs.step_times import keep_step_time
from precgui.runs.tensorboard.imported_run import ImportedRun
from precgui.words import _, error_text, translated

MOST_STYLES = 500
FOLLOW_MS = 1000  # between reads of a run that another process is writing
NOTES_INTERVAL_MS = 1000


class OpenRuns(QObject):
    """A mapping from keys to open runs, in the order of opening. Signals carry the key of a run."""

    added = Signal(str)
    removed = Signal(str)
    changed = Signal(str)  # name, colour, visibility or status
    data_arrived = Signal(str)
    current_changed = Signal()  # another run is the current one, or none is

    def __init__(self, report: Callable[[Problem], object], undo: Undo, parent: QObject) -> None:
        super().__init__(parent)
        self._runs: dict[str, OpenRun] = {}
        self._report, self._undo = report, undo
        self.active_key: str | None = None  # the run that is trained here; it stays open
        self.current: str | None = None  # the run that every panel is about
        self.is_chosen = False  # whether a person chose it
        self.styles: dict[str, tuple[int, int]] = {}  # colour and dash of runs by their id, of earlier sessions too
        self.opener = RunOpener(self._opened_key, report, self)
        self._damage = DamageNotes(self._runs, report, self)
        self.added.connect(self._damage.add)
        self._follower = QTimer(self, interval=FOLLOW_MS)
        self._follower.setObjectName("follower")
        self._follower.timeout.connect(self._follow)

    # The mapping; a QObject cannot inherit it

    def __getitem__(self, key: str) -> OpenRun:
        return self._runs[key]

    def __contains__(self, key: object) -> bool:
        return key in self._runs

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, key: str) -> OpenRun | None:
        return self._runs.get(key)

    def keys(self) -> KeysView[str]:
        return self._runs.keys()

    def values(self) -> ValuesView[OpenRun]:
        return self._runs.values()

    def items(self) -> ItemsView[str, OpenRun]:
        return self._runs.items()

    # Opening and closing

    def open_file(self, path: Path) -> str | None:
        """Open a saved run and return its key; a file that cannot be read becomes a notice."""
        try:
            return self._opened_key(path)
        except RunFileError as error:
            self._report(Problem(error_text(error)))
            return None

    def _opened_key(self, path: Path) -> str:
        """The key of the run of a file, opened unless it is. Raises RunFileError."""
        return self.key_of(path) or self.take_in(open_run(path))

    def key_of(self, path: Path) -> str | None:
        """The key of an open run by its file."""
        files = {key: opened.run.path for key, opened in self._runs.items()}
        return next((key for key, own in files.items() if own and own.absolute() == path.absolute()), None)

    def take_in(self, run: SavedRun | ImportedRun) -> str:
        """Show a run that has been read, and what is odd about it; returns its key."""
        if run.status == "running":
            self._follower.start()
        elif isinstance(run, SavedRun) and not paths.is_example(run.path):
            with contextlib.suppress(OSError):
                keep_step_time(run)
        return self.add(run)

    def add(self, run: Run) -> str:
        """Show a run in every panel; returns its key."""
        key = run.run_id
        while key in self._runs:  # the same run from a copied file
            key += "'"
        colour, dash = self._free_style(run)
        title = title_for_reader(run.title, run.path, translated)
        name = distinct_name(title, run.created, {opened.name for opened in self._runs.values()})
        opened = OpenRun(key, run, name, colour, dash)
        self._keep_style(opened)
        self.put(opened)
        if self.current is None:
            self.choose(key, by_hand=False)
        return key

    def put(self, opened: OpenRun) -> None:
        """Show an open run under its own key, name and colour."""
        self._runs[opened.key] = opened
        self.added.emit(opened.key)

    def close(self, key: str, *, by_hand: bool = False) -> None:
        """Take a run out of the window; its file stays. A run that is training stays, too. `by_hand` can be undone."""
        if key == self.active_key:
            self._report(Problem(_("This run is still training; stop it before you close it."), severity="warning"))
            return
        if (opened := self._runs.pop(key, None)) is not None:
            was_current = key == self.current
            if by_hand:
                path = opened.run.path if opened.run.status != "running" else None
                kept = path if path is not None and path.is_file() else opened  # all of its numbers, if need be
                self._undo.offer(
                    _("“{name}” was closed.").format(name=opened.name), partial(self._reopen, kept, was_current)
                )
            if was_current:
                self.current, self.is_chosen = next(reversed(self._runs), None), False
            self.removed.emit(key)
            if was_current:
                self.current_changed.emit()

    def _reopen(self, closed: OpenRun | Path, was_current: bool) -> None:
        """Show a run again that was closed: from its file, or one that has none."""
        if isinstance(closed, Path):
            key = self.open_file(closed)
        else:
            key = closed.key
            if key not in self._runs:
                self.put(closed)
        if was_current and key is not None:
            self.choose(key)

    # Runs that another process is writing

    def _follow(self) -> None:
        """Read the runs again that other processes are writing."""
        followed = [o for o in self._runs.values() if isinstance(o.run, SavedRun) and o.run.status == "running"]
        if not followed:
            self._follower.stop()
        for opened in followed:
            assert isinstance(opened.run, SavedRun)
            try:
                went_on = opened.run.refresh()
            except RunFileError as error:
                text = _("{error} It is no longer followed.").format(error=error_text(error))
                self._report(Problem(text, severity="warning"))
                opened.run.status = "failed"
                went_on = True
            if went_on:
                self.data_arrived.emit(opened.key)
            if opened.run.status != "running":
                self.changed.emit(opened.key)

    def stop_following(self) -> None:
        """Read no file again; the window closes."""
        self._follower.stop()

    def report_stopped_record(self, key: str, batch: Sequence[Event]) -> None:
        """Report at once that the record of a run has stopped while its training goes on."""
        self._damage.report_stopped(self._runs[key].name, batch)

    # How a run is shown

    def choose(self, key: str, *, by_hand: bool = True) -> None:
        """Make an open run the one that every panel is about; `by_hand`: a person asked for this very run."""
        self.is_chosen = by_hand
        if key != self.current:
            self.current = key
            self.current_changed.emit()

    def set_visible(self, key: str, visible: bool) -> None:
        self._runs[key].visible = visible
        self.changed.emit(key)

    def set_colour(self, key: str, colour_index: int) -> None:
        opened = self._runs[key]
        opened.colour_index = colour_index
        self._keep_style(opened)
        self.changed.emit(key)

    def rename(self, key: str, name: str) -> None:
        """Set the name of a run in the window; the library keeps names across sessions."""
        self._runs[key].name = name
        self.changed.emit(key)

    def _free_style(self, run: Run) -> tuple[int, int]:
        """Colour and dash for a run: those it had, else the colour of its precision, as in Compare, else its usual one,
        else the next free colour, with a dash once all are taken."""
        usual = usual_colour(run.run_id)
        first = self.styles.get(run.run_id) or (precision_place(run.config.precision), 0)
        pairs = {(opened.colour_index, opened.dash_index) for opened in self._runs.values()}
        ring = [((usual + step) % COLOURS, dash) for dash in range(DASHES) for step in range(COLOURS)]
        return next((pair for pair in (first, *ring) if pair not in pairs), first)

    def _keep_style(self, opened: OpenRun) -> None:
        """Keep colour and dash of a run for its next opening; those of the last `MOST_STYLES` runs are kept."""
        self.styles.pop(opened.run.run_id, None)
        self.styles[opened.run.run_id] = (opened.colour_index, opened.dash_index)
        while len(self.styles) > MOST_STYLES:
            del self.styles[next(iter(self.styles))]


@dataclass
class _Batch:
    """Files that were chosen together."""

    left: deque[Path]
    then: Callable[[str], object] | None  # until a file could be opened
    total: int
    faults: list[str] = field(default_factory=list)


class RunOpener(QObject):
    """Opens files, the first at once and each other in a turn of the event loop.

    `open_run` opens one file and returns the key of its run, or raises RunFileError; files that cannot be read become
    one problem, reported after the last file.
    """

    def __init__(self, open_run: Callable[[Path], str], report: Callable[[Problem], object], parent: QObject) -> None:
        super().__init__(parent)
        self._open_run, self._report_problem = open_run, report
        self._batches: list[_Batch] = []
        self._turns = QTimer(self, interval=0)
        self._turns.timeout.connect(lambda: self._open_one(self._batches[0]))

    def open(self, paths: Sequence[Path], then: Callable[[str], object]) -> None:
        """Open these files, also while others wait; `then` takes the key of the first that could be opened."""
        if paths:
            batch = _Batch(deque(paths), then, len(paths))
            self._batches.append(batch)
            self._turns.start()
            self._open_one(batch)

    @property
    def is_busy(self) -> bool:
        """Whether more files wait to be opened."""
        return bool(self._batches)

    def _open_one(self, batch: _Batch) -> None:
        path = batch.left.popleft()
        if not batch.left:
            self._batches.remove(batch)
        if not self._batches:
            self._turns.stop()
        try:
            key = self._open_run(path)
        except RunFileError as error:
            batch.faults.append(error_text(error))
        else:
            then, batch.then = batch.then, None
            if then is not None:
                then(key)
        if not batch.left:
            self._report(batch)

    def _report(self, batch: _Batch) -> None:
        """Name the files that could not be read."""
        faults = batch.faults
        if len(faults) == 1:
            self._report_problem(Problem(faults[0]))
        elif faults:
            text = _("{count} of {total} files could not be opened. The details name each of them.")
            text = text.format(count=len(faults), total=batch.total)
            self._report_problem(Problem(text, "\n".join(faults)))


class DamageNotes(QObject):
    """Reports missing or damaged parts of the saved runs among `runs` (by key) once, as warnings, while they are open.

    A column is read when something shows it, in whatever thread; so the notes are read once a second. An import
    has none: its caller reports the result.
    """

    def __init__(self, runs: Mapping[str, OpenRun], report: Callable[[Problem], object], parent: QObject) -> None:
        super().__init__(parent)
        self._runs, self._report = runs, report
        self._reported: dict[str, set[str]] = {}
        self._timer = QTimer(self, interval=NOTES_INTERVAL_MS)
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
                self._report(Problem(f"{run.path.name}: {translated(note)}", severity="warning", run=key))

    def _report_all(self) -> None:
        saved = {key: opened.run for key, opened in self._runs.items() if isinstance(opened.run, SavedRun)}
        self._reported = {key: notes for key, notes in self._reported.items() if key in saved}
        for key, run in saved.items():
            if run.status != "running":  # a file that is being written may be read in the middle of a change
                self._report_new(key, run)
        if not saved:
            self._timer.stop()
