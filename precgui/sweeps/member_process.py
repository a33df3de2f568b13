"""One run in a process of its own: started, relayed, stopped; its file is repaired after a crash."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from precgui.config import RunConfig
from precgui.events import Event, RunEnded
from precgui.process.supervised import DeathWords, task_process
from precgui.runs.training_process import TrainingProcess
from precgui.sentences import L_
from precgui.sweeps.state import RUN_PROCESS

KILL_AFTER_S = 3.0  # after a stop; the child gives up a step that does not end in `child.GRACE_S`
WORDS = DeathWords(RUN_PROCESS, L_("the process"), L_("somebody ended it, or the system was out of memory"))


class TrainMember(Protocol):
    """Trains one run into the file `path` until it has ended, as `run_in_process` does."""

    def __call__(
        self,
        config: RunConfig,
        path: Path,
        emit: Callable[[Event], None],
        stopped: Callable[[], bool],
        *,
        goes_on: bool = False,
    ) -> RunEnded: ...


def run_in_process(
    config: RunConfig, path: Path, emit: Callable[[Event], None], stopped: Callable[[], bool], *, goes_on: bool = False
) -> RunEnded:
    """Train in a new process until it has ended, or go on with a broken run; its events go to `emit`.

    Returns how it ended, also when it died.
    """
    process = task_process(KILL_AFTER_S)
    training = TrainingProcess(process, WORDS)
    training.begin(config, path, uuid.uuid4().hex, goes_on=goes_on)

    def take(batch: list[Event]) -> None:
        training.watch(batch)
        for event in batch:
            emit(event)

    lost = training.lost(process.run(take, stopped))
    ended = training.ended or lost
    assert ended is not None
    return ended
