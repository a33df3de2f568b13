"""Writes a checkpoint of the run at regular intervals, and where it is stopped; keeps the newest two."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from precgui.checkpoint_files import KEPT, checkpoint_files, checkpoint_path, files_of_other_steps
from precgui.config.intervals import StepInterval, interval
from precgui.config.parallel import carries_residuals
from precgui.engine.checkpoint.file import RunCheckpoint, write_checkpoint
from precgui.engine.checkpoint.random_state import random_states
from precgui.engine.checkpoint.resume import origin
from precgui.engine.checkpoint.state import training_state
from precgui.engine.hook import LoopHook, RankExchange, TrainingRun, do_nothing
from precgui.engine.tasks.base import Batch
from precgui.events import CheckpointDue, StepDone
from precgui.sentences import L_, Sentence, message_of

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
    the record deletes the files of a run that has completed. Of several processes each writes its own part; the first
    one writes its own, which counts, when all others are there.
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
        if file is None or every is None:
            return None
        if carries_residuals(run.config.parallel):
            run.parts.precision.notes.append(
                Sentence(
                    "no checkpoint is kept: gradients in {gradient_format} carry what rounding took from bucket to "
                    "bucket, which no checkpoint holds",
                    gradient_format=run.config.parallel.gradient_format,
                )
            )
            return None
        return cls(run, file, every)

    def begin_epoch(self, epoch: int) -> None:
        run = self._run
        self._epoch_random = random_states(run.parts.device, run.parts.task)
        made = run.resumed.steps_in_epoch if run.resumed is not None else 0
        self._epoch_began = run.step - made
        self._identity = self._identity or _identity(self._file)

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        self._run.wants_checkpoint = self._is_due()

    def reads_now(self, step: int) -> bool:
        return self._run.wants_checkpoint

    def leave_step(self) -> Callable[[StepDone], None]:
        return do_nothing

    def end_step(self, done: StepDone) -> None:
        if self._run.wants_checkpoint and self._run.step < self._run.total_steps and not self._run.stop_reason:
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
        """Whether one is written after the present step; of several processes the first one's clock counts."""
        run = self._run
        if self._every.steps:
            return run.step % self._every.steps == 0
        return time.monotonic() - self._written_s >= max(self._every.seconds, self._cost_s / _DEAREST)

    def _write(self, random: dict[str, Any]) -> None:
        begin = time.monotonic()
        run = self._run
        if why := self._fault(random) if run.group is None else self._fault_of_ranks(run.group, random):
            if why != self._told:
                run.journal.note(run.step, Sentence("no checkpoint was kept: {why}", why=why))
            self._told = why
        else:
            self._written_step = run.step
            if run.group is None or run.group.rank == 0:
                self._remove_others()
        self._written_s = time.monotonic()
        self._cost_s = self._written_s - begin

    def _fault_of_ranks(self, group: RankExchange, random: dict[str, Any]) -> str:
        """Write the parts of all processes, that of the first one last. Collective."""
        own = self._fault(random) if group.rank else ""
        wrote = [not row[0] for row in group.exchange([float(bool(own))])]
        if not group.rank:
            parts = {rank: checkpoint_path(self._file, self._run.step, rank) for rank in range(1, group.world)}
            missing = [rank for rank, part in parts.items() if not (wrote[rank] and part.is_file())]
            own = (
                Sentence(
                    "the part of rank {rank} is not in {folder}; it has no room there, or its host does not "
                    "share this folder",
                    rank=missing[0],
                    folder=self._file.parent,
                )
                if missing
                else self._fault(random)
            )
        failed = bool(group.exchange([float(bool(own))])[0][0])
        if failed and group.rank:
            with contextlib.suppress(OSError):
                checkpoint_path(self._file, self._run.step, group.rank).unlink()
        return own or (L_("the first rank could not") if failed else "")

    def _fault(self, random: dict[str, Any]) -> str:
        """Write the file of this process; why that cannot be done, or ''."""
        run = self._run
        path = checkpoint_path(self._file, run.step, run.group.rank if run.group is not None else 0)
        # Given up by others, who may train it again under its name.
        if run.group is None and _identity(self._file) != self._identity:
            return L_("the file of the run was moved or replaced")
        self._origin = self._origin or origin(run)
        time_s = run.journal.now()
        try:
            checkpoint = RunCheckpoint(
                run.step, time_s, run.epoch, run.step - self._epoch_began, self._origin, training_state(run),
                self._epoch_random, random,
            )  # fmt: skip
            size = sum(tensor.numel() * tensor.dtype.itemsize for tensor in checkpoint.packed()[0].values())
            if free_bytes(path.parent) < size + _RESERVE_BYTES:
                return Sentence(
                    "it takes {megabytes} MB, for which the disk of {folder} has no room",
                    megabytes=size >> 20,
                    folder=path.parent,
                )
            run.journal.emit(CheckpointDue(run.step, time_s))
            write_checkpoint(path, checkpoint)
        except OSError as error:
            return Sentence("the file could not be written ({why})", why=error.strerror or str(error))
        except TypeError as error:
            return Sentence("{error}, which no checkpoint holds", error=message_of(error))
        return ""

    def _remove_others(self) -> None:
        """Delete all but the newest ones, and those of later steps that this run has not made yet."""
        made = [step for step in checkpoint_files(self._file) if step <= self._run.step]
        for path in files_of_other_steps(self._file, made[:KEPT]):
            with contextlib.suppress(OSError):
                path.unlink()
