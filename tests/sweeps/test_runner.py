"""Sweeps that really train, in child processes: to their end, killed, resumed, by two processes at once."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from precgui.config import RunConfig
from precgui.events import RunEnded
from precgui.process.child import StopToken
from precgui.runs.file.reader import open_run
from precgui.runs.file.writer import RunWriter
from precgui.runs.step_times import step_time
from precgui.sweeps.errors import SweepError
from precgui.sweeps.events import MemberBegan, MemberEnded, SweepEvent, SweepWaits
from precgui.sweeps.folder import SweepFolder
from precgui.sweeps.report import sweep_document
from precgui.sweeps.runner import SweepBusy, run_sweep, serve
from tests import needs
from tests.hardware import cards
from tests.hardware.fake_nvml import NO_PERMISSION, Fails, install
from tests.sweeps.sample_sweep import small_sweep, write_member
from tests.warm_children import Python, python

LIMITS = {
    "nvmlDeviceGetPowerManagementLimit": 400_000, "nvmlDeviceGetPowerManagementLimitConstraints": [100_000, 400_000]
}  # fmt: skip
MAIN = Path(__file__).parents[2] / "main.py"


def test_that_a_second_runner_is_refused_and_a_pause_is_obeyed(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    other = SweepFolder(folder.path)
    assert other.runner.acquire()
    with pytest.raises(SweepBusy, match="is being run by process"):
        run_sweep(folder, lambda event: None)
    other.runner.release()
    folder.pause()
    run_sweep(folder, lambda event: None)
    assert sweep_document(folder).done == 0


@needs.signals
def test_that_a_sweep_killed_at_any_moment_loses_no_run_and_runs_none_twice(tmp_path: Path) -> None:
    """Kills the runner alone (its run goes on), then the whole group (its run is cut off), then lets it end."""
    folder = small_sweep(tmp_path, seeds=1, precisions=("fp32",))
    members = folder.path / "members"
    for number, kill in ((1, os.kill), (2, os.killpg)):
        with Python(MAIN, "sweep", folder.path, own_group=True) as runner:
            deadline = time.monotonic() + 300
            while len(list(members.glob("*.h5"))) < number and time.monotonic() < deadline:
                time.sleep(0.02)
            kill(runner.pid, signal.SIGKILL)
    before = {path.name: path.stat().st_ino for path in members.glob("*.h5") if _ended(path)}
    done = python(MAIN, "sweep", folder.path, "--json")
    document = json.loads(done.stdout)
    assert (document["done"], document["left"]) == (3, 0)
    assert {row["status"] for row in document["members"]} == {"completed"}
    after = {path.name: path.stat().st_ino for path in members.glob("*.h5")}
    assert {name: after[name] for name in before} == before
    assert sorted(after) == sorted(f"{member.name}.h5" for member in folder.plan.members)
    assert _weights(members / "s01-fp32.h5") != _weights(members / "s01-fp32-twin.h5")
    events: list[SweepEvent] = []
    run_sweep(folder, events.append)
    assert events == []  # nothing is left to do


def test_that_the_task_of_the_window_runs_members_silently_and_ends_with_stop(tmp_path: Path) -> None:
    folder, control = small_sweep(tmp_path, seeds=1, precisions=("fp32",)), StopToken()
    events: list[SweepEvent] = []

    def emit(event: SweepEvent) -> None:
        events.append(event)
        if isinstance(event, MemberEnded):
            control.stop()

    serve(emit, control, folder=str(folder.path))
    assert [type(event) for event in events] == [MemberBegan, MemberEnded]  # no event of the run itself
    assert isinstance(events[1], MemberEnded)
    assert events[1].status == "completed"
    assert sum(state.status == "completed" for state in folder.states()) == 1
    assert step_time(folder.config_of(folder.plan.members[0]), "fp32") is not None  # for the estimate of the next one


def test_that_the_task_of_the_window_says_why_it_cannot_run(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=1, precisions=("fp32",))
    other = SweepFolder(folder.path)
    assert other.runner.acquire()
    events: list[SweepEvent] = []
    serve(events.append, StopToken(), folder=str(folder.path))
    serve(events.append, StopToken(), folder=str(tmp_path / "none"))
    other.runner.release()
    assert all(isinstance(event, SweepWaits) for event in events)
    assert "is being run by process" in str(events[0])
    assert len(events) == 2


class WrittenRuns:
    """In the place of `run_in_process`: writes the file of a member; `proceed` lets each run end."""

    def __init__(self, folder: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.ran, self.proceed = folder, [], threading.Semaphore(0)
        monkeypatch.setattr("precgui.sweeps.runner.run_in_process", self)

    def __call__(self, config: object, path: Path, emit: object, stopped: object, **_: object) -> RunEnded:
        self.proceed.acquire()
        self.ran.append((path.stem, threading.current_thread().name))
        write_member(self.folder, self.folder.plan.member(path.stem))
        return RunEnded(0.7, "completed")


def test_that_a_second_process_takes_the_runs_over_after_the_present_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_sweep(tmp_path, twins=0)
    runs, asked, busy = WrittenRuns(folder, monkeypatch), threading.Event(), []

    def first() -> None:
        try:
            run_sweep(SweepFolder(folder.path), lambda event: None)
        except SweepBusy as error:
            busy.append(str(error))

    def second(event: SweepEvent) -> None:
        if isinstance(event, SweepWaits):
            asked.set()

    one = threading.Thread(target=first, name="first")
    one.start()
    runs.proceed.release()
    _wait_until(lambda: len(runs.ran) == 1)
    other = threading.Thread(target=lambda: run_sweep(SweepFolder(folder.path), second, take_over=True), name="second")
    other.start()
    assert asked.wait(10)
    with pytest.raises(SweepBusy):
        run_sweep(SweepFolder(folder.path), lambda event: None, take_over=True)  # one successor at a time
    for _ in folder.plan.members:
        runs.proceed.release()
    one.join(20)
    other.join(20)
    assert len(busy) == 1 and "is being run by process" in busy[0]
    assert [name for name, _ in runs.ran] == [member.name for member in folder.plan.members]
    threads = [thread for _, thread in runs.ran]
    assert threads == sorted(threads)  # never back to the first
    assert threads.count("first") <= 2
    assert {state.status for state in folder.states()} == {"completed"}


def test_that_a_successor_that_stops_waiting_leaves_the_runs_where_they_are(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    other = SweepFolder(folder.path)
    assert other.runner.acquire()
    run_sweep(folder, lambda event: None, lambda: True, take_over=True)
    assert folder.successor.owner() is None
    assert other.runner.owner() is not None
    other.runner.release()
    assert sweep_document(folder).done == 0


def test_that_a_run_of_a_killed_runner_is_not_reported_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of the killed runner made its file after this one had begun to start it, too."""
    folder = small_sweep(tmp_path, seeds=1, precisions=("fp32",))
    events: list[SweepEvent] = []

    def refused(config: RunConfig, path: Path, emit: object, stopped: object, **_: object) -> RunEnded:
        self_writing.append(RunWriter(path, config, run_id="other", created="", machine={}, environment={}))
        return RunEnded(0.0, "failed", f"{path} exists")

    self_writing: list[RunWriter] = []
    monkeypatch.setattr("precgui.sweeps.runner.run_in_process", refused)
    run_sweep(folder, events.append, lambda: len(events) > 2)
    self_writing[0].close()
    assert not any(isinstance(event, MemberEnded) for event in events)
    assert "is trained by another process already" in str(events[1])


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def _weights(path: Path) -> str:
    with open_run(path) as run:
        return str(run.environment["initial_weights_sha256"])


def _ended(path: Path) -> bool:
    with open_run(path) as run:
        return run.status == "completed"


def test_that_a_study_of_power_limits_is_refused_before_its_first_run_where_the_driver_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, cards.a100(nvmlDeviceSetPowerManagementLimit=Fails(NO_PERMISSION), **LIMITS))
    folder = small_sweep(tmp_path, device="cuda", vary={"power.limit_w": [200.0, 300.0]})
    with pytest.raises(SweepError, match="the driver lets an administrator alone set it"):
        run_sweep(folder, lambda event: None)
    assert sweep_document(folder).done == 0
