"""Fixtures for everything that is tested in a window: no screen, fresh folders, nothing left running."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import inspect
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QThread
from PySide6.QtWidgets import QApplication
from pytestqt.exceptions import TimeoutError as WaitTimeoutError
from pytestqt.qtbot import QtBot

from precgui.config import build
from precgui.events import Evaluated, RunEnded, RunStarted, StepDone
from precgui.gui.notices import Notices
from precgui.gui.plots.linked import LinkedPlots
from precgui.gui.session import Session
from precgui.gui.settings import Settings
from precgui.gui.shell.window import Window
from precgui.gui.theme import themes
from precgui.gui.workers import child_work
from precgui.runs.file.writer import RunWriter
from tests.fakes import FakeChild
from tests.gui.plotted import Opened, Show
from tests.written_once import written_once

PATIENCE_MS = 300_000  # waiting only costs when a test fails, and the machine may be busy
ROUND_MS = 1_000


@pytest.fixture(autouse=True)
def garbage_is_collected_here() -> Iterator[None]:
    """As in the application: a collection in another thread would destroy widgets of earlier tests there."""
    gc.disable()
    yield
    counts = zip(gc.get_count(), gc.get_threshold(), strict=True)
    full = [generation for generation, (count, limit) in enumerate(counts) if count > limit > 0]
    if full:
        gc.collect(full[-1])
    gc.enable()


@pytest.fixture(autouse=True)
def fresh_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings, logs and runs of a test live in its own folder."""
    monkeypatch.setenv("PRECGUI_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PRECGUI_RUNS", str(tmp_path / "runs"))


@pytest.fixture
def qtbot(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> QtBot:
    """The one of pytest-qt, with patience."""
    for name in ("waitSignal", "waitExposed", "waitActive"):
        monkeypatch.setattr(qtbot, name, partial(getattr(qtbot, name), timeout=PATIENCE_MS))
    monkeypatch.setattr(qtbot, "waitUntil", partial(wait_in_rounds, qtbot.waitUntil))
    return qtbot


def wait_in_rounds(
    wait_until: Callable[..., None],
    condition: Callable[[], bool | None],
    *,
    timeout: int = PATIENCE_MS,
    round_ms: int = ROUND_MS,
) -> None:
    """Wait by the calendar clock in short rounds: a clock that is set, or a machine that is paused, ends but one.

    Raises WaitTimeoutError, whose one line says the condition, the windows in view and where each thread stands.
    """
    for _ in range(timeout // round_ms):
        with contextlib.suppress(WaitTimeoutError):
            return wait_until(condition, timeout=round_ms)
    windows = [type(each).__name__ for each in QApplication.topLevelWidgets() if each.isVisible()]
    raise WaitTimeoutError(f"waited {timeout} ms for {source_of(condition)}; in view {windows}; {thread_places()}")


def source_of(condition: Callable[[], object]) -> str:
    """The lines of a function as one line."""
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)


def thread_places() -> str:
    """The two innermost lines of each thread."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        threads = file.read().split("\n\n")
    return "threads at " + "; ".join(" < ".join(each.split("\n")[1:3]) for each in threads)


@pytest.fixture(autouse=True)
def light_theme(qapp: QApplication) -> None:
    """A test that pins a theme must not change the next one."""
    if qapp.style().name() != "fusion":  # a style that is set again costs time for every widget that is left
        qapp.setStyle("Fusion")
    themes().set_mode("system")


@pytest.fixture(autouse=True)
def plots_without_a_size_are_not_asked_for_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels of a plot without a size are no numbers; pyqtgraph's stand-in for them warns with NumPy 2.5."""

    def refuse(_: object) -> None:
        raise AssertionError("a plot without a size was asked where its points are")

    monkeypatch.setattr("pyqtgraph.functions._pinv_fallback", refuse, raising=False)


@pytest.fixture(autouse=True)
def nothing_left_running(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that leaves a thread behind, naming where it was started."""
    started: list[QThread] = []
    start = QThread.start

    def remember(thread: QThread, *priority: QThread.Priority) -> None:
        started.append(thread)
        start(thread, *priority)

    monkeypatch.setattr(QThread, "start", remember)
    before = set(threading.enumerate())
    yield
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    left: list[object] = [thread for thread in started if _alive(thread) and not thread.wait(PATIENCE_MS)]
    for other in set(threading.enumerate()) - before:
        if type(other).__name__ != "_DummyThread":  # a QThread that has run Python code
            other.join(PATIENCE_MS / 1000)
            left += [other] if other.is_alive() else []
    assert not left, f"threads left running: {left}"


def _alive(thread: QThread) -> bool:
    try:
        return thread.isRunning()
    except RuntimeError:  # its C++ object is gone, so it has ended
        return False


def write_run(path: Path, title: str = "", precision: str = "fp32", created: str = "2026-03-01T12:00:00+00:00") -> Path:
    """A short run that completed, written as a real one is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    config, run_id = build({"title": title, "precision": precision}), path.stem

    def write(path: Path) -> None:
        with RunWriter(path, config, run_id=run_id, created=created, machine={}, environment={}) as writer:
            writer(RunStarted(0.0, total_steps=4, steps_per_epoch=2, device="cpu"))
            for step in range(1, 5):
                writer(StepDone(step, 0.1 * step, 1 / step, 1.0, False, 0.05, 1.0, 0.09, 0.01, 64, float("nan")))
            writer(Evaluated(4, 2, 0.5, 0.3, 0.75))
            writer(RunEnded(0.5, "completed"))

    return written_once(path, ("short", title, precision, run_id, created), write)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    return write_run(tmp_path / "elsewhere" / "kept.h5", "a run that was kept")


@pytest.fixture
def show(qtbot: QtBot) -> Show:
    """Shows runs in linked plots of 900 x 800 pixels, all drawn."""

    def make(*runs: Opened) -> LinkedPlots:
        plots = LinkedPlots()
        qtbot.addWidget(plots)
        plots.resize(900, 800)
        plots.show()
        qtbot.waitExposed(plots)
        plots.set_runs(runs)
        plots.draw_pending()
        return plots

    return make


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[FakeChild]:
    """No child process is started for a task; those that would have been, in their order."""
    monkeypatch.setattr(child_work, "ChildWork", FakeChild)
    FakeChild.begun.clear()
    return FakeChild.begun


@pytest.fixture
def notices() -> Notices:
    return Notices()


@pytest.fixture
def window(qtbot: QtBot, notices: Notices) -> Iterator[Window]:
    """The window before its second stage: shown, without a state. Closed and deleted at the end."""
    made = Window(Settings(), notices)
    made.show()
    qtbot.waitExposed(made)
    yield made
    close_window(qtbot, made)


@pytest.fixture
def working(qtbot: QtBot, notices: Notices) -> Iterator[Window]:
    """The window after its second stage, with a state of its own."""
    made = Window(Settings(), notices)
    made.show()
    qtbot.waitExposed(made)
    made.attach(Session(made))
    yield made
    close_window(qtbot, made)


def close_window(qtbot: QtBot, window: Window) -> None:
    """Close as the user does, wait until all has stopped, delete."""
    window.close()
    if window.session is not None and window.closing.question is not None:
        window.closing.stop(window.session)
    qtbot.waitUntil(lambda: not window.isVisible())
    # The window gives up after five seconds, and a thread must not be deleted while it runs.
    session = window.session
    qtbot.waitUntil(lambda: session is None or not any(t.isRunning() for t in session.findChildren(QThread)))
    window.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
