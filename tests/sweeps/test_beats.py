"""A run of another host is known to live by its beat, and runs again when that has stopped."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from precgui.checkpoint_files import checkpoint_files
from precgui.events import Event, StepDone
from precgui.job import Job
from precgui.process.spawn import ChildProcess
from precgui.runs.file import event_store, writer
from precgui.runs.file.event_store import EventStore
from precgui.runs.file.reader import open_run
from precgui.runs.file.writer import RunWriter
from precgui.sweeps import runner
from precgui.sweeps.events import SweepEvent, SweepWaits
from precgui.sweeps.folder import DISCARDED, SweepFolder
from precgui.sweeps.plan import Member
from precgui.sweeps.runner import BeatWatch, run_sweep
from precgui.sweeps.state import MemberState
from tests.sweeps.sample_sweep import small_sweep, write_member

OTHER = "node1"
NEW_HOST_NAME = 0x04000000  # CLONE_NEWUTS
NOT_ALLOWED = 77


def train_on_another_host(folder: Path, name: str) -> None:
    """Under another host name, as another machine has it, until the whole host ends by kill -9."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_HOST_NAME):
        os._exit(NOT_ALLOWED)
    socket.sethostname(OTHER)
    sweep = SweepFolder(folder)
    member = sweep.plan.member(name)

    def die(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    Job(sweep.config_of(member), sweep.path_of(member), [die]).run()


def test_that_a_beat_is_compared_with_itself_and_with_no_other_clock(tmp_path: Path) -> None:
    now, run = [0.0], tmp_path / "run.h5"
    watch = BeatWatch(180.0, clock=lambda: now[0])
    assert not watch.is_gone(run, {})
    run.write_bytes(b"1")
    os.utime(run, (1e9, 1e9))  # of a host whose clock is years behind
    for now[0] in (1.0, 100.0, 180.9):
        assert not watch.is_gone(run, {})
    os.utime(run, (1e9 + 1, 1e9 + 1))
    for now[0] in (181.5, 300.0):
        assert not watch.is_gone(run, {})
    now[0] = 361.5
    assert watch.is_gone(run, {})
    for now[0], beats in ((362.0, 1), (500.0, 2), (600.0, 2)):
        assert not watch.is_gone(run, {"host": OTHER, "beats": beats, "time": f"{now[0]}"})
    now[0] = 681.0
    run.touch()  # by a copy or a backup, not by the process of the run
    assert watch.is_gone(run, {"host": OTHER, "beats": 2, "time": "681.0"})


class HourBehind(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime.now(tz) - timedelta(hours=1)


def live_on_another_host(folder: Path, name: str) -> None:
    """Under another host name and with a clock that is an hour behind; nothing is recorded."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_HOST_NAME):
        os._exit(NOT_ALLOWED)
    socket.sethostname(OTHER)
    vars(event_store)["datetime"] = HourBehind
    writer.BEAT_S = 0.0
    sweep = SweepFolder(folder)
    member = sweep.plan.member(name)
    RunWriter(
        sweep.path_of(member), sweep.config_of(member), run_id=name, created="2026-01-02T03:04:05+00:00", machine={},
        environment={},
    )  # fmt: skip
    threading.Event().wait(60)


def test_that_a_quiet_run_of_a_host_whose_clock_is_an_hour_behind_lives_until_its_beats_end(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("a host name of its own is given to a process on Linux only")
    folder = small_sweep(tmp_path)
    first = folder.plan.members[0]
    child = ChildProcess(target=live_on_another_host, args=(folder.path, first.name))
    child.start()

    def next_beat(before: int) -> MemberState:
        for _ in range(600):
            state = folder.state_of(first)
            if state.beat.get("beats", 0) > before:
                return state
            if child.exitcode == NOT_ALLOWED:
                pytest.skip("this user may not give a process a host name of its own")
            time.sleep(0.05)
        raise AssertionError("no beat in 30 s")

    try:
        now, state = [0.0], next_beat(0)
        watch = BeatWatch(180.0, clock=lambda: now[0])
        assert not watch.is_gone(state.path, state.beat)
        for now[0] in (170.0, 340.0, 510.0):
            state = next_beat(state.beat["beats"])
            assert state.is_out_of_reach
            assert not watch.is_gone(state.path, state.beat)
        behind = datetime.now(UTC) - datetime.fromisoformat(state.beat["time"])
        assert timedelta(minutes=50) < behind < timedelta(minutes=70)
        assert state.beat["host"] == OTHER
        assert state.beat["boot_id"]
    finally:
        child.kill()
        child.join()
    state = folder.state_of(first)
    watch.is_gone(state.path, state.beat)
    now[0] += 180.0
    assert watch.is_gone(state.path, folder.state_of(first).beat)
    folder.give_up(first.name)
    assert folder.state_of(first).status == "waiting"


def test_that_a_run_whose_disk_is_full_still_beats(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    path, config = folder.path_of(folder.plan.members[0]), folder.config_of(folder.plan.members[0])
    store = EventStore(
        path, attributes={"run_id": "a", "title": "a", "created": "2026-01-02T03:04:05+00:00"},
        texts={"config": config.model_dump_json(), "machine": "{}", "environment": "{}"}, reserve_bytes=0,
    )  # fmt: skip
    store.file.abandon()
    for beats in (1, 2):
        store.beat()
        with open_run(path) as run:
            assert run.beat["beats"] == beats
            assert not run.damage
    store.close()
    with open_run(path) as run:
        assert run.status == "failed"
        assert not run.beat


def test_that_a_run_whose_host_died_runs_again_without_a_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform != "linux":
        pytest.skip("a host name of its own is given to a process on Linux only")
    folder = small_sweep(tmp_path)
    first, *others = folder.plan.members
    for member in others:
        write_member(folder, member)
    child = ChildProcess(target=train_on_another_host, args=(folder.path, first.name))
    child.start()
    child.join()
    if child.exitcode == NOT_ALLOWED:
        pytest.skip("this user may not give a process a host name of its own")
    assert child.exitcode == -signal.SIGKILL
    assert folder.state_of(first).is_out_of_reach
    monkeypatch.setattr(runner, "BeatWatch", lambda: BeatWatch(1.0))
    said: list[SweepEvent] = []
    run_sweep(folder, said.append)
    waits = [event.why for event in said if isinstance(event, SweepWaits)]
    assert f"on {OTHER}, which cannot be asked from here" in waits[0]
    assert "has given no sign of life" in waits[1]
    assert folder.state_of(first).status == "completed"
    assert (folder.path / DISCARDED / f"{first.name}.1.h5").is_file()


def test_that_a_run_that_comes_back_writes_on_in_the_file_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_sweep(tmp_path)
    first = folder.plan.members[0]
    path = folder.path_of(first)
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: OTHER)
        late: list[Job] = []

        def given_up(event: Event) -> None:
            if isinstance(event, StepDone) and event.step == 2:
                there.undo()
                folder.give_up(first.name)
                write_member(folder, first)

        config = folder.config_of(first)
        train = config.train.model_copy(update={"checkpoint_every": "1"})
        late.append(Job(config.model_copy(update={"train": train}), path, [given_up]))
        assert late[0].run().status == "failed"
    assert "removed or renamed" in late[0].fault or "another file took its place" in late[0].fault
    assert folder.state_of(first).status == "completed"
    assert not any(step > 2 for step in checkpoint_files(path))


def test_that_a_member_that_was_stopped_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    first, *others = folder.plan.members
    for member in others:
        write_member(folder, member)
    stop_at_2(folder, first)
    assert folder.state_of(first).status == "cut off"
    run_sweep(folder, lambda event: None)
    assert folder.state_of(first).status == "completed"
    with open_run(folder.path_of(first)) as run:
        assert len(run.events("resumed")) == 1
    assert not (folder.path / DISCARDED).exists()


def stop_at_2(folder: SweepFolder, member: Member) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 2:
            job.stop()

    job = Job(folder.config_of(member), folder.path_of(member), [stop])
    job.run()
