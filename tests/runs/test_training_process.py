"""The end of a run whose process may have died without a word, and the file that it leaves."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from precgui.config import RunConfig
from precgui.events import RunEnded
from precgui.process.child import ChildTask
from precgui.process.supervised import DeathWords, Supervised
from precgui.runs.file.reader import open_run
from precgui.runs.training_process import TrainingProcess
from tests.process.played_channel import PlayedChannel

WORDS = DeathWords("the process of the run", "the process", "the system was out of memory")
KILLED = "the process of the run was killed by SIGKILL: the system was out of memory"


def train(path: Path, *messages: Any, stopped: bool = False) -> tuple[PlayedChannel, RunEnded | None, RunEnded | None]:
    """A run whose process sends `messages` and is killed: the channel, the end that was sent, that of a lost run."""
    channel = PlayedChannel([*messages, EOFError()], exit_code=-signal.SIGKILL)
    process = Supervised(channel, grace_s=60)
    training = TrainingProcess(process, WORDS)
    training.begin(RunConfig(title="mine"), path, "the-id")
    end = process.run(training.watch, lambda: stopped)
    return channel, training.ended, training.lost(end)


def test_that_a_run_that_ended_by_itself_is_left_alone(tmp_path: Path) -> None:
    sent = RunEnded(1.0, "completed")
    channel, ended, lost = train(tmp_path / "run.h5", ["step"], [sent])
    assert (ended, lost) == (sent, None)
    (order,) = channel.sent
    assert isinstance(order, ChildTask)
    assert (order.task, order.arguments["run_id"]) == ("precgui.job:serve", "the-id")
    assert RunConfig.model_validate(order.arguments["config"]).title == "mine"


def test_that_the_file_of_a_lost_run_is_completed_with_its_end(dead: Path) -> None:
    _, ended, lost = train(dead, ["step"])
    assert (ended, lost) == (None, RunEnded(0.0, "failed", KILLED, "its last words"))
    with open_run(dead) as run:
        assert (run.status, run.message) == ("failed", KILLED)


def test_that_a_lost_run_that_was_stopped_has_stopped(dead: Path) -> None:
    _, _, lost = train(dead, stopped=True)
    assert lost is not None
    with open_run(dead) as run:
        assert (run.status, run.message) == (lost.status, lost.message)
        assert run.message == "stopped; the process did not answer and was ended"


def test_that_a_file_that_cannot_be_completed_stays_as_it_is(tmp_path: Path) -> None:
    """It is read in a process of its own, whose errors are nobody's."""
    path = tmp_path / "run.h5"
    path.write_bytes(b"no HDF5")
    _, _, lost = train(path)
    assert lost is not None
    assert path.read_bytes() == b"no HDF5"


def test_that_a_process_that_waited_for_work_has_no_run_to_lose() -> None:
    process = Supervised(PlayedChannel([EOFError()]), grace_s=60)
    assert TrainingProcess(process, WORDS).lost(process.run(lambda _: None)) is None
