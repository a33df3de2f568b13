"""The run that is trained by this window, those that wait for it, and the processes that train them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal

from precgui.config import ConfigError, RunConfig, build_accepted
from precgui.gui.answer import Answer, thread
from precgui.gui.open_run import Problem
from precgui.gui.open_runs import OpenRuns
from precgui.gui.requests import Requests
from precgui.gui.run_progress import RunProgress, progress_of
from precgui.runs.broken_off import BrokenOff
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import SavedRun, open_run
from precgui.runs.library import new_run_path
from precgui.runs.live import LiveRun
from precgui.runs.step_times import keep_step_time
from precgui.words import _, error_text, translated

if TYPE_CHECKING:
    from precgui.gui.workers.child_process import RunThread
    from precgui.places.messages import JobLine
    from precgui.places.placed_job import PlacedRun
    from precgui.places.settings import NamedPlace

DRAIN_MS = 33


class TrainingQueue(QObject):
    """One run is trained at a time, and none while a study runs or something is measured."""

    changed = Signal()  # the queue, or whether a run is trained
    ended = Signal(str)  # the key of a run that was trained here
    idle = Signal()  # nothing is trained any more
    left = Signal()  # a child process has ended

    def __init__(
        self, runs: OpenRuns, requests: Requests, is_study_running: Callable[[], bool],
        report: Callable[[Problem], object], folder: Callable[[], Path], parent: QObject,
    ) -> None:  # fmt: skip
        super().__init__(parent)
        self._runs, self._requests, self._is_study_running = runs, requests, is_study_running
        self._report, self._folder = report, folder
        self.waiting: list[RunConfig] = []
        self._trials: list[tuple[RunConfig, str | RunConfig]] = []  # each beside a run by its key, or by its config
        self._where: list[tuple[RunConfig, NamedPlace]] = []  # configs of runs that do not train on this machine
        self.detached: dict[str, PlacedRun] = {}  # runs that go on at their place and are not followed, by their keys
        self._warm: RunThread | None = None
        self._thread: RunThread | None = None
        self._leaving: set[RunThread] = set()
        self._files = Answer(self, answered=self._take_file)
        self._timer = QTimer(self, interval=DRAIN_MS)
        self._timer.timeout.connect(self._drain)
        self._closed = self._measuring = self._goes_on = False

    @property
    def is_training(self) -> bool:
        return self._thread is not None

    @property
    def is_stopping(self) -> bool:
        return self._thread is not None and self._thread.stopping

    @property
    def has_processes(self) -> bool:
        """Whether a child process has not ended yet."""
        return bool(self._leaving)

    def progress(self) -> RunProgress | None:
        """The progress of the active run; None when nothing runs."""
        if self._runs.active_key is None:
            return None
        return progress_of(self._runs[self._runs.active_key].run, stopping=self.is_stopping)

    # What a user does

    def warm_up(self) -> None:
        """Start a child process that imports torch now, so that the next run begins at once."""
        if self._warm is None and not self._closed:
            self._warm = self._new_thread()

    @property
    def place(self) -> str:
        """The name of the place of the active run; empty on this machine."""
        return self._thread.place.name if self._thread is not None and self._thread.place is not None else ""

    @property
    def link_state(self) -> str:
        """The link to that place in one sentence; empty while it is well."""
        return self._thread.link_state if self._thread is not None else ""

    @property
    def attachable(self) -> str | None:
        """The key of the run that was let go last and goes on at its place."""
        return next((key for key in reversed(self.detached) if key in self._runs), None)

    def start(self, config: RunConfig, place: NamedPlace | None = None) -> None:
        """Start a run on this machine or at a place, or queue it behind those that wait."""
        self.waiting.append(config)
        if place is not None:
            self._where.append((config, place))
        if self._measuring:
            self._report(Problem(_("The run starts when the measurement in Hardware has ended."), severity="info"))
        elif self._is_study_running():
            self._report(Problem(_("The run starts when the study in Live has ended."), severity="info"))
        if self._thread is not None or self._measuring or self._is_study_running():
            self.changed.emit()
        self._next(is_asked_now=True)

    def try_fix(self, config: RunConfig, key: str) -> None:
        """Start a run with a change; Compare opens with it and the run `key` when it has ended."""
        self._trials.append((config, key))
        self.start(config)

    def start_pair(self, first: RunConfig, second: RunConfig) -> None:
        """Start a run and queue another behind it; Compare opens with both when the second has ended."""
        self._trials.append((second, first))
        self.start(first)
        self.waiting.append(second)
        self.changed.emit()

    def go_on(self, broken: BrokenOff) -> None:
        """Train a broken run from its checkpoint to its end, in its file, and show it in Live."""
        if not self._is_free():
            return
        if (key := self._runs.key_of(broken.path)) is not None:
            self._runs.close(key)
        run = LiveRun(
            broken.config, run_id=broken.run_id, created=broken.created, machine=broken.machine,
            environment=broken.environment, path=broken.path,
        )  # fmt: skip
        self._begin(run, broken.path, is_shown=True, by_hand=True, goes_on=True)
        self._requests.go("live")

    def detach(self) -> None:
        """Let go of the active run, which goes on at its place."""
        if self._thread is not None:
            self._thread.detach()

    def attach(self, key: str) -> None:
        """Follow a run again that goes on at its place."""
        if self._is_free():
            placed, run = self.detached.pop(key), self._runs[key].run
            assert isinstance(run, LiveRun)
            self._follow(key, self._thread_at(placed.place, placed), is_shown=True, by_hand=True)

    def attach_job(self, place: NamedPlace, line: JobLine) -> None:
        """Follow a run that an earlier window or a command has started at a place, from its beginning."""
        from precgui.places.placed_job import PlacedRun

        known = next((key for key, opened in self._runs.items() if opened.run.run_id == line.job), None)
        if known in self.detached:
            self.attach(known)
        elif known is not None:
            self._runs.choose(known, by_hand=True)
        elif self._is_free() and (config := self._config_there(place, line)) is not None:
            path = new_run_path(self._folder(), config)
            run = _run_there(place, config, line, path)
            placed = PlacedRun(place, line.job, path, part=line.part)
            self._follow(self._runs.add(run), self._thread_at(place, placed), is_shown=True, by_hand=True)

    def _config_there(self, place: NamedPlace, line: JobLine) -> RunConfig | None:
        """The config of a run at a place; None, with a notice, where it is none."""
        try:
            return build_accepted(line.config)[0]
        except ConfigError as error:
            text = _("The run at {place} cannot be shown: {why}").format(place=place.name, why=error_text(error))
            self._report(Problem(text))
            return None

    def go_on_there(self, place: NamedPlace, line: JobLine, path: Path) -> None:
        """Let a run go on at its place from its last checkpoint, and bring its whole file to `path`; follow one that
        goes on already."""
        from precgui.places.placed_job import PlacedRun

        if not self._is_free() or (config := self._config_there(place, line)) is None:
            return
        if (key := self._runs.key_of(path)) is not None:
            self._runs.close(key)
        run = _run_there(place, config, line, path)
        placed = PlacedRun(place, line.job, path, part=line.part + (not line.is_running))
        self._follow(self._runs.add(run), self._thread_at(place, placed), is_shown=True, by_hand=True, goes_on=True)
        self._requests.go("live")

    def _is_free(self) -> bool:
        if self.is_training or self._is_study_running() or self._measuring:
            self._report(Problem(_("Something else is being trained or measured; attach when it has ended.")))
            return False
        return True

    def stop(self, key: str | None = None) -> None:
        """Stop the active run (or `key`, if that is the one)."""
        if self._thread is not None and key in (None, self._runs.active_key):
            self._thread.stop()

    def stop_all(self) -> None:
        """Stop the active run and clear the queue."""
        self.waiting.clear()
        self.stop()
        self.changed.emit()

    def remove(self, index: int) -> None:
        """Take a waiting run out of the queue."""
        del self.waiting[index]
        self.changed.emit()

    def move(self, index: int, to: int) -> None:
        """Give a waiting run another place in the queue; a place that is not there leaves it where it is."""
        if 0 <= index < len(self.waiting) and 0 <= to < len(self.waiting):
            self.waiting.insert(to, self.waiting.pop(index))
            self.changed.emit()

    def set_measuring(self, measuring: bool) -> None:
        """Let no run begin while a measurement goes on: each would spoil the figures of the other."""
        self._measuring = measuring
        if not measuring:
            self._next()

    # The end of the window

    def close(self) -> None:
        """Stop for good; runs that wait are dropped."""
        self._closed = True
        self.waiting.clear()
        if self.place:
            self.detach()
        else:
            self.stop()
        if self._warm is not None:
            self._warm.dismiss()
            self._warm = None

    def give_up(self) -> None:
        """Wait for no process any more."""
        self._leaving.clear()

    # From one run to the next

    def follow_study(self) -> None:
        """A study has begun or ended; what waits may begin."""
        self.changed.emit()
        self._next()

    def _next(self, ended: str | None = None, *, is_asked_now: bool = False) -> None:
        """Begin the run that waits longest, if nothing is in its way. It becomes the current run when it was asked for
        just now, or when the run `ended` that it follows is the current one."""
        if self._thread is not None or not self.waiting or self._measuring or self._is_study_running():
            return
        config = self.waiting.pop(0)
        path = new_run_path(self._folder(), config)
        created = datetime.now(UTC).astimezone().isoformat(timespec="seconds")
        place = self._place_of(config)
        environment = {"place": place.name} if place is not None else {}
        run = LiveRun(config, run_id=uuid.uuid4().hex, created=created, machine={}, environment=environment, path=path)
        self._begin(run, path, is_shown=is_asked_now or ended == self._runs.current, by_hand=is_asked_now)

    def _begin(self, run: LiveRun, path: Path, *, is_shown: bool, by_hand: bool, goes_on: bool = False) -> None:
        place = self._place_of(run.config)
        if place is not None:
            thread = self._launched(self._thread_at(place))
        else:
            thread, self._warm = self._warm or self._new_thread(), None
        thread.begin_run(run.config, path, run.run_id, goes_on=goes_on)
        self._follow(self._runs.add(run), thread, is_shown=is_shown, by_hand=by_hand, goes_on=goes_on)

    def _follow(self, key: str, thread: RunThread, *, is_shown: bool, by_hand: bool, goes_on: bool = False) -> None:
        self._thread, self._goes_on, self._runs.active_key = thread, goes_on, key
        if thread not in self._leaving:
            self._launched(thread)
        if is_shown:
            self._runs.choose(key, by_hand=by_hand)
        self.changed.emit()
        self._timer.start()

    def _place_of(self, config: RunConfig) -> NamedPlace | None:
        return next((where for asked, where in self._where if asked is config), None)

    def _thread_at(self, place: NamedPlace, attached: PlacedRun | None = None) -> RunThread:
        from precgui.gui.workers.placed_run import PlacedRunThread  # not before there is a place

        return PlacedRunThread(place, attached, self)

    def _new_thread(self) -> RunThread:
        from precgui.gui.workers.child_process import RunThread  # not before a run or the end of the start

        return self._launched(RunThread(self))

    def _launched(self, thread: RunThread) -> RunThread:
        thread.finished.connect(lambda: self._on_thread_finished(thread))
        self._leaving.add(thread)
        thread.launch()
        return thread

    def _drain(self) -> None:
        """Take the events that the child process has sent since the last tick."""
        key = self._runs.active_key
        if self._thread is None or key is None or not self._thread.inbox:
            return
        run = self._runs[key].run
        assert isinstance(run, LiveRun)
        before = run.status
        while self._thread.inbox:
            run.extend(batch := self._thread.inbox.popleft())
            self._runs.report_stopped_record(key, batch)
        self._runs.data_arrived.emit(key)
        if run.status != before:
            self._runs.changed.emit(key)

    def _on_thread_finished(self, thread: RunThread) -> None:
        self._leaving.discard(thread)
        if thread is self._thread:
            self._run_finished()
        elif thread is self._warm:  # it died while it waited, e.g. torch cannot be imported
            self._warm = None
        thread.deleteLater()
        self.left.emit()

    def _run_finished(self) -> None:
        self._drain()
        self._timer.stop()
        key, thread, self._thread, self._runs.active_key = self._runs.active_key, self._thread, None, None
        assert key is not None
        run = self._runs[key].run
        assert isinstance(run, LiveRun)
        assert thread is not None
        if run.path is not None and (placed := thread.goes_on(run.path)) is not None:
            self.detached[key] = placed
            self._report(Problem(f"{self._runs[key].name}: {translated(thread.let_go)}.", severity="info"))
            self._after(key)
            return
        self._tell_end(key, run, thread)
        if self._goes_on and not run.steps and run.path is not None:  # refused: its file is as it was
            self._runs.close(key)
            key = self._runs.open_file(run.path) or key
        else:
            self._hand_over(run)
            self._runs.changed.emit(key)
        self.ended.emit(key)
        if key in self._runs:
            self.compare_trial(key)
        self._after(key)

    def _tell_end(self, key: str, run: LiveRun, thread: RunThread) -> None:
        if run.status == "failed":
            text = _("{run} failed: {why}").format(run=self._runs[key].name, why=translated(run.message))
            self._report(Problem(text, run.details))
        elif thread.place is not None and run.path is not None and not run.path.exists():
            self._report(Problem(f"{self._runs[key].name}: {translated(run.message)}", severity="warning"))
        with contextlib.suppress(OSError):  # an estimate for later runs, no more
            keep_step_time(run, thread.place.name if thread.place is not None else "")

    def _after(self, key: str) -> None:
        """Go on with the queue after the run `key`."""
        if not self._closed:
            self._next(key)
        if self._thread is None:
            self.idle.emit()
        self.changed.emit()

    def compare_trial(self, key: str) -> None:
        """Show a run that was started beside another one together with it."""
        run = self._runs[key].run
        tried = next((pair for pair in self._trials if pair[0] is run.config), None)
        if tried is not None:
            self._trials.remove(tried)
            keys = (each for each, opened in self._runs.items() if tried[1] in (each, opened.run.config))
            baseline = next(keys, None)
            if baseline is not None and isinstance(run, LiveRun) and run.steps and not self._closed:
                self._requests.compare(baseline, key)

    def _hand_over(self, run: LiveRun) -> None:
        """Let a run that has ended go to its file, which holds all that is in memory."""
        if (path := run.path) is None or not run.steps or self._closed:
            return
        self._files.ask(thread(lambda: (run, _opened(path))))

    def _take_file(self, answer: tuple[LiveRun, SavedRun | None]) -> None:
        run, saved = answer
        if saved is not None and not run.hand_over(saved):
            saved.close()


def _opened(path: Path) -> SavedRun | None:
    """The file of a run that has ended, None where it cannot be read; the run then stays in memory."""
    try:
        return open_run(path)
    except RunFileError:
        return None


def _run_there(place: NamedPlace, config: RunConfig, line: JobLine, path: Path) -> LiveRun:
    """A run at a place, before anything of it has come."""
    about: dict[str, str] = {"place": place.name}
    return LiveRun(config, run_id=line.job, created=line.started, machine={}, environment=about, path=path)
