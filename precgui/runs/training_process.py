"""A child process that trains one run: its task, its end, and its file completed when it died without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from precgui.config.tree import RunConfig
from precgui.events import RunEnded
from precgui.process.child import RUN_TASK, ChildTask
from precgui.process.supervised import DeathWords, ProcessEnd, Supervised
from precgui.runs.file.repair import complete
from precgui.runs.held_power_limit import restore_left_limits


class TrainingProcess:
    """`ended` is the last event of the run, once it has come."""

    def __init__(self, process: Supervised, words: DeathWords) -> None:
        self._process, self._words = process, words
        self._path: Path | None = None
        self.ended: RunEnded | None = None

    def begin(self, config: RunConfig, path: Path, run_id: str, *, goes_on: bool = False) -> None:
        """Give the process its run, or a broken one to go on with; kept in the pipe until the process is ready."""
        self._path = path
        arguments = {"config": config.model_dump(), "path": str(path), "run_id": run_id, "goes_on": goes_on}
        self._process.send(ChildTask(RUN_TASK, arguments))

    def watch(self, batch: list[Any]) -> None:
        """Note the end of the run among its events."""
        if isinstance(batch[-1], RunEnded):
            self.ended = batch[-1]

    def lost(self, end: ProcessEnd) -> RunEnded | None:
        """The end of a run whose process did not send one, its file completed; None where nothing was lost."""
        if self._path is None or self.ended is not None:
            return None
        ended = end.run_ended(self._words)
        restore_left_limits()
        if self._path.exists():
            complete(self._path, ended)
        return ended
