"""The window's only access to the engine: a thread that runs a child process and relays its events.

All that may block is done in the thread: starting the process, reading the pipe, repairing the file of a crashed
process. Batches of events are appended to `inbox`, a deque that the window empties by timer.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject

from precgui.config import RunConfig
from precgui.gui.workers.kept_thread import ManagedThread
from precgui.process.child import ChildTask
from precgui.process.supervised import DeathWords, ProcessEnd, Supervised, task_process
from precgui.runs.training_process import TrainingProcess
from precgui.words import L_

if TYPE_CHECKING:
    from precgui.places.placed_job import PlacedRun
    from precgui.places.settings import NamedPlace

KILL_AFTER_S = 0.9  # after Stop; the child itself gives up a stuck step after `child.GRACE_S`
WORDS = DeathWords(L_("the engine process"), L_("the engine process"), L_("the system was probably out of memory"))


class ChildThread(ManagedThread):
    """One supervised process. Launch it early: it imports torch and then waits for its order.

    `finished` comes when the process has ended and its last event is in `inbox`.
    """

    def __init__(self, parent: QObject | None = None, process: Supervised | None = None) -> None:
        super().__init__(parent)
        self.inbox: collections.deque[Any] = collections.deque()
        self.process = process or task_process(KILL_AFTER_S)

    @property
    def ready(self) -> bool:
        return self.process.ready

    @property
    def stopping(self) -> bool:
        return self.process.stopping

    @property
    def pid(self) -> int | None:
        """The id of the process; None before its start."""
        return self.process.pid

    def begin_task(self, task: str, arguments: Mapping[str, Any]) -> None:
        """Give the process the work of "module:function" of precgui; it is kept in the pipe until it is ready."""
        self.process.send(ChildTask(task, arguments))

    def stop(self) -> None:
        """Ask the task to end; the process is gone within `KILL_AFTER_S`, whatever it does."""
        self.process.stop()

    def dismiss(self) -> None:
        """End a process that waits for work."""
        self.process.kill()

    def run(self) -> None:
        self.process_ended(self.process.run(self.take))

    def take(self, batch: list[Any]) -> None:
        """Called in this thread with events that the process has sent together."""
        self.inbox.append(batch)

    def process_ended(self, end: ProcessEnd) -> None:
        """Called in this thread when the process is gone."""


class RunThread(ChildThread):
    """A child process that trains; the run file is completed after a crash, too."""

    place: NamedPlace | None = None  # of a run that does not train on this machine
    link_state = ""  # of that place, in one sentence; empty while the link is well
    let_go = ""  # why the run goes on there without this thread; empty while it does not

    def __init__(self, parent: QObject | None = None, process: Supervised | None = None) -> None:
        super().__init__(parent, process)
        self._training = TrainingProcess(self.process, WORDS)

    def begin_run(self, config: RunConfig, path: Path, run_id: str, *, goes_on: bool = False) -> None:
        self._training.begin(config, path, run_id, goes_on=goes_on)

    def detach(self) -> None:
        """Let go of a run at a place, which goes on."""

    def goes_on(self, path: Path) -> PlacedRun | None:
        """The run as a later thread may take it up, with its file at `path`; None where it has ended."""
        return None

    def take(self, batch: list[Any]) -> None:
        super().take(batch)
        self._training.watch(batch)

    def process_ended(self, end: ProcessEnd) -> None:
        if (ended := self._training.lost(end)) is not None:
            self.inbox.append([ended])
