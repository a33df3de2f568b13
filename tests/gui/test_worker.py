"""Training in a child process: points arrive, stop is quick, a dead process leaves a run that is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from pytestqt.qtbot import QtBot

from precgui import config
from precgui.gui.state import Problem, State
from precgui.runs.live import LiveRun
from precgui.runs.reader import open_run

QUICK = ["device=cpu", "threads=1", "train.max_steps=40"]
# About two seconds a step on one thread: longer than Stop may take.
LONG_STEPS = ["device=cpu", "threads=1", "model.size=large", "data.batch_size=1400", "train.epochs=1000"]
READY_MS = 60_000


@pytest.fixture
def state(qtbot: QtBot, tmp_path: Path) -> Iterator[State]:
    state = State()
    state.set_folder(tmp_path)
    yield state
    ends: list[bool] = []
    state.shutdown(lambda: ends.append(True))
    qtbot.waitUntil(lambda: bool(ends), timeout=10_000)
    state.deleteLater()


def live(state: State, number: int = 0) -> LiveRun:
    run = list(state.runs.values())[number].run
    assert isinstance(run, LiveRun)
    return run


def count(run: LiveRun) -> int:
    return len(run.series("loss")[0])


def path_of(run: LiveRun) -> Path:
    assert run.path is not None
    return run.path


def wait(qtbot: QtBot, condition: Callable[[], bool]) -> None:
    qtbot.waitUntil(condition, timeout=READY_MS)


def test_that_a_run_arrives_whole_and_equal_to_its_file(qtbot: QtBot, state: State) -> None:
    with qtbot.waitSignal(state.idle, timeout=READY_MS):
        state.start(config.load("digits-quick", QUICK))
    run = live(state)
    assert run.status == "completed"
    with open_run(path_of(run)) as saved:
        for name in ("loss", "scale", "grad_norm", "lr", "val_loss"):
            for seen, kept in zip(run.series(name), saved.series(name), strict=True):
                np.testing.assert_array_equal(seen, kept)
        assert saved.run_id == run.run_id
    assert count(run) == 40


def test_that_a_second_run_waits_for_the_first(qtbot: QtBot, state: State) -> None:
    state.start(config.load("digits-quick", [*QUICK, "title=first"]))
    with qtbot.waitSignal(state.idle, timeout=READY_MS):
        state.start(config.load("digits-quick", [*QUICK, "title=second", "precision=bf16-amp"]))
        assert [waiting.title for waiting in state.queue] == ["second"]
    assert [opened.run.status for opened in state.runs.values()] == ["completed", "completed"]
    assert len({(opened.colour_index, opened.dash_index) for opened in state.runs.values()}) == 2
    assert live(state, 0).series("loss")[1][0] == pytest.approx(live(state, 1).series("loss")[1][0], abs=0.01)


def test_that_stop_ends_a_run_between_steps(qtbot: QtBot, state: State) -> None:
    state.start(config.load("digits-quick", [*QUICK[:2], "train.epochs=100000"]))
    run = live(state)
    wait(qtbot, lambda: count(run) > 5)
    with qtbot.waitSignal(state.idle, timeout=5000):
        state.stop()
    assert run.status == "stopped"
    with open_run(path_of(run)) as saved:
        assert saved.status == "stopped"
        np.testing.assert_array_equal(saved.series("loss")[1], run.series("loss")[1])


def test_that_stop_reacts_inside_a_long_step(qtbot: QtBot, state: State) -> None:
    state.start(config.load("digits-quick", LONG_STEPS))
    run = live(state)
    wait(qtbot, lambda: count(run) >= 1)
    begin = time.monotonic()
    with qtbot.waitSignal(state.idle, timeout=20_000):
        state.stop()
    assert run.status == "stopped"
    assert time.monotonic() - begin < 10, "far below the hour that the run would take; the benchmark has the second"
    with open_run(path_of(run)) as saved:
        assert saved.status == "stopped"
        assert len(saved.series("loss")[0]) == count(run)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_that_a_killed_engine_fails_the_run_and_keeps_it(qtbot: QtBot, state: State) -> None:
    problems: list[Problem] = []
    state.notice.connect(problems.append)
    state.start(config.load("digits-quick", [*QUICK[:2], "train.epochs=100000"]))
    run = live(state)
    wait(qtbot, lambda: count(run) > 200)
    seen = count(run)
    with qtbot.waitSignal(state.idle, timeout=20_000):
        os.kill(_engine_pid(run), signal.SIGKILL)
    assert run.status == "failed"
    assert "SIGKILL" in problems[0].message
    with open_run(path_of(run)) as saved:
        assert saved.status == "failed"
        assert len(saved.series("loss")[0]) > 0
        assert seen - len(saved.series("loss")[0]) < 1000, "at most the last second is lost"


def test_that_a_crash_shows_its_last_words(qtbot: QtBot, state: State) -> None:
    problems: list[Problem] = []
    state.notice.connect(problems.append)
    state.start(config.load("digits-quick", [*QUICK[:2], "train.epochs=100000"]))
    run = live(state)
    wait(qtbot, lambda: count(run) > 5)
    with qtbot.waitSignal(state.idle, timeout=20_000):
        os.kill(_engine_pid(run), signal.SIGSEGV)
    assert run.status == "failed"
    assert "SIGSEGV" in problems[0].message
    assert "Fatal Python error: Segmentation fault" in problems[0].details


OWNER = """
import os, signal
from PySide6.QtCore import QCoreApplication
from precgui.gui.worker import RunThread

if __name__ == "__main__":
    app = QCoreApplication([])
    thread = RunThread()
    thread.start()
    while not thread.ready:
        thread.wait(20)
    os.kill(thread._process.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="a file that is open has a name on Windows")
def test_that_nothing_is_left_when_window_and_child_are_killed(tmp_path: Path) -> None:
    (tmp_path / "owner.py").write_text(OWNER)
    (tmp_path / "tmp").mkdir()
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": root}
    done = subprocess.run([sys.executable, tmp_path / "owner.py"], env=environment, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert [each.name for each in (tmp_path / "tmp").iterdir() if each.name.startswith("precgui-")] == []


def test_that_a_folder_that_cannot_be_written_is_one_sentence(qtbot: QtBot, state: State) -> None:
    problems: list[Problem] = []
    state.notice.connect(problems.append)
    state.set_folder(Path("/proc/nowhere"))
    with qtbot.waitSignal(state.idle, timeout=READY_MS):
        state.start(config.load("digits-quick", QUICK))
    assert live(state).status == "failed"
    assert "/proc/nowhere" in problems[0].message
    assert "Traceback" not in problems[0].details


def test_that_a_device_that_is_not_there_fails_the_run_and_the_next_one_runs(qtbot: QtBot, state: State) -> None:
    state.start(config.load("digits-quick", [*QUICK, "device=cuda:5"]))
    with qtbot.waitSignal(state.idle, timeout=READY_MS):
        state.start(config.load("digits-quick", QUICK))
    assert [opened.run.status for opened in state.runs.values()] == ["failed", "completed"]
    assert "cuda:5 is not there" in live(state).message


def test_that_a_warm_engine_starts_faster_than_importing_torch(qtbot: QtBot, state: State) -> None:
    state.warm_up()
    wait(qtbot, lambda: state._warm is not None and state._warm.ready)
    warm = state._warm
    with qtbot.waitSignal(state.idle, timeout=READY_MS):
        state.start(config.load("digits-quick", QUICK))
        assert state._thread is warm


def test_that_shutdown_during_a_run_stops_it(qtbot: QtBot, state: State) -> None:
    state.start(config.load("digits-quick", [*QUICK[:2], "train.epochs=100000"]))
    run = live(state)
    wait(qtbot, lambda: count(run) > 5)
    ends: list[bool] = []
    state.shutdown(lambda: ends.append(True))
    qtbot.waitUntil(lambda: bool(ends), timeout=10_000)
    assert run.status == "stopped"
    with open_run(path_of(run)) as saved:
        assert saved.status == "stopped"


def _engine_pid(run: LiveRun) -> int:
    """The process that writes the run, as its file says."""
    with open_run(path_of(run)) as saved:
        return int(saved.environment["writer"]["pid"])


WINDOW_THAT_DIES = """
import os, sys
from PySide6.QtCore import QCoreApplication
from precgui import config
from precgui.gui.state import State
app = QCoreApplication([])
state = State()
state.set_folder(__import__("pathlib").Path(sys.argv[1]))
state.start(config.load("digits-quick", ["device=cpu", "threads=1", "train.epochs=40"]))
state.warm_up()
warm, (opened,) = state._warm, state.runs.values()

def look(*_):
    if len(opened.run.series("loss")[0]) > 5 and warm.ready:
        print(warm._process.pid, opened.run.path, flush=True)
        os._exit(1)

state.data_arrived.connect(look)
app.exec()
"""


def test_that_a_run_survives_the_window_and_a_waiting_engine_does_not(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WINDOW_THAT_DIES, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    pid, path = done.stdout.split(maxsplit=1)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with open_run(path.strip()) as saved:
            status, steps = saved.status, len(saved.series("loss")[0])
        if status != "running":
            break
        time.sleep(0.2)
    assert (status, steps) == ("completed", 920)
    assert not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
