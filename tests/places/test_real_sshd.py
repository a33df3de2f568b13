"""Places behind a real sshd on the loopback: runs whose link is cut, files, and each failure of the first contact."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from precgui.config import build
from precgui.events import StepDone
from precgui.places.jobs import RUN_FILE
from precgui.places.placed_job import PlacedJob, PlacedRun
from precgui.places.settings import NamedPlace, ssh_place
from precgui.places.training import PlacedTraining
from precgui.places.trial import answer_of, jobs_of
from precgui.runs.file.event_tables import EventRows
from precgui.runs.file.reader import open_run
from tests.places.loopback_sshd import LoopbackServer, loopback_server
from tests.places.processes import none_left, processes_of

pytestmark = pytest.mark.timeout(3600 if os.environ.get("PLACES_LONG") else 900)
SERVE = f"{sys.executable} -m precgui"
CUTS = 100 if os.environ.get("PLACES_LONG") else 3
MOST_S = 240
_TASK = """
import time
import torch
from torch import nn


class Paced:  # a run that waits for its test costs little
    def __init__(self, config):
        draw = torch.Generator().manual_seed(config.seed)
        self.batches = [(torch.rand(8, 4, generator=draw), torch.rand(8, 1, generator=draw)) for _ in range(100)]

    def model(self):
        return nn.Linear(4, 1)

    def train_batches(self):
        return self.batches

    def validation_batches(self):
        return self.batches[:1]

    def loss(self, outputs, targets):
        time.sleep(0.01)
        return nn.functional.mse_loss(outputs, targets)


make_task = Paced
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServer]:
    with loopback_server(tmp_path_factory.mktemp("sshd")) as started:
        yield started


def place_there(server: LoopbackServer, state: Path) -> NamedPlace:
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    words = f"env PRECGUI_STATE={shlex.quote(str(state))} OMP_NUM_THREADS={threads} {SERVE}"
    return ssh_place("gpu1", "127.0.0.1", words, server.options())


def test_that_a_place_behind_a_real_sshd_says_hello(server: LoopbackServer) -> None:
    answer = answer_of(ssh_place("gpu1", "127.0.0.1", SERVE, server.options()))
    assert answer.why == ""
    document = answer.document()
    assert (document["answered"], document["devices"][0]["id"]) == (True, "cpu")


@pytest.mark.parametrize(
    ("key", "known", "precgui", "sentence"),
    [
        ("user", False, SERVE, "ssh does not know the host key of 127.0.0.1 yet"),
        ("stranger", True, SERVE, "`ssh-copy-id 127.0.0.1` puts yours there"),
        ("user", True, "no-such-precgui", "precgui is not installed at gpu1"),
        ("user", True, f"{sys.executable} -S -P -m precgui", "precgui is not installed at gpu1"),
        ("user", True, "/no/such/env/bin/python -m precgui", "precgui is not installed at gpu1"),
    ],
)
def test_that_a_real_ssh_that_fails_is_one_sentence(
    server: LoopbackServer, key: str, known: bool, precgui: str, sentence: str
) -> None:
    answer = answer_of(ssh_place("gpu1", "127.0.0.1", precgui, server.options(key, known=known)))
    assert sentence in answer.why
    assert "\n" not in answer.why


def test_that_a_host_key_that_has_changed_is_one_sentence(server: LoopbackServer) -> None:
    answer = answer_of(ssh_place("gpu1", "127.0.0.1", SERVE, server.options(host="stranger")))
    assert "ssh-keygen -R 127.0.0.1" in answer.why


class Follower:
    """Follows a run in a thread, and keeps the steps that it was told."""

    def __init__(self, training: PlacedTraining) -> None:
        self.training = training
        self.steps: list[int] = []
        self.states: set[str] = set()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        self.training.run(self._take, lambda: self.states.add(self.training.link_state))

    def _take(self, batch: list[Any]) -> None:
        for event in batch:
            if isinstance(event, StepDone):
                self.steps.append(event.step)
            elif isinstance(event, EventRows) and event.table.event is StepDone:
                self.steps += [int(step) for step in event.rows[0]]

    def wait_for(self, step: int) -> None:
        until_s = time.monotonic() + MOST_S
        while len(self.steps) < step:
            assert self._thread.is_alive(), self.training.why or self.training.ended
            assert time.monotonic() < until_s
            time.sleep(0.05)

    def join(self) -> None:
        self._thread.join(MOST_S)
        assert not self._thread.is_alive()


def kill_ssh() -> None:
    """The clients of ssh that this process has started, as a network that is gone would leave them."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.name() == "ssh":
                child.kill()


def kill_agents(state: Path) -> None:
    for process in processes_of(state):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[-2:] == ["serve", "--stdio"]:
                process.kill()


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Path]:
    """The state of the place."""
    with none_left(tmp_path / "there"):
        yield tmp_path / "there"


def test_that_a_run_behind_ssh_outlives_its_links_its_agent_and_its_window(
    server: LoopbackServer, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("precgui.places.placed_job.FIRST_WAIT_S", 0.1)
    monkeypatch.setattr("precgui.places.placed_job.LONGEST_WAIT_S", 0.5)
    place, home, random_of = place_there(server, there), tmp_path / "home.h5", random.Random(3)
    (code := tmp_path / "paced.py").write_text(_TASK, encoding="utf-8")
    config = build(
        {"task": f"{code}:make_task", "precision": "fp32", "train": {"epochs": 1000, "checkpoint_every": 50}}
    )
    first = Follower(PlacedTraining.of_config(place, config, home, may_send_code=True))
    first.wait_for(20)
    for cut in range(CUTS):
        seen = len(first.steps)
        time.sleep(random_of.random() / 2)
        kill_agents(there) if cut % 3 == 2 else kill_ssh()
        first.wait_for(seen + 20)
    assert any("the run goes on there" in state for state in first.states)
    first.training.detach()  # the lid is closed
    first.join()
    assert first.steps == list(range(1, len(first.steps) + 1))

    again = Follower(PlacedTraining.attached(PlacedRun(place, first.training.run_id, home)))
    again.wait_for(len(first.steps) + 50)
    again.training.stop()
    again.join()
    assert again.training.ended is not None
    assert again.training.ended.status == "stopped"
    assert "still at" not in again.training.ended.message
    assert again.steps == list(range(1, len(again.steps) + 1))
    run_id, stopped_at = first.training.run_id, again.steps[-1]
    assert whole(home) == (run_id, stopped_at, "gpu1")

    (line,) = jobs_of(place)  # nothing ran twice
    assert (line.job, line.part, line.is_running) == (run_id, 0, False)
    checkpoints = [name for name in line.files if name != RUN_FILE]  # which stay there until they are asked for
    assert checkpoints
    job = PlacedJob(place, run_id)
    job.open()
    job.fetch(checkpoints[-1], tmp_path / "fetched")
    job.close()
    kept = there / "jobs" / run_id / "out" / checkpoints[-1]
    assert (tmp_path / "fetched").read_bytes() == kept.read_bytes()

    resumed = Follower(PlacedTraining.attached(PlacedRun(place, run_id, home, part=1)))
    resumed.wait_for(stopped_at + 20)
    resumed.training.stop()
    resumed.join()
    assert resumed.steps == list(range(1, len(resumed.steps) + 1))
    assert whole(home) == (run_id, resumed.steps[-1], "gpu1")
    assert [line.part for line in jobs_of(place)] == [1]


def whole(path: Path) -> tuple[str, int, object]:
    with open_run(path) as saved:
        return saved.run_id, saved.steps, saved.environment["place"]
