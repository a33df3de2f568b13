"""An agent in a thread of the test, behind the streams of a process: its link can be cut at any byte, or freeze."""

from __future__ import annotations

import os
import threading
from typing import BinaryIO

import pytest

from precgui.config import build
from precgui.events import Event, RunEnded, RunStarted, StepDone
from precgui.places import link
from precgui.places.agent import serve
from precgui.places.jobs import RUN_FILE, JobFolder
from precgui.places.messages import StartRun
from precgui.places.runner import JobConnection
from precgui.places.settings import NamedPlace
from precgui.runs.file.writer import RunWriter

JOB = "0123456789abcdef" * 2
PLACE = NamedPlace("gpu1", ("an-agent",))


class PlayedProcess:
    """`cut_after`: bytes from the agent after which the link is gone; with `freezes` it is silent then instead."""

    def __init__(self, cut_after: int | None = None, *, freezes: bool = False) -> None:
        self._freezes, self._killed = freezes, threading.Event()
        orders, self._stdin = os.pipe()
        self._answers, answers = os.pipe()
        near, self._far = os.pipe()
        error, self._error = os.pipe()
        self._orders, self._left = orders, cut_after
        self.stdin: BinaryIO = os.fdopen(self._stdin, "wb")
        self.stdout: BinaryIO = os.fdopen(near, "rb")
        self.stderr: BinaryIO = os.fdopen(error, "rb")
        self.threads = [
            threading.Thread(target=self._serve, args=(answers,)), threading.Thread(target=self._relay)
        ]  # fmt: skip
        for thread in self.threads:
            thread.start()

    def _serve(self, answers: int) -> None:
        serve(self._orders, answers)
        os.close(answers)
        os.close(self._orders)

    def _relay(self) -> None:
        while data := os.read(self._answers, 1 << 16):
            if self._left is not None:
                data, self._left = data[: self._left], self._left - len(data)
            try:
                os.write(self._far, data)
            except OSError:
                break
            if self._left is not None and self._left <= 0:
                if self._freezes:
                    self._killed.wait()
                break
        for descriptor in (self._answers, self._far, self._error):
            os.close(descriptor)

    def poll(self) -> int | None:
        return None if any(thread.is_alive() for thread in self.threads) else 0

    def wait(self, timeout: float | None = None) -> int:
        for thread in self.threads:
            thread.join(timeout)
        return 0

    def kill(self) -> None:
        """Its threads end when their streams do."""
        self._killed.set()


class PlayedAgents:
    """The agents that a test has, one for each connection; `cuts` are those of the first ones, see PlayedProcess."""

    def __init__(self, patch: pytest.MonkeyPatch, cuts: list[int | None], *, freezes: bool = False) -> None:
        self.cuts, self.freezes, self.started = cuts, freezes, 0
        patch.setattr(link, "start_command", self._start)
        patch.setattr("precgui.places.placed_job.FIRST_WAIT_S", 0.01)

    def _start(self, place: NamedPlace) -> PlayedProcess:
        self.started += 1
        return PlayedProcess(self.cuts.pop(0) if self.cuts else None, freezes=self.freezes)


def step(number: int) -> StepDone:
    return StepDone(number, 0.1 * number, 1 / number, 1.0, False, 0.1, 1.0, 0.01, 0.0, 64, 0.0)


def make_job(events: list[list[Event]], *, job: str = JOB) -> JobFolder:
    """A job whose process is that of the test, with these messages."""
    folder = JobFolder(job)
    folder.make(StartRun(job, {"task": "digits", "precision": "fp32"}))
    assert folder.claim()
    connection = JobConnection(folder)
    for batch in events:
        connection.send(batch)
    return folder


def real_job(steps: int, *, ends: bool = True) -> JobFolder:
    """A job with a run file of its own; with `ends` the run has completed."""
    folder = make_job([])
    connection = JobConnection(folder)
    config = build({"title": "far away", "precision": "fp32"})
    with RunWriter(
        folder.out / RUN_FILE, config, run_id=JOB, created="2026-03-01T12:00:00+00:00", machine={}, environment={}
    ) as writer:
        for event in (RunStarted(0.0, steps, steps, "cpu"), *map(step, range(1, steps + 1))):
            writer(event)
            connection.send([event])
        if ends:
            writer(ended := RunEnded(9.0, "completed"))
    if ends:
        connection.send([ended])
    return folder


def ended_job(content: bytes = b"content of a file") -> JobFolder:
    folder = make_job([[step(number)] for number in range(1, 40)])
    (folder.out / RUN_FILE).write_bytes(content)
    connection = JobConnection(folder, after=39)
    connection.send([RunEnded(4.0, "completed")])
    return folder
