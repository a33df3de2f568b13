"""Whether a writer lives is told without the clock: a step of it must not end a living run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from precgui.events import RunEnded
from precgui.runs.errors import RunFileError
from precgui.runs.file import process, repair
from precgui.runs.file import writer as run_writer
from precgui.runs.file.reader import open_run
from tests.runs.synthetic import open_writer, synthetic_events

HOUR_S = 3600.0
on_linux = pytest.mark.skipif(not Path("/proc/sys/kernel/random/boot_id").exists(), reason="boot ids are of Linux")


@pytest.fixture
def stepped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes an hour on after the run has begun: what is told of the start of a process moves along."""
    told = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: told(self) + HOUR_S)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield started
    started.kill()
    started.wait()


def identity(pid: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the process would have told about itself."""
    with monkeypatch.context() as there:
        there.setattr(os, "getpid", lambda: pid)
        started = psutil.Process(pid).create_time()
        return process.this_process() | {"process_started": started}


@on_linux
def test_that_a_step_of_the_clock_ends_no_living_run(
    tmp_path: Path, request: pytest.FixtureRequest, child: subprocess.Popen[bytes]
) -> None:
    path = tmp_path / "run.h5"
    with open_writer(path) as emit:
        for event in synthetic_events()[:50]:
            emit(event)
        emit.flush()
        request.getfixturevalue("stepped_clock")
        with open_run(path) as run:
            assert run.status == "running"
        with pytest.raises(RunFileError, match="still being written"):
            repair.repair(path, "failed", "")
        emit(RunEnded(0.0, "completed"))
    with open_run(path) as run:
        assert run.status == "completed"


@on_linux
def test_that_a_killed_process_is_gone_and_a_living_one_is_not(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = identity(child.pid, monkeypatch)
    assert process.is_gone(writer) is False
    child.kill()
    while process._state_and_ticks(child.pid) not in (None, ("Z", writer["start_ticks"])):
        time.sleep(0.01)
    assert process.is_gone(writer) is True  # a zombie
    child.wait()
    assert process.is_gone(writer) is True


@on_linux
def test_that_another_process_with_the_same_pid_is_not_the_writer() -> None:
    writer = process.this_process()
    assert process.is_gone(writer) is False
    assert process.is_gone(writer | {"start_ticks": writer["start_ticks"] - 5}) is True
    assert process.is_gone(writer | {"host": "elsewhere"}) is None
    assert process.is_gone(writer | {"pid_namespace": "pid:[1]"}) is None


@on_linux
def test_that_a_process_of_another_boot_is_of_this_machine_only_where_it_was_quiet_since() -> None:
    booted = psutil.boot_time()
    before = process.this_process() | {"boot_id": "of an earlier boot", "process_started": booted - HOUR_S}
    assert process.is_gone(before) is True
    assert process.is_gone(before | {"process_started": None}) is True
    assert process.is_gone(before | {"process_started": booted + HOUR_S}) is None
    for beat_s, gone in ((-1.0, True), (HOUR_S, None)):
        beat = datetime.fromtimestamp(booted + beat_s, UTC).isoformat(timespec="seconds")
        assert process.is_gone(before | {"time": beat}) is gone
    assert process.is_gone(before | {"time": "no time"}) is True


@on_linux
def test_that_a_run_of_another_machine_of_the_same_name_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of cloned machines that share a folder. It began before this machine was booted, and beats since."""
    own_boot_id = process._boot_id
    with monkeypatch.context() as there:
        there.setattr(process, "_boot_id", lambda: "of the other machine")
        there.setattr(psutil.Process, "create_time", lambda self: psutil.boot_time() - HOUR_S)
        there.setattr(run_writer, "BEAT_S", 0.0)
        with open_writer(tmp_path / "run.h5") as emit:
            for event in synthetic_events()[:50]:
                emit(event)
            there.setattr(process, "_boot_id", own_boot_id)
            deadline = time.monotonic() + 60
            while not is_living(tmp_path / "run.h5"):
                assert time.monotonic() < deadline, "no beat in a minute"
                time.sleep(0.05)


def is_living(path: Path) -> bool:
    """Whether a run goes on, but this machine cannot ask its process; it is taken for cut off before its first beat."""
    with open_run(path) as run:
        return (run.status, run.cannot_ask_writer) == ("running", True)


def test_that_files_of_older_versions_are_told_by_the_start_time(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = {key: process.this_process()[key] for key in ("host", "pid", "process_started")}
    assert process.is_gone(writer) is False
    assert process.is_gone(writer | {"process_started": float(str(writer["process_started"])) - HOUR_S}) is True
    assert process.is_gone(writer | {"process_started": None}) is None


def test_that_systems_without_proc_compare_start_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "_PROC", tmp_path)
    writer = process.this_process()
    assert "boot_id" not in writer
    assert process.is_gone(writer) is False


def test_that_a_file_that_changes_meanwhile_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should a writer be taken for dead all the same, what it writes during the repair keeps its file."""
    path = tmp_path / "run.h5"
    with open_writer(path) as emit:
        for event in synthetic_events()[:50]:
            emit(event)
        emit.flush()
        monkeypatch.setattr(process, "is_gone", lambda _: True)
        last_events = repair._last_events

        def writes_meanwhile(*arguments: object) -> object:
            for event in synthetic_events()[50:]:
                emit(event)
            emit.flush()
            return last_events(*arguments)

        monkeypatch.setattr(repair, "_last_events", writes_meanwhile)
        with pytest.raises(RunFileError, match="was written to meanwhile"):
            repair.repair(path, "failed", "")
    with open_run(path) as run:
        assert len(run.series("loss")[1]) == 300
    assert [each.name for each in tmp_path.iterdir()] == ["run.h5"]
