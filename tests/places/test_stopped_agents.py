"""Agents in processes of their own that the system stops or kills, disks that are full, and two windows on one run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precgui.events import RunEnded, StepDone
from precgui.paths import state_dir
from precgui.places import link
from precgui.places.jobs import JobFolder, SpooledFrames
from precgui.places.messages import REPLIES
from precgui.places.placed_job import PlacedJob
from precgui.places.runner import JobConnection
from precgui.places.settings import NamedPlace, command_place
from precgui.places.trial import jobs_of
from tests import needs
from tests.places.played_agent import JOB, make_job, step

pytestmark = needs.signals
STEPS = 40
_AGENT = "import os, pathlib; pathlib.Path({pids!r}, str(os.getpid())).touch(); "
_SERVE = "from precgui.places.agent import serve_stdio; serve_stdio()"
_FILLS = """
import resource
from precgui.places.jobs import JobFolder
from precgui.places.runner import JobConnection
from tests.places.played_agent import JOB, step
connection = JobConnection(JobFolder(JOB))
resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, resource.RLIM_INFINITY))
taken = 0
for number in range(1, 100):
    try:
        connection.send([step(number)])
        taken += 1
    except OSError:
        break
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
connection.send([step(1000)])
print(taken)
"""
_FOLLOWS = """
import json, sys
from precgui.places import link, placed_job
from precgui.places.placed_job import PlacedJob
from precgui.places.settings import command_place
from tests.places.test_stopped_agents import JOB, steps_of
link.PING_S, link.SILENT_S, placed_job.FIRST_WAIT_S = 0.2, 1.0, 0.05
job = PlacedJob(command_place("box", json.loads(sys.argv[1])), JOB)
job.open()
steps = steps_of(job, lambda steps: len(steps) > 3)
print("begun", flush=True)
print(json.dumps(steps + steps_of(job)))
job.close()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedPlace:
    """A place whose agents are real processes; `pids` in the folder of the test has their numbers."""
    monkeypatch.setattr("precgui.places.placed_job.FIRST_WAIT_S", 0.05)
    for name, seconds in (("PING_S", 0.2), ("SILENT_S", 1.5), ("_END_S", 0.2)):
        monkeypatch.setattr(link, name, seconds)
    (tmp_path / "pids").mkdir()
    program = _AGENT.format(pids=str(tmp_path / "pids")) + _SERVE
    return command_place("box", ["env", f"PRECGUI_STATE={state_dir()}", sys.executable, "-c", program])


def agents(tmp_path: Path) -> list[int]:
    return sorted(int(path.name) for path in (tmp_path / "pids").iterdir())


@pytest.fixture
def trains() -> Iterator[threading.Thread]:
    """A run that makes a step each 50 ms, in a thread, and ends."""
    folder = make_job([])
    connection = JobConnection(folder)

    def train() -> None:
        for number in range(1, STEPS + 1):
            connection.send([step(number)])
            time.sleep(0.05)
        connection.send([RunEnded(9.0, "completed")])

    thread = threading.Thread(target=train)
    yield thread
    thread.join()


def steps_of(job: PlacedJob, until: Any = lambda steps: False) -> list[int]:
    """The steps that a job tells until its end, or until it should be left."""
    steps: list[int] = []
    while not until(steps):
        message = job.receive(0.1)
        for event in getattr(message, "events", ()):
            if isinstance(event, StepDone):
                steps.append(event.step)
            elif isinstance(event, RunEnded):
                return steps
    return steps


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_that_an_agent_that_is_stopped_or_killed_is_left_for_another(
    place: NamedPlace, trains: threading.Thread, tmp_path: Path, number: signal.Signals
) -> None:
    job = PlacedJob(place, JOB)
    job.open()
    trains.start()
    steps = steps_of(job, lambda steps: len(steps) > 3)
    (first,) = agents(tmp_path)
    os.kill(first, number)
    try:
        steps += steps_of(job)
    finally:
        job.close()
        if number == signal.SIGSTOP:
            os.kill(first, signal.SIGKILL) if Path(f"/proc/{first}").exists() else None
    assert steps == list(range(1, STEPS + 1))
    assert len(agents(tmp_path)) == 2


def test_that_a_window_that_sleeps_misses_nothing(place: NamedPlace) -> None:
    root, words = Path(__file__).parents[2], json.dumps(place.command)
    half = STEPS // 2
    make_job([[step(number)] for number in range(1, half + 1)])
    connection = JobConnection(JobFolder(JOB), after=half)
    with subprocess.Popen(
        [sys.executable, "-c", _FOLLOWS, words], cwd=root, stdout=subprocess.PIPE, text=True
    ) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "begun\n"
            client.send_signal(signal.SIGSTOP)
            for number in range(half + 1, STEPS + 1):  # all that comes while it sleeps
                connection.send([step(number)])
            time.sleep(1.5)  # longer than a link may be silent
            connection.send([RunEnded(9.0, "completed")])
            client.send_signal(signal.SIGCONT)
            printed = client.stdout.read()  # by the same stream: the line before may have brought a part of it
        finally:
            client.kill()
    assert json.loads(printed) == list(range(1, STEPS + 1))


def test_that_two_windows_on_one_run_see_all_of_it(place: NamedPlace, trains: threading.Thread) -> None:
    seen: list[list[int]] = []

    def look() -> None:
        job = PlacedJob(place, JOB)
        job.open()
        seen.append(steps_of(job))
        job.close()

    windows = [threading.Thread(target=look) for _ in range(2)]
    for window in windows:
        window.start()
    trains.start()
    for window in windows:
        window.join()
    assert seen == [list(range(1, STEPS + 1))] * 2


def test_that_a_clock_that_is_wrong_there_loses_nothing(place: NamedPlace, trains: threading.Thread) -> None:
    for offset_s in (-400_000_000, 400_000_000):
        os.utime(JobFolder(JOB).path / "order", (time.time() + offset_s,) * 2)
        (line,) = jobs_of(place)
        assert (line.job, line.is_running) == (JOB, True)
    job = PlacedJob(place, JOB)
    job.open()
    trains.start()
    assert steps_of(job) == list(range(1, STEPS + 1))
    job.close()


def test_that_a_disk_that_is_full_keeps_whole_messages_and_takes_later_ones(tmp_path: Path) -> None:
    folder = make_job([])
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", _FILLS.format(most=5000)], cwd=root, capture_output=True, text=True, check=True,
        timeout=300,
    )  # fmt: skip
    told = [REPLIES.decode(frame) for frame in SpooledFrames(folder.frames, 0).new()]
    taken = int(ran.stdout)
    assert taken > 5
    assert [message.number for message in told] == list(range(1, taken + 2))
    assert [message.events[0].step for message in told] == [*range(1, taken + 1), 1000]
