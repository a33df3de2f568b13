"""The folder of a job: it runs once, its record is whole frames, and its end is told for a process that is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from precgui.events import Incident, RunEnded, TensorStats
from precgui.places import runner
from precgui.places.agent import Agent
from precgui.places.jobs import RUN_FILE, JobFolder, SpooledFrames, all_jobs, is_file_name
from precgui.places.messages import (
    REPLIES,
    AttachJob,
    JobEvents,
    OrderError,
    Refused,
    ResumeRun,
    SentFile,
    StartCommand,
    StartRun,
    StopJob,
)
from precgui.places.runner import JobConnection
from precgui.process.frames import FrameReader
from precgui.runs.file.reader import open_run
from tests.places.played_agent import JOB, ended_job, make_job, real_job, step

_TRAINS = """
import time
from precgui.config import RunConfig
from precgui.events import RunStarted, StepDone
from precgui.places.jobs import JobFolder
from precgui.places.runner import JobConnection
from precgui.runs.file.writer import RunWriter
folder = JobFolder("{job}")
folder.claim()
connection = JobConnection(folder)
writer = RunWriter(folder.out / "run.h5", RunConfig(), run_id="{job}", created="", machine={{}}, environment={{}})
for event in (RunStarted(0.0, 9, 9, "cpu"), StepDone(1, 0.1, 0.5, 1.0, False, 0.1, 1.0, 0.1, 0.0, 8, 0.0)):
    writer(event)
    connection.send([event])
writer.flush()
print("written", flush=True)
time.sleep(100)
"""


class Answers:
    """What an agent sends, read from a pipe."""

    def __init__(self) -> None:
        self._source, output = os.pipe()
        self.agent = Agent(output)
        weakref.finalize(self.agent, os.close, output)  # not before its threads, which may just write, let go of it
        self._reader = FrameReader(REPLIES)
        self._messages: deque[object] = deque()

    def until(self, kind: type, wanted: Callable[[Any], bool] = lambda message: True) -> Any:
        """The first message of a class that is wanted; those before it are let go."""
        while True:
            while self._messages:
                message = self._messages.popleft()
                if isinstance(message, kind) and wanted(message):
                    return message
            received = os.read(self._source, 1 << 16)
            assert received, "the agent's end of the pipe is closed"
            self._messages += self._reader.feed(received)

    def close(self) -> None:
        self.agent.close()
        os.close(self._source)


@pytest.fixture
def answers() -> Iterator[Answers]:
    result = Answers()
    yield result
    result.close()


def messages_of(folder: JobFolder) -> list[Any]:
    return [REPLIES.decode(frame) for frame in SpooledFrames(folder.frames, 0).new()]


def test_that_a_job_is_made_and_taken_once() -> None:
    order = StartRun(JOB, {"task": "digits"})
    folder = JobFolder(JOB)
    folder.make(order)
    folder.make(StartRun(JOB, {"task": "another"}))
    assert folder.order() == order
    assert [folder.claim(), folder.claim(), JobFolder(JOB).claim()] == [True, False, False]
    assert [path.name for path in folder.path.parent.iterdir()] == [JOB]


def test_that_a_part_of_a_run_begins_once_and_only_after_the_end_of_the_one_before() -> None:
    running = make_job([[step(1)]])
    with pytest.raises(OrderError, match="the run has not ended"):
        running.begin_part(1)
    JobConnection(running, after=1).send([RunEnded(1.0, "stopped")])
    first, second = JobFolder(JOB), JobFolder(JOB)
    parts = [first.begin_part(1), second.begin_part(1)]
    assert [part.part_number for part in parts] == [1, 1]
    with pytest.raises(OrderError, match="the run has not ended"):  # nor has its part 1 begun
        JobFolder(JOB).begin_part(2)
    assert [part.claim() for part in parts] == [True, False]
    JobConnection(parts[0]).send([step(1)])
    assert [message.number for message in messages_of(JobFolder(JOB))] == [1]
    assert all_jobs()[0].part == 1
    assert JobFolder(JOB).is_running


def test_that_a_run_without_a_checkpoint_is_not_let_go_on(answers: Answers) -> None:
    real_job(3)
    answers.agent.obey(ResumeRun(JOB, 1))
    assert "has completed its 3 steps" in answers.until(Refused).message
    assert JobFolder(JOB).part_number == 0


@pytest.mark.parametrize("job", ["", "../../etc", "0" * 31, "G" * 32, "0" * 33, "0" * 31 + "/"])
def test_that_the_name_of_a_job_is_no_path(job: str) -> None:
    with pytest.raises(OrderError, match="32 hexadecimal digits"):
        JobFolder(job)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/x", "a/../b", "a//b", "a\\b", "C:x", "a/", ".x", "x" * 200])
def test_that_the_name_of_a_file_stays_inside(name: str) -> None:
    assert not is_file_name(name)


def test_that_a_sent_file_is_what_was_sent() -> None:
    with pytest.raises(OrderError, match="did not arrive as it was sent"):
        JobFolder(JOB).make(StartRun(JOB, {}, "", (SentFile("task.py", "0" * 64, b"x = 1"),)))
    assert not JobFolder(JOB).exists


def test_that_a_message_that_the_disk_does_not_take_leaves_whole_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_job([])
    connection, write = JobConnection(folder), os.write
    connection.send([step(1)])

    def full() -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runner.os, "write", lambda file, data: write(file, data[:20]) if len(data) > 60 else full())  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="No space"):
        connection.send([step(2)])
    monkeypatch.undo()
    connection.send([step(3)])
    numbers = [(message.number, message.events[0].step) for message in messages_of(folder)]
    assert numbers == [(1, 1), (2, 3)]


def test_that_rows_of_tensors_end_at_a_size_and_all_else_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MOST_TENSOR_BYTES", 2000)
    folder = make_job([])
    connection = JobConnection(folder)
    row = TensorStats(1, 0.1, "gradient", ("w",), (1,), os.urandom(1500), os.urandom(1024))
    for number in range(1, 4):
        connection.send([step(number), row])
    kinds = [[type(event).__name__ for event in message.events] for message in messages_of(folder)]
    assert kinds == [["Incident"], ["StepDone"], ["StepDone"], ["StepDone"]]
    assert len(list(SpooledFrames(folder.rows, 0).new())) == 1
    note = messages_of(folder)[0].events[0]
    assert isinstance(note, Incident)
    assert "the run file has all of them" in note.message


def test_that_what_a_command_prints_is_told_in_order() -> None:
    folder = JobFolder(JOB)
    folder.make(StartCommand(JOB, ("detect",)))
    folder.claim()
    connection = JobConnection(folder)
    connection.text("stdout", "a line\n")
    connection.text("stderr", "x" * 70_000)
    connection.end(1)
    kinds = [(type(message).__name__, message.number) for message in messages_of(folder)]
    assert kinds == [("JobOutput", 1), ("JobOutput", 2), ("JobOutput", 3), ("CommandEnded", 4)]
    assert not folder.is_running


def test_that_a_killed_run_gets_its_end_from_its_file_and_the_file_is_completed(answers: Answers) -> None:
    folder = JobFolder(JOB)
    folder.make(StartRun(JOB, {"task": "digits", "precision": "fp32"}))
    program = _TRAINS.format(job=JOB)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    answers.agent.obey(AttachJob(JOB))
    answers.until(JobEvents)
    with folder.frames.open("ab") as frames:
        frames.write(b"pcgf\x01 the beginning of a frame"[:20])
    process.kill()
    process.wait()
    process.stdout.close()
    ended = answers.until(JobEvents, lambda message: isinstance(message.events[-1], RunEnded)).events[-1]
    assert (ended.status, "without a last word" in ended.message) == ("failed", True)
    with open_run(folder.out / RUN_FILE) as saved:
        assert (saved.status, saved.steps, saved.run_id) == ("failed", 1, JOB)


def test_that_orders_that_cannot_be_carried_out_are_refused_in_one_sentence(answers: Answers) -> None:
    orders = {
        AttachJob(JOB): "there is no job",
        StopJob("../x"): "32 hexadecimal digits",
        StartCommand(JOB, ("formats", "x")): "a place runs the commands detect, bench, profile, sweep",
        StartCommand(JOB, ()): "a place runs the commands",
    }
    for order, sentence in orders.items():
        answers.agent.obey(order)
        assert sentence in answers.until(Refused).message
    answers.agent.obey(StartRun(JOB, {"task": "digits", "precision": "fp99"}))
    assert "precision" in answers.until(Refused).message
    answers.agent.obey(StartRun(JOB, {"task": "mine.py:make_task"}))
    assert "mine.py was not sent" in answers.until(Refused).message
    answers.agent.obey(StartRun(JOB, {"task": "evilmod:make_task"}))
    assert "evilmod:make_task was not sent" in answers.until(Refused).message
    assert all_jobs() == []


def test_that_a_list_names_jobs_and_their_files() -> None:
    ended_job()
    (line,) = all_jobs()
    assert (line.job, line.kind, line.title, line.is_running, line.files) == (
        JOB,
        "run",
        "digits, fp32",
        False,
        (RUN_FILE,),
    )
    JobFolder(JOB).remove()
    assert all_jobs() == []
