"""The study of the window: its folder, the child process that runs it, and the thread that reads it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, QTimer, Signal

from precgui.errors import SentenceError
from precgui.gui.answer import Answer, Work, child, thread
from precgui.gui.going_on import going_on
from precgui.gui.open_run import Problem
from precgui.paths import is_example
from precgui.safe_open import read_text
from precgui.words import L_, _, error_text, translated

if TYPE_CHECKING:
    from precgui.gui.study_reading import StudyGrid, StudyReading
    from precgui.runs.verdict.targets import Targets
    from precgui.sweeps.folder import SweepFolder
    from precgui.sweeps.spec import SweepSpec

FOLLOW_MS = 1000
IDLE_MS = 4000  # nobody runs it, as far as is known; another process may begin to
TASK = "precgui.sweeps.runner:serve"
_NOT_CHANGED = L_("The plan was not changed: {why}.")
TASK_THERE = "precgui.cli.place_sweep:serve"
_MOST_BYTES = 1 << 20


class StudyControl(QObject):
    """At most one study is open. `grid` and `groups` are as they were read last; None before that.

    The state is that of the files, so the study can also be run or paused by another process. What this window runs is
    stopped when it closes, and goes on later.
    """

    opened = Signal()  # another folder
    changed = Signal()  # it began or ended to run here
    grid_read = Signal()
    groups_read = Signal()
    notice = Signal(object)  # Problem

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.folder: Path | None = None
        self.grid: StudyGrid | None = None
        self.groups: Any = None  # ReportContent
        self.why_no_groups = ""
        self.places: tuple[str, ...] = ()  # that train it; none: this machine
        self.why_it_waits = ""  # of what this window runs; empty while a run trains
        self._start_s: dict[str, float] = {}  # by the clock, of runs without a file; "" before the first is known
        self._reading: StudyReading | None = None
        self._runner = Answer(self, progress=self._hear, ended=self._on_ended)
        self._answer = Answer(self, answered=self._take)
        self._groups_requested = False
        self._grid_requested = False
        self._changes: list[tuple[Callable[[SweepFolder], None], str]] = []  # with the sentence of its fault
        self._timer = QTimer(self, interval=FOLLOW_MS)
        self._timer.timeout.connect(self.read_grid)

    @property
    def is_example(self) -> bool:
        """Whether it is a bundled study, which stays as it is."""
        return self.folder is not None and is_example(self.folder / "sweep.toml")

    @property
    def is_running(self) -> bool:
        """Whether this window runs it."""
        return self._runner.busy

    @property
    def starting_s(self) -> dict[str, float]:
        """Seconds since the engine of each run was started that has not begun to train; "" is the next of the plan."""
        now = time.monotonic()
        return {name: now - start_s for name, start_s in self._start_s.items()}

    # What a user does --------------------------------------------------------------------------------------

    def open(self, folder: Path) -> None:
        """Show the study in this folder."""
        from precgui.gui.study_reading import StudyReading

        if self.is_running and folder != self.folder:
            self._tell(_("A study is running; stop it or let it end before another one is opened."))
            return
        self.folder, self._reading, self.places = folder, StudyReading(folder), _places_of(folder)
        self.grid, self.groups, self.why_no_groups = None, None, ""
        self.opened.emit()
        self.read_grid()
        self._timer.start()

    def start(self, spec: SweepSpec, folder: Path, targets: Targets | None = None, places: Sequence[str] = ()) -> bool:
        """Make the folder of a new study and run it here or at places; whether it began. A fault becomes a notice."""
        from precgui.runs.verdict.targets import DEFAULT_TARGETS
        from precgui.sweeps.folder import create_sweep

        if self.is_running:
            self._tell(_("A study is running already."))
            return False
        try:
            create_sweep(folder, spec, targets or DEFAULT_TARGETS)
        except SentenceError as error:
            self._tell(_("{error}.").format(error=error_text(error)), severity="error")
            return False
        self.open(folder)
        self.places = tuple(places)
        self.go_on()
        return self.is_running

    def go_on(self, take_over: bool = False) -> None:
        """Run what is left, in a child process; a pause ends.

        `take_over`: the process that runs it now ends its present run and leaves the others to this window.
        """
        if self.folder is None or not self._set_paused(False):
            return
        if not self._runner.busy:
            self._start_s = {} if self.places else {"": time.monotonic()}
            self._runner.ask(self._work(take_over))
            self._timer.start()
        self.changed.emit()
        self.read_grid()

    def _work(self, take_over: bool) -> Work:
        if not self.places:
            return child(TASK, {"folder": str(self.folder), "take_over": take_over})
        consented = {"may_send_code": True}  # who starts a study was asked before
        return child(TASK_THERE, {"folder": str(self.folder), "places": self.places, **consented})

    def pause(self) -> None:
        """Let the present run end and begin no further one, whichever process runs the study."""
        if self.folder is not None and self._set_paused(True):
            self.read_grid()

    def stop(self) -> None:
        """End the present run, too; it runs again from its start when the study goes on."""
        self._runner.cancel()

    def give_up(self) -> None:
        """Wait no longer for the process that runs it."""
        self._runner.forget()

    def change(self, act: Callable[[SweepFolder], None], refusal: str = _NOT_CHANGED) -> None:
        """Change the plan (skip, order, more seeds) or its jobs in a thread, whichever process runs the study."""
        self._changes.append((act, refusal))
        self._read_next()

    def targets(self) -> Targets | None:
        """The targets of the open study; None, with a notice, where they cannot be read."""
        from precgui.sweeps.folder import read_targets

        assert self.folder is not None
        try:
            return read_targets(self.folder)
        except SentenceError as error:
            self._tell(_("{error}.").format(error=error_text(error)), severity="error")
            return None

    def set_targets(self, targets: Targets) -> bool:
        """Judge the open study by other targets from now on; whether they could be kept."""
        from precgui.sweeps.folder import write_targets

        assert self.folder is not None
        try:
            write_targets(self.folder, targets)
        except SentenceError as error:
            self._tell(_("{error}.").format(error=error_text(error)), severity="error")
            return False
        return True

    # Reading -----------------------------------------------------------------------------------------------

    def read_grid(self) -> None:
        """Read the state of the runs, in a thread; `grid_read` follows."""
        self._grid_requested = True
        self._read_next()

    def read_groups(self) -> None:
        """Judge the runs that have ended, in a thread; `groups_read` follows."""
        self._groups_requested = True
        self._read_next()

    def _read_next(self) -> None:
        """One reading at a time: the caches of the folder belong to one thread."""
        if self._answer.busy or self._reading is None:
            return
        if self._changes:
            act, refusal = self._changes.pop(0)
            self._begin(partial(self._reading.change, act), partial(self._take_change, refusal))
        elif self._grid_requested:
            self._grid_requested = False
            self._begin(self._reading.grid, self._take_grid)
        elif self._groups_requested:
            self._groups_requested = False
            self._begin(self._reading.groups, self._take_groups)

    def _begin(self, read: Callable[[], Any], take: Callable[[Any], None]) -> None:
        assert self._reading is not None
        self._answer.ask(thread(_attempt, self._reading, read, take))

    def _take(self, answer: tuple[StudyReading, Any, Callable[[Any], None]]) -> None:
        reading, result, take = answer
        if reading is self._reading:
            take(result)
        self._read_next()

    def _take_change(self, refusal: str, fault: str | None) -> None:
        if fault is not None:
            self._tell(translated(refusal).format(why=translated(fault)), severity="error")
        self.read_grid()

    def _take_grid(self, grid: StudyGrid | str) -> None:
        if isinstance(grid, str):
            self._timer.stop()
            self._tell(_("The study cannot be read: {why}.").format(why=translated(grid)), severity="error")
        else:
            self.grid = grid
            self._forget_begun(grid)
            self._timer.setInterval(FOLLOW_MS if self.is_running or grid.is_run_somewhere else IDLE_MS)
            self.grid_read.emit()

    def _take_groups(self, groups: Any) -> None:
        self.why_no_groups = groups if isinstance(groups, str) else ""
        self.groups = None if isinstance(groups, str) else groups
        self.groups_read.emit()

    # The child process -------------------------------------------------------------------------------------

    def _hear(self, event: object) -> None:
        from precgui.sweeps.events import MemberGoesOn, SweepWaits

        if isinstance(event, MemberGoesOn):
            going_on().tell_goes_on(event.name, event.place)
        self.why_it_waits = event.why if isinstance(event, SweepWaits) else ""
        self._note_start(event)
        if self.why_it_waits:
            self._tell(_("The study waits: {why}.").format(why=translated(self.why_it_waits)), severity="info")
        self.read_grid()

    def _note_start(self, event: object) -> None:
        from precgui.sweeps.events import MemberBegan, MemberEnded

        self._start_s.pop("", None)
        if isinstance(event, MemberBegan) and not self.places:  # of a place the file comes home at the end of the run
            self._start_s[event.name] = time.monotonic()
        elif isinstance(event, MemberEnded):
            self._start_s.pop(event.name, None)

    def _forget_begun(self, grid: StudyGrid) -> None:
        """The engine of a run has started when its file is there."""
        for member in grid.document.members:
            if member.status not in ("waiting", "cut off"):
                self._start_s.pop(member.name, None)

    def _on_ended(self, fault: str) -> None:
        self.why_it_waits = ""
        self._start_s.clear()
        if fault:
            self._tell(_("The process that ran the study ended; Go on in Live continues it."), fault, "error")
        self.changed.emit()
        self.read_grid()

    def _set_paused(self, paused: bool) -> bool:
        from precgui.sweeps.folder import set_paused

        assert self.folder is not None
        try:
            set_paused(self.folder, paused)
        except SentenceError as error:
            self._tell(_("{error}.").format(error=error_text(error)), severity="error")
            return False
        return True

    def _tell(self, text: str, details: str = "", severity: Any = "warning") -> None:
        self.notice.emit(Problem(text, details, severity))


def _attempt(
    reading: StudyReading, read: Callable[[], Any], take: Callable[[Any], None]
) -> tuple[StudyReading, Any, Callable[[Any], None]]:
    """The reading, its result or the sentence that says why not, and who takes it."""
    from precgui.sweeps.errors import reason

    try:
        return reading, read(), take
    except Exception as error:  # noqa: BLE001 - the folder may be of anybody, and another one must be readable after it
        return reading, reason(error), take


def _places_of(folder: Path) -> tuple[str, ...]:
    """The names of the places that have trained the study of this folder last; none for this machine."""
    from precgui.sweeps.folder import PLACES

    try:
        kept = json.loads(read_text(folder / PLACES, _MOST_BYTES))
        return tuple(name for name in kept["places"] if isinstance(name, str))
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return ()
