"""The session of the window: open runs with their colours, the queue, the child processes. Panels meet here."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Signal

from precgui import paths
from precgui.config import RunConfig
from precgui.gui.answer import Answer, thread
from precgui.gui.damage_notes import DamageNotes
from precgui.gui.open_runs import COLOURS, DASHES, OpenRun, Problem, distinct_name, usual_colour
from precgui.gui.proof import Proof
from precgui.gui.run_opener import RunOpener
from precgui.gui.run_progress import RunProgress, progress_of
from precgui.gui.study_control import StudyControl
from precgui.gui.undo import Undo
from precgui.gui.workers.child_process import RunThread
from precgui.runs.broken_off import BrokenOff
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import SavedRun, open_run
from precgui.runs.library import new_run_path
from precgui.runs.live import LiveRun
from precgui.runs.run import Run
from precgui.runs.step_times import keep_step_time
from precgui.runs.tensorboard.imported_run import ImportedRun

DRAIN_MS = 33
SHUTDOWN_MS = 5000  # a run is stopped within two seconds, and its file repaired
MOST_STYLES = 500
FOLLOW_MS = 1000  # between reads of a run that another process is writing


class Session(QObject):
    """The open runs and the queue. Signals carry the key of a run."""

    run_added = Signal(str)
    run_removed = Signal(str)
    run_ended = Signal(str)  # one that was trained here
    run_changed = Signal(str)  # name, colour, visibility or status
    data_arrived = Signal(str)
    queue_changed = Signal()
    notice = Signal(object)  # Problem
    panel_requested = Signal(str)  # a panel, or panel/tab; of Diagnose panel/key of a run
    number_requested = Signal(str, list)  # a number and the formats in which its bits are to be shown
    tensor_requested = Signal()  # `tensor_place` has been set
    proof_requested = Signal(object)  # a Proof that Live is to show
    step_requested = Signal(str, float)  # a run and a step that its curves are to show
    current_changed = Signal()  # another run is the current one, or none is
    inspect_changed = Signal()  # another tab of Inspect is asked for
    settings_requested = Signal(object, str)  # a RunConfig for the form of Run, and where it comes from
    study_requested = Signal(object, int)  # precisions and seeds for the form of a study
    shortcuts_requested = Signal()
    folder_changed = Signal()
    idle = Signal()  # nothing runs any more

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.runs: dict[str, OpenRun] = {}
        self.queue: list[RunConfig] = []
        self.active_key: str | None = None
        self.current: str | None = None  # the run that every panel is about
        self.is_chosen = False  # whether a person chose it
        self.inspect_tab = ""  # the tab that Inspect shows; "" for any
        self.tensor_place: tuple[str, str, float] | None = None  # kind, name and step that Tensors shall show next
        self.compared: tuple[str, str] | None = None  # baseline and run that Compare shall show next
        self._trials: list[tuple[RunConfig, str]] = []  # configs with a fix, and the run that it is for
        self._folder = paths.runs_dir()
        self._warm: RunThread | None = None
        self._thread: RunThread | None = None
        self._leaving: set[RunThread] = set()
        self._files = Answer(self, answered=self._take_file)
        self._timer = QTimer(self, interval=DRAIN_MS)
        self._timer.timeout.connect(self._drain)
        self._follower = QTimer(self, interval=FOLLOW_MS)
        self._follower.setObjectName("follower")
        self._follower.timeout.connect(self._follow)
        self._when_shut: Callable[[], None] | None = None
        self.styles: dict[str, tuple[int, int]] = {}  # colour and dash of runs by their id, of earlier sessions too
        self.baseline_file = ""  # of Compare, chosen by hand; it is chosen again after a restart
        self.opener = RunOpener(self._opened_key, self.notice.emit, self)
        self._damage = DamageNotes(self.runs, self.notice.emit, self)
        self.run_added.connect(self._damage.add)
        self._closed = self._measuring = self._goes_on = False
        self.agreed_code: set[str] = set()  # tasks of their own that the user lets run, until the window is closed
        self.undo = Undo(self)
        self.study = StudyControl(self)
        self.study.notice.connect(self.notice)
        self.study.changed.connect(self._on_study)

    # The folder of new runs

    @property
    def folder(self) -> Path:
        return self._folder

    def set_folder(self, folder: Path) -> None:
        self._folder = folder
        self.folder_changed.emit()

    # Open runs

    def open_file(self, path: Path) -> str | None:
        """Open a saved run and return its key; a file that cannot be read becomes a notice."""
        try:
            return self._opened_key(path)
        except RunFileError as error:
            self.notice.emit(Problem(str(error)))
            return None

    def _opened_key(self, path: Path) -> str:
        """The key of the run of a file, opened unless it is. Raises RunFileError."""
        return self.key_of(path) or self.take_in(open_run(path))

    def open_study(self, folder: str | Path) -> None:
        """Open the folder of a study and show its groups; a folder that is none becomes a notice."""
        from precgui.sweeps.folder import is_sweep

        if is_sweep(Path(folder)):
            self.study.open(Path(folder))
            self.panel_requested.emit("compare/groups")
        else:
            text = f"{folder} is not the folder of a study: it has no sweep.toml."
            self.notice.emit(Problem(text, severity="warning"))

    def key_of(self, path: Path) -> str | None:
        """The key of an open run by its file."""
        paths = {key: opened.run.path for key, opened in self.runs.items()}
        return next((key for key, own in paths.items() if own and own.absolute() == path.absolute()), None)

    def take_in(self, run: SavedRun | ImportedRun) -> str:
        """Show a run that has been read, and what is odd about it; returns its key."""
        if run.status == "running":
            self._follower.start()
        elif isinstance(run, SavedRun) and not paths.is_example(run.path):
            with contextlib.suppress(OSError):
                keep_step_time(run)
        return self.add_run(run)

    def _follow(self) -> None:
        """Read the runs again that other processes are writing."""
        followed = [o for o in self.runs.values() if isinstance(o.run, SavedRun) and o.run.status == "running"]
        if not followed:
            self._follower.stop()
        for opened in followed:
            assert isinstance(opened.run, SavedRun)
            try:
                went_on = opened.run.refresh()
            except RunFileError as error:
                self.notice.emit(Problem(f"{error} It is no longer followed.", severity="warning"))
                opened.run.status = "failed"
                went_on = True
            if went_on:
                self.data_arrived.emit(opened.key)
            if opened.run.status != "running":
                self.run_changed.emit(opened.key)

    def close_run(self, key: str, *, by_hand: bool = False) -> None:
        """Take a run out of the window; its file stays. A run that is training stays, too. `by_hand` can be undone."""
        if key == self.active_key:
            self.notice.emit(Problem("This run is still training; stop it before you close it.", severity="warning"))
            return
        if (opened := self.runs.pop(key, None)) is not None:
            was_current = key == self.current
            if by_hand:
                kept = opened.run.path if isinstance(opened.run, SavedRun) and opened.run.path else opened
                self.undo.offer(f"“{opened.name}” was closed.", partial(self._reopen, kept, was_current))
            if was_current:
                self.current, self.is_chosen = next(reversed(self.runs), None), False
            self.run_removed.emit(key)
            if was_current:
                self.current_changed.emit()

    def _reopen(self, closed: OpenRun | Path, was_current: bool) -> None:
        """Show a run again that was closed: from its file, or one that has none."""
        if isinstance(closed, Path):
            key = self.open_file(closed)
        else:
            key = closed.key
            if key not in self.runs:
                self.runs[key] = closed
                self.run_added.emit(key)
        if was_current and key is not None:
            self.choose(key)

    def set_visible(self, key: str, visible: bool) -> None:
        self.runs[key].visible = visible
        self.run_changed.emit(key)

    def set_colour(self, key: str, colour_index: int) -> None:
        opened = self.runs[key]
        opened.colour_index = colour_index
        self._keep_style(opened)
        self.run_changed.emit(key)

    def rename(self, key: str, name: str) -> None:
        """Set the name of a run in the window; the library keeps names across sessions."""
        self.runs[key].name = name
        self.run_changed.emit(key)

    def choose(self, key: str, *, by_hand: bool = True) -> None:
        """Make an open run the one that every panel is about; `by_hand`: a person asked for this very run."""
        self.is_chosen = by_hand
        if key != self.current:
            self.current = key
            self.current_changed.emit()

    def inspect(self, key: str, tab: str = "") -> None:
        """Make a run the current one and show it in Inspect, in this tab unless the last one is to stay."""
        self.choose(key)
        self.inspect_tab = tab or self.inspect_tab
        self.inspect_changed.emit()
        self.panel_requested.emit("inspect")

    def show_proof(self, proof: Proof) -> None:
        """Show the numbers that prove a finding above the plots of its run."""
        self.choose(proof.key)
        self.panel_requested.emit("live")
        self.proof_requested.emit(proof)

    def set_up(self, config: RunConfig, source: str) -> None:
        """Put a config into the form of Run; `source` says where it comes from, for the user."""
        self.panel_requested.emit("setup")
        self.settings_requested.emit(config, source)

    # Training

    def warm_up(self) -> None:
        """Start a child process that imports torch now, so that the next run begins at once."""
        if self._warm is None and not self._closed:
            self._warm = self._new_thread()

    def start(self, config: RunConfig) -> None:
        """Start a run, or queue it behind those that wait."""
        self.queue.append(config)
        if self._measuring:
            self.notice.emit(Problem("The run starts when the measurement in Hardware has ended.", severity="info"))
        elif self.study.is_running:
            self.notice.emit(Problem("The run starts when the study in Live has ended.", severity="info"))
        if self._thread is not None or self._measuring or self.study.is_running:
            self.queue_changed.emit()
        self._next(is_asked_now=True)

    def try_fix(self, config: RunConfig, key: str) -> None:
        """Start a run with a change; Compare opens with it and the run `key` when it has ended."""
        self._trials.append((config, key))
        self.start(config)

    def unqueue(self, index: int) -> None:
        """Take a waiting run out of the queue."""
        del self.queue[index]
        self.queue_changed.emit()

    def stop(self, key: str | None = None) -> None:
        """Stop the active run (or `key`, if that is the one)."""
        if self._thread is not None and key in (None, self.active_key):
            self._thread.stop()

    def set_measuring(self, measuring: bool) -> None:
        """Let no run begin while a measurement goes on: each would spoil the figures of the other."""
        self._measuring = measuring
        if not measuring:
            self._next()

    def _on_study(self) -> None:
        self.queue_changed.emit()
        self._next()
        self._finish_shutdown()

    def stop_all(self) -> None:
        """Stop the active run and clear the queue."""
        self.queue.clear()
        self.stop()
        self.queue_changed.emit()

    def move_in_queue(self, index: int, to: int) -> None:
        """Give a waiting run another place in the queue; a place that is not there leaves it where it is."""
        if 0 <= index < len(self.queue) and 0 <= to < len(self.queue):
            self.queue.insert(to, self.queue.pop(index))
            self.queue_changed.emit()

    @property
    def is_training(self) -> bool:
        return self._thread is not None

    @property
    def is_busy(self) -> bool:
        """Whether a run or a study is trained by this window."""
        return self.is_training or self.study.is_running

    @property
    def is_stopping(self) -> bool:
        return self._thread is not None and self._thread.stopping

    def progress(self) -> RunProgress | None:
        """The progress of the active run; None when nothing runs."""
        if self.active_key is None:
            return None
        return progress_of(self.runs[self.active_key].run, stopping=self.is_stopping)

    def shutdown(self, done: Callable[[], None]) -> None:
        """Stop everything for good, then call `done` from the event loop. Runs that wait are dropped."""
        self._closed = True
        self._follower.stop()
        self._when_shut = done
        self.queue.clear()
        self.stop()
        self.study.stop()
        if self._warm is not None:
            self._warm.dismiss()
            self._warm = None
        QTimer.singleShot(SHUTDOWN_MS, self, self._give_up_waiting)
        self._finish_shutdown()

    def _give_up_waiting(self) -> None:
        """Close without a process or a disk that does not answer."""
        self._leaving.clear()
        self.study.give_up()
        self._finish_shutdown()

    def add_run(self, run: Run) -> str:
        """Show a run in every panel; returns its key."""
        key = run.run_id
        while key in self.runs:  # the same run from a copied file
            key += "'"
        colour, dash = self._free_style(self.styles.get(run.run_id) or (usual_colour(run.run_id), 0))
        name = distinct_name(run.title, run.created, {opened.name for opened in self.runs.values()})
        self.runs[key] = OpenRun(key, run, name, colour, dash)
        self._keep_style(self.runs[key])
        self.run_added.emit(key)
        if self.current is None:
            self.choose(key, by_hand=False)
        return key

    def _free_style(self, usual: tuple[int, int]) -> tuple[int, int]:
        """Colour and dash for a run: its usual ones, else the next free colour, with a dash once all are taken."""
        pairs = {(opened.colour_index, opened.dash_index) for opened in self.runs.values()}
        ring = [((usual[0] + step) % COLOURS, dash) for dash in range(DASHES) for step in range(COLOURS)]
        return next((pair for pair in (usual, *ring) if pair not in pairs), usual)

    def _keep_style(self, opened: OpenRun) -> None:
        """Keep colour and dash of a run for its next opening; those of the last `MOST_STYLES` runs are kept."""
        self.styles.pop(opened.run.run_id, None)
        self.styles[opened.run.run_id] = (opened.colour_index, opened.dash_index)
        while len(self.styles) > MOST_STYLES:
            del self.styles[next(iter(self.styles))]

    def _next(self, ended: str | None = None, *, is_asked_now: bool = False) -> None:
        """Begin the run that waits longest, if nothing is in its way. It becomes the current run when it was asked for
        just now, or when the run `ended` that it follows is the current one."""
        if self._thread is not None or not self.queue or self._measuring or self.study.is_running:
            return
        config = self.queue.pop(0)
        path = new_run_path(self._folder, config)
        created = datetime.now(UTC).astimezone().isoformat(timespec="seconds")
        run = LiveRun(config, run_id=uuid.uuid4().hex, created=created, machine={}, environment={}, path=path)
        self._begin(run, path, is_shown=is_asked_now or ended == self.current, by_hand=is_asked_now)

    def _begin(self, run: LiveRun, path: Path, *, is_shown: bool, by_hand: bool, goes_on: bool = False) -> None:
        self._thread, self._warm = self._warm or self._new_thread(), None
        self._thread.begin_run(run.config, path, run.run_id, goes_on=goes_on)
        self._goes_on, self.active_key = goes_on, self.add_run(run)
        if is_shown:
            self.choose(self.active_key, by_hand=by_hand)
        self.queue_changed.emit()
        self._timer.start()

    def go_on(self, broken: BrokenOff) -> None:
        """Train a broken run from its checkpoint to its end, in its file, and show it in Live."""
        if self.is_busy or self._measuring:
            self.notice.emit(Problem("Something else is being trained or measured; go on when it has ended."))
            return
        if (key := self.key_of(broken.path)) is not None:
            self.close_run(key)
        run = LiveRun(
            broken.config, run_id=broken.run_id, created=broken.created, machine=broken.machine,
            environment=broken.environment, path=broken.path,
        )  # fmt: skip
        self._begin(run, broken.path, is_shown=True, by_hand=True, goes_on=True)
        self.panel_requested.emit("live")

    def _new_thread(self) -> RunThread:
        thread = RunThread(self)
        thread.finished.connect(lambda: self._on_thread_finished(thread))
        self._leaving.add(thread)
        thread.launch()
        return thread

    def _drain(self) -> None:
        """Take the events that the child process has sent since the last tick."""
        if self._thread is None or self.active_key is None or not self._thread.inbox:
            return
        run = self.runs[self.active_key].run
        assert isinstance(run, LiveRun)
        before = run.status
        while self._thread.inbox:
            run.extend(batch := self._thread.inbox.popleft())
            self._damage.report_stopped(self.runs[self.active_key].name, batch)
        self.data_arrived.emit(self.active_key)
        if run.status != before:
            self.run_changed.emit(self.active_key)

    def _on_thread_finished(self, thread: RunThread) -> None:
        self._leaving.discard(thread)
        if thread is self._thread:
            self._run_finished()
        elif thread is self._warm:  # it died while it waited, e.g. torch cannot be imported
            self._warm = None
        thread.deleteLater()
        self._finish_shutdown()

    def _run_finished(self) -> None:
        self._drain()
        self._timer.stop()
        key, self._thread, self.active_key = self.active_key, None, None
        assert key is not None
        run = self.runs[key].run
        assert isinstance(run, LiveRun)
        if run.status == "failed":
            self.notice.emit(Problem(f"{self.runs[key].name} failed: {run.message}", run.details))
        with contextlib.suppress(OSError):  # an estimate for later runs, no more
            keep_step_time(run)
        if self._goes_on and not run.steps and run.path is not None:  # refused: its file is as it was
            self.close_run(key)
            key = self.open_file(run.path) or key
        else:
            self._hand_over(run)
            self.run_changed.emit(key)
            self.run_ended.emit(key)
        self.folder_changed.emit()
        if key in self.runs:
            self.compare_trial(key)
        if not self._closed:
            self._next(key)
        if self._thread is None:
            self.idle.emit()
        self.queue_changed.emit()

    def compare_trial(self, key: str) -> None:
        run = self.runs[key].run
        tried = next((pair for pair in self._trials if pair[0] is run.config), None)
        if tried is not None:
            self._trials.remove(tried)
            if tried[1] in self.runs and isinstance(run, LiveRun) and run.steps and not self._closed:
                self.compared = tried[1], key
                self.panel_requested.emit("compare")

    def _hand_over(self, run: LiveRun) -> None:
        """Let a run that has ended go to its file, which holds all that is in memory."""
        if (path := run.path) is None or not run.steps or self._closed:
            return
        self._files.ask(thread(lambda: (run, _opened(path))))

    def _take_file(self, answer: tuple[LiveRun, SavedRun | None]) -> None:
        run, saved = answer
        if saved is not None and not run.hand_over(saved):
            saved.close()

    def _finish_shutdown(self) -> None:
        if self._when_shut is not None and not self._leaving and not self.study.is_running:
            QTimer.singleShot(0, self._when_shut)
            self._when_shut = None


def _opened(path: Path) -> SavedRun | None:
    """The file of a run that has ended, None where it cannot be read; the run then stays in memory."""
    try:
        return open_run(path)
    except RunFileError:
        return None
