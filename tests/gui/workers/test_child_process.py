"""Training in a child process: points arrive, stop is quick, a dead process leaves a run that is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from pytestqt.qtbot import QtBot

from precgui import config
from precgui.gui.open_run import Problem
from precgui.gui.session import Session
from precgui.gui.workers import child_process
from precgui.gui.workers.child_process import RunThread
from precgui.runs.file.reader import open_run
from precgui.runs.live import LiveRun
from tests import needs

ON_CPU = ["device=cpu", "threads=1"]
QUICK = [*ON_CPU, "train.max_steps=40", "record.tensors=false"]
COMPARED = ("loss", "scale", "grad_norm", "lr", "val_loss")
ENDLESS = [*ON_CPU, "train.epochs=100000", "record.tensors=false"]
# A task of twelve steps, the fourth of which lasts until there is a file with the name of the task and ".go".
GATED = """
import time
from pathlib import Path
import torch
from torch import nn

class Gated:
    calls = 0
    def model(self):
        return nn.Linear(1, 1)
    def train_batches(self):
        return [(torch.ones(4, 1), torch.ones(4, 1))] * 12
    def validation_batches(self):
        return self.train_batches()
    def loss(self, outputs, targets):
        self.calls += 1
        while self.calls == 4 and not Path(__file__ + ".go").exists():
            time.sleep(0.02)
        return nn.functional.mse_loss(outputs, targets)

def make_task(config):
    return Gated()
"""


@pytest.fixture
def session(qtbot: QtBot, tmp_path: Path) -> Iterator[Session]:
    session = Session()
    session.set_folder(tmp_path)
    yield session
    ends: list[bool] = []
    session.shutdown(lambda: ends.append(True))
    qtbot.waitUntil(lambda: bool(ends))
    session.deleteLater()


def live(session: Session, number: int = 0) -> LiveRun:
    run = list(session.runs.values())[number].run
    assert isinstance(run, LiveRun)
    return run


@pytest.fixture
def gated(tmp_path: Path) -> Path:
    file = tmp_path / "gated.py"
    file.write_text(GATED)
    return file


def count(run: LiveRun) -> int:
    return len(run.series("loss")[0])


def path_of(run: LiveRun) -> Path:
    assert run.path is not None
    return run.path


def saved_steps(run: LiveRun) -> int:
    """How many steps the file holds so far."""
    if not path_of(run).exists():
        return 0
    with open_run(path_of(run)) as saved:
        return len(saved.series("loss")[0])


def test_that_a_run_arrives_whole_and_equal_to_its_file(qtbot: QtBot, session: Session) -> None:
    received: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # over the pipe, before the run is read from its file
    session.training.idle.connect(lambda: received.update({name: live(session).series(name) for name in COMPARED}))
    session.training.warm_up()
    (warm,) = session.findChildren(RunThread)
    qtbot.waitUntil(lambda: warm.ready)
    with qtbot.waitSignal(session.training.idle):
        session.training.start(config.load("digits-quick", [*QUICK, "record.tensors=true"]))
        assert session.findChildren(RunThread) == [warm], "torch is imported already"
    run = live(session)
    assert run.status == "completed"
    with open_run(path_of(run)) as saved:
        for name in COMPARED:
            for seen, kept in zip(received[name], saved.series(name), strict=True):
                np.testing.assert_array_equal(seen, kept)
        assert saved.run_id == run.run_id
    assert count(run) == 40


def test_that_a_run_that_has_ended_is_read_from_its_file_and_gone_from_memory(qtbot: QtBot, session: Session) -> None:
    with qtbot.waitSignal(session.training.idle):
        session.training.start(config.load("digits-quick", [*QUICK, "record.tensors=true"]))
    run = live(session)
    qtbot.waitUntil(lambda: run.steps_in_memory == 0)
    assert (run.status, run.steps, count(run)) == ("completed", 40, 40)
    assert run.tensors()


def test_that_runs_wait_for_those_before_them_whether_these_fail_or_not(qtbot: QtBot, session: Session) -> None:
    session.training.start(config.load("digits-quick", [*QUICK, "title=first"]))
    with qtbot.waitSignal(session.training.idle):
        session.training.start(config.load("digits-quick", [*QUICK, "title=second", "device=cuda:5"]))
        session.training.start(config.load("digits-quick", [*QUICK, "title=third", "precision=fp64"]))
        assert [waiting.title for waiting in session.training.waiting] == ["second", "third"]
    assert [opened.run.status for opened in session.runs.values()] == ["completed", "failed", "completed"]
    assert "cuda:5 is not there" in live(session, 1).message
    assert len({(opened.colour_index, opened.dash_index) for opened in session.runs.values()}) == 3
    assert live(session, 0).series("loss")[1][0] == pytest.approx(live(session, 2).series("loss")[1][0], abs=0.01)


def test_that_stop_reacts_inside_a_long_step(
    qtbot: QtBot, session: Session, gated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "KILL_AFTER_S", 60.0)  # the process ends by itself, and its record with it
    session.training.start(config.load("digits-quick", [*ON_CPU, f"task={gated}:make_task"]))
    run = live(session)
    qtbot.waitUntil(lambda: count(run) >= 3)
    with qtbot.waitSignal(session.training.idle):
        session.training.stop()
    assert run.status == "stopped"
    assert "inside step 4" in run.message
    with open_run(path_of(run)) as saved:
        assert (saved.status, saved.message) == ("stopped", run.message)
        assert len(saved.series("loss")[0]) == count(run) == 3


class SlowTimer(threading.Timer):
    """A timer on a busy machine: all other threads go on before it has started."""

    def start(self) -> None:
        time.sleep(1)
        super().start()


def test_that_a_process_may_end_while_it_is_asked_to_stop(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Timer", SlowTimer)
    thread = RunThread()
    thread.launch()
    qtbot.waitUntil(lambda: thread.ready)
    assert thread.pid is not None
    with qtbot.waitSignal(thread.finished):
        psutil.Process(thread.pid).kill()
        thread.stop()


@needs.signals
def test_that_a_killed_engine_fails_the_run_and_keeps_it(qtbot: QtBot, session: Session) -> None:
    problems: list[Problem] = []
    session.notice.connect(problems.append)
    session.training.start(config.load("digits-quick", ENDLESS))
    run = live(session)
    qtbot.waitUntil(lambda: saved_steps(run) > 0)
    flushed = saved_steps(run)
    with qtbot.waitSignal(session.training.idle):
        os.kill(_engine_pid(run), signal.SIGKILL)
    assert run.status == "failed"
    assert "SIGKILL" in problems[0].message
    with open_run(path_of(run)) as saved:
        assert saved.status == "failed"
        assert len(saved.series("loss")[0]) >= flushed


def test_that_a_crash_shows_its_last_words(qtbot: QtBot, session: Session) -> None:
    problems: list[Problem] = []
    session.notice.connect(problems.append)
    session.training.start(config.load("digits-quick", ENDLESS))
    run = live(session)
    qtbot.waitUntil(lambda: count(run) > 5)
    with qtbot.waitSignal(session.training.idle):
        os.kill(_engine_pid(run), signal.SIGSEGV)
    assert run.status == "failed"
    assert "SIGSEGV" in problems[0].message
    assert "Fatal Python error: Segmentation fault" in problems[0].details


OWNER = """
import os, signal
from PySide6.QtCore import QCoreApplication
from precgui.gui.workers.child_process import RunThread

if __name__ == "__main__":
    app = QCoreApplication([])
    thread = RunThread()
    thread.start()
    while not thread.ready:
        thread.wait(20)
    os.kill(thread.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="a file that is open has a name on Windows")
def test_that_nothing_is_left_when_window_and_child_are_killed(tmp_path: Path) -> None:
    (tmp_path / "owner.py").write_text(OWNER)
    (tmp_path / "tmp").mkdir()
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": root}
    done = subprocess.run([sys.executable, tmp_path / "owner.py"], env=environment, check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert [each.name for each in (tmp_path / "tmp").iterdir() if each.name.startswith("precgui-")] == []


def test_that_a_folder_that_cannot_be_written_is_one_sentence(qtbot: QtBot, session: Session) -> None:
    problems: list[Problem] = []
    session.notice.connect(problems.append)
    session.set_folder(Path("/proc/nowhere"))
    with qtbot.waitSignal(session.training.idle):
        session.training.start(config.load("digits-quick", QUICK))
    assert live(session).status == "failed"
    assert "/proc/nowhere" in problems[0].message
    assert "Traceback" not in problems[0].details


def test_that_shutdown_during_a_run_stops_it(qtbot: QtBot, session: Session) -> None:
    session.training.start(config.load("digits-quick", ENDLESS))
    run = live(session)
    qtbot.waitUntil(lambda: count(run) > 5)
    ends: list[bool] = []
    session.shutdown(lambda: ends.append(True))
    qtbot.waitUntil(lambda: bool(ends))
    assert run.status == "stopped"
    with open_run(path_of(run)) as saved:
        assert saved.status == "stopped"


def _engine_pid(run: LiveRun) -> int:
    """The process that writes the run, as its file says."""
    with open_run(path_of(run)) as saved:
        return int(saved.environment["writer"]["pid"])


WINDOW_THAT_DIES = """
import os, sys
from pathlib import Path
from PySide6.QtCore import QCoreApplication, QTimer
from precgui import config
from precgui.gui.session import Session
from precgui.gui.workers.child_process import RunThread
app = QCoreApplication([])
session = Session()
session.set_folder(Path(sys.argv[1]).parent)
session.training.start(config.load("digits-quick", ["device=cpu", "threads=1", f"task={sys.argv[1]}:make_task"]))
training = session.findChildren(RunThread)
session.training.warm_up()
(warm,) = set(session.findChildren(RunThread)) - set(training)
(opened,) = session.runs.values()

def look():
    if len(opened.run.series("loss")[0]) == 3 and warm.ready:
        print(warm.pid, opened.run.path, flush=True)
        os._exit(1)

timer = QTimer(interval=50)
timer.timeout.connect(look)
timer.start()
app.exec()
"""


def test_that_a_run_survives_the_window_and_a_waiting_engine_does_not(gated: Path) -> None:
    command = [sys.executable, "-c", WINDOW_THAT_DIES, str(gated)]
    told = gated.with_name("told")
    with told.open("w") as file:  # a pipe would stay open as long as the run goes on
        subprocess.run(command, stdout=file, timeout=240, check=False)
    pid, path = told.read_text().split()
    try:
        wait_until(lambda: is_gone(int(pid)))
        assert status_of(path) == "running"
    finally:
        Path(f"{gated}.go").touch()
    wait_until(lambda: status_of(path) != "running")
    with open_run(path) as saved:
        assert (saved.status, len(saved.series("loss")[0])) == ("completed", 240)


def wait_until(condition: Callable[[], bool]) -> None:
    """As `qtbot.waitUntil`, for processes that are none of this one's."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; nobody may be there to ask for its exit code."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def status_of(path: str) -> str:
    with open_run(path) as saved:
        return saved.status
