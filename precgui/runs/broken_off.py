"""Runs that have not completed, and the checkpoints from which they can go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precgui.checkpoint_files import checkpoint_files
from precgui.config.names import OWN_LOOP, no_start
from precgui.config.tree import RunConfig
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import SavedRun, open_run
from precgui.sanitize import one_line
from precgui.sentences import L_, Sentence, filled

_MOST_MESSAGE = 300
_STOPPED = L_("goes on from its checkpoint after step {step}; it was stopped after step {last}")
_NOT_RECORDED = L_("goes on from its checkpoint after step {step}; its record had stopped after step {last}")
_FAILED = L_("goes on from its checkpoint after step {step}; it had failed after step {last}")


@dataclass(frozen=True)
class BrokenOff:
    """A run with `steps` recorded of `total_steps`. `checkpoints` are the usable ones by step, newest first."""

    path: Path
    run_id: str
    config: RunConfig
    created: str
    machine: Mapping[str, Any]
    environment: Mapping[str, Any]
    status: str
    message: str
    steps: int
    total_steps: int
    checkpoints: Mapping[int, Path]

    @property
    def trained_as(self) -> RunConfig:
        """The config with the number of threads that it trained with: sums depend on it."""
        threads = self.environment.get("threads")
        return self.config.model_copy(update={"threads": threads}) if isinstance(threads, int) else self.config

    def sentence(self, step: int) -> str:
        """The break in words, for a run that goes on after `step`."""
        template = {"stopped": _STOPPED, "completed": _NOT_RECORDED}.get(self.status, _FAILED)
        goes_on = filled(template, step=step, last=self.steps)
        if not self.message:
            return goes_on
        return Sentence("{sentence} ({message})", sentence=goes_on, message=one_line(self.message, _MOST_MESSAGE))

    def as_fact(self, step: int) -> dict[str, Any]:
        """The break as it is recorded: the last step that was kept, and how the part before it had ended."""
        return {"step": step, "lost_steps": self.steps - step, "status": self.status, "message": self.message}


def broken_off(path: Path) -> BrokenOff:
    """How the run in a file can go on. Raises RunFileError, one sentence, where it cannot."""
    with open_run(path) as run:
        if why := why_not(run):
            raise RunFileError(why)
        usable = {step: file for step, file in checkpoint_files(path).items() if step <= run.steps}
        return BrokenOff(
            path, run.run_id, run.config, run.created, run.machine, run.environment, run.status, run.message,
            run.steps, run.total_steps, usable,
        )  # fmt: skip


def can_go_on(path: Path, status: str | None) -> bool:
    """Whether a run that has ended is not complete and has a checkpoint; a look at names alone, for buttons."""
    return status in ("stopped", "failed") and bool(checkpoint_files(path))


def why_not(run: SavedRun) -> str:
    """Why a run cannot go on, as a sentence; empty where it can."""
    path, config = run.path, run.config
    if run.status == "running":
        return Sentence("{file} is still being written; stop that run first.", file=path)
    if config.task == OWN_LOOP:
        return Sentence("{clause}.", clause=no_start(str(path)))
    if run.status == "completed":
        return Sentence("{file} has completed its {steps} steps; nothing is left to train.", file=path, steps=run.steps)
    if not any(step <= run.steps for step in checkpoint_files(path)):
        if config.train.checkpoint_every:
            return Sentence(
                "{file} has no checkpoint beside it from which it could go on: it ended before the first one was due "
                "(train.checkpoint_every = {steps}), or it was removed; run it again.",
                file=path,
                steps=config.train.checkpoint_every,
            )
        return Sentence(
            "{file} has no checkpoint beside it from which it could go on; run it again, with train.checkpoint_every "
            "for the next time.",
            file=path,
        )
    return ""
