"""Writes a checkpoint of the run at regular intervals, and where it is stopped; keeps the newest two."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from precgui.checkpoint_files import KEPT, checkpoint_files, checkpoint_path
from precgui.config.intervals import StepInterval, interval
from precgui.engine.checkpoint.file import Checkpoint, write_checkpoint
from precgui.engine.checkpoint.random_state import random_states
from precgui.engine.checkpoint.resume import origin
from precgui.engine.checkpoint.state import training_state
from precgui.engine.hook import LoopHook, TrainingRun, do_nothing
from precgui.events import CheckpointDue, StepDone

_DEAREST = 0.01  # of the time since the last one that a checkpoint by minutes may have taken
_RESERVE_BYTES = 96 << 20  # left to the run file on their disk, whose recording stops below 64 MB


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


class Checkpoints(LoopHook):
    """The last hook: the state after a step is what all others have left.

    Before the file gets its name the record of the run is written out, so that no checkpoint is ahead of it. Who keeps
    the record deletes the files of a run that has completed.
    """

    def __init__(self, run: TrainingRun, file: Path, every: StepInterval) -> None:
        self._run, self._file, self._every = run, file, every
        self._origin: dict[str, Any] | None = None
        self._epoch_random: dict[str, Any] = {}
        self._epoch_began = 0  # step before the first one of the epoch
        self._ended_epoch: tuple[int, dict[str, Any]] = 0, {}  # random state after its last step
        self._written_step, self._written_s, self._cost_s = run.step, time.monotonic(), 0.0
        self._told = ""
        self._identity: tuple[int, int] | None = None  # of the run file, once it has its place

    @classmethod
    def make(cls, run: TrainingRun) -> Self | None:
        file, every = run.journal.run_file, interval(run.config.train.checkpoint_every)
        return cls(run, file, every) if file is not None and every is not None else None

    def begin_epoch(self, epoch: int) -> None:
        run = self._run
        self._epoch_random = random_states(run.parts.device, run.parts.task)
        made = run.resumed.steps_in_epoch if run.resumed is not None else 0
        self._epoch_began = run.step - made
        self._identity = self._identity or _identity(self._file)

    def reads_now(self, step: int) -> bool:
        return self._is_due()

    def leave_step(self) -> Callable[[StepDone], None]:
        return do_nothing

    def end_step(self, done: StepDone) -> None:
        if self._is_due():
            self._write(random_states(self._run.parts.device, self._run.parts.task))

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        parts = self._run.parts
        self._ended_epoch = self._run.step, random_states(parts.device, parts.task)
        yield

    def end_steps(self) -> None:
        """Of a run that somebody has stopped; one that ended itself has nothing to go on for."""
        run = self._run
        if run.stop_reason or not self._written_step < run.step < run.total_steps:
            return
        step, state = self._ended_epoch
        self._write(state if step == run.step else random_states(run.parts.device, run.parts.task))

    def _is_due(self) -> bool:
        run = self._run
        if run.step >= run.total_steps or run.stop_reason:
            return False
        if self._every.steps:
            return run.step % self._every.steps == 0
        return time.monotonic() - self._written_s >= max(self._every.seconds, self._cost_s / _DEAREST)

    def _write(self, random: dict[str, Any]) -> None:
        begin = time.monotonic()
        run, path = self._run, checkpoint_path(self._file, self._run.step)
        if why := self._fault(path, random):
            if why != self._told:
                run.journal.note(run.step, f"no checkpoint was kept: {why}")
            self._told = why
        else:
            self._written_step = run.step
            self._remove_others()
        self._written_s = time.monotonic()
        self._cost_s = self._written_s - begin

    def _fault(self, path: Path, random: dict[str, Any]) -> str:
        """Write the file; why that cannot be done, or ''."""
        run = self._run
        if _identity(self._file) != self._identity:  # given up by others, who may train it again under its name
            return "the file of the run was moved or replaced"
        self._origin = self._origin or origin(run)
        time_s = run.journal.now()
        try:
            checkpoint = Checkpoint(
                run.step, time_s, run.epoch, run.step - self._epoch_began, self._origin, training_state(run),
                self._epoch_random, random,
            )  # fmt: skip
            size = sum(tensor.numel() * tensor.dtype.itemsize for tensor in checkpoint.packed()[0].values())
            if free_bytes(path.parent) < size + _RESERVE_BYTES:
                return f"it takes {size >> 20} MB, for which the disk of {path.parent} has no room"
            run.journal.emit(CheckpointDue(run.step, time_s))
            write_checkpoint(path, checkpoint)
        except OSError as error:
            return f"the file could not be written ({error.strerror or error})"
        except TypeError as error:
            return f"{error}, which no checkpoint holds"
        return ""

    def _remove_others(self) -> None:
        """Delete all but the newest ones, and those of later steps that this run has not made yet."""
        files = checkpoint_files(self._file)
        made = [step for step in files if step <= self._run.step]
        for step in {*files} - {*made[:KEPT]}:
            with contextlib.suppress(OSError):
                files[step].unlink()
