"""Ranks that precgui starts itself: a run file, a killed rank, Stop; no process is left."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from precgui.config import load
from precgui.engine.errors import EngineError
from precgui.engine.parallel import launch
from precgui.events import Event, RankStep, StepDone
from precgui.job import Job
from precgui.runs.file.reader import open_run

ENDLESS = [
    "device=cpu", "threads=1", "train.epochs=1000", "data.sequence_length=16", "data.epoch_steps=1000",
    "record.tensors=false", "parallel.strategy=ddp", "parallel.gradient_format=e5m2",
]  # fmt: skip


def ranks_of_this_process() -> list[psutil.Process]:
    return [
        child for child in psutil.Process().children()
        if any("spawn_main" in word for word in child.cmdline())
    ]  # fmt: skip


class _Acting:
    """Calls `act` in another thread after step 5, once."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.act = lambda: None

    def emit(self, event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 5:
            self.pids = [child.pid for child in ranks_of_this_process()]
            threading.Thread(target=self.act).start()


def test_that_a_killed_rank_ends_the_run_with_its_name(tmp_path: Path) -> None:
    acting = _Acting()
    job = Job(load("gpt-quick", ENDLESS), tmp_path / "run.h5", [acting.emit])
    acting.act = lambda: os.kill(acting.pids[1], signal.SIGKILL)
    ended = job.run()
    assert ended.status == "failed"
    assert ended.message.startswith(f"rank 1 (process {acting.pids[1]}) was killed or crashed")
    assert not any(psutil.pid_exists(pid) for pid in acting.pids)
    with open_run(tmp_path / "run.h5") as saved:
        assert saved.status == "failed" and saved.steps >= 5
        assert len(saved.series("rank_step_s:1")[1]) >= 5
        assert saved.series("sent_bytes")[1][0] > 0


def test_that_a_rank_killed_before_it_begins_is_named(tmp_path: Path) -> None:
    def kill_second() -> None:
        while len(started := ranks_of_this_process()) < 2:
            time.sleep(0.02)
        max(started, key=lambda child: child.pid).kill()  # they are started in their order

    threading.Thread(target=kill_second, daemon=True).start()
    ended = Job(load("gpt-quick", ENDLESS), tmp_path / "run.h5").run()
    assert ended.status == "failed"
    assert ended.message.startswith("rank 1 ended before it had begun")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            r"no space is left in the shared memory; free some of /dev/shm",
        ),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), "no space is left for /tmp/x; free some"),
        (ValueError("a bad address"), "a bad address"),
    ],
)
def test_that_what_torchrun_says_of_ranks_that_it_cannot_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str
) -> None:
    def raises(*_: object) -> None:
        raise error

    monkeypatch.setattr(launch, "elastic_launch", lambda *_: raises)
    ended = Job(load("gpt-quick", ENDLESS), tmp_path / "run.h5").run()
    assert ended.status == "failed"
    assert re.search(f"the ranks could not be started: {sentence}", ended.message)


def test_that_a_rank_that_never_begins_is_told_by_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "START_LIMIT_S", 120.0)
    started = launch.RanksChannel(load("gpt-quick", [*ENDLESS, "parallel.time_limit_s=60"]), time.perf_counter())
    started._ranks[0].heard_s = time.monotonic() - 121
    with pytest.raises(EngineError, match="rank 0 has not begun within 120 s; its process was stopped, or"):
        started.raise_failure()
    started._ranks[0].pid, started._ranks[0].heard_s = 7, time.monotonic() - 61
    with pytest.raises(EngineError, match=r"rank 0 \(process 7\) has not answered for 60 s"):
        started.raise_failure()
    started.close()


def test_that_stop_ends_all_ranks_within_two_seconds(tmp_path: Path) -> None:
    acting = _Acting()
    job = Job(load("gpt-quick", ENDLESS), tmp_path / "run.h5", [acting.emit])
    acting.act = job.stop
    ended = job.run()
    assert ended.status == "stopped"
    assert not any(psutil.pid_exists(pid) for pid in acting.pids)
    assert len(acting.pids) == 2
    with open_run(tmp_path / "run.h5") as saved:
        assert saved.status == "stopped"


def test_that_more_ranks_than_cores_are_refused(tmp_path: Path) -> None:
    ended = Job(load("gpt-quick", [*ENDLESS, "parallel.ranks=1000"]), tmp_path / "run.h5").run()
    assert ended.status == "failed"
    assert "set parallel.ranks = " in ended.message and "or parallel.oversubscribe = true" in ended.message


@pytest.mark.parametrize("event", [RankStep(3, 0.5, 1, 0.1, 0.02, 0.09, 1e8, 1e6, 2e6, 0.01)])
def test_that_a_step_of_a_rank_is_kept(tmp_path: Path, event: RankStep) -> None:
    from tests.runs.synthetic import live_run, open_writer

    writer = open_writer(tmp_path / "run.h5")
    writer(event)
    writer.close()
    live = live_run([event])
    with open_run(tmp_path / "run.h5") as saved:
        for run in (saved, live):
            assert run.series("sent_bytes:1") == ([3.0], [1e6])
            assert run.series("gradient_error:1", "time_s") == ([0.5], [0.01])
            assert len(run.series("sent_bytes")[1]) == 0
