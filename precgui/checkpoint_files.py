"""The names of the checkpoints of a run: files beside its own from which it can go on."""

from __future__ import annotations

import contextlib
import glob
import re
from pathlib import Path

KEPT = 2  # the newest ones of a run
_NAME = re.compile(r"\.checkpoint-(\d{6,10})\.safetensors")


def checkpoint_path(run: Path, step: int) -> Path:
    """The checkpoint after a step of the run in a file: `RUN.h5.checkpoint-000042.safetensors`."""
    return run.with_name(f"{run.name}.checkpoint-{step:06d}.safetensors")


def remove_checkpoints(run: Path) -> None:
    """Delete the checkpoints of a run that has completed."""
    for path in checkpoint_files(run).values():
        with contextlib.suppress(OSError):  # a file more is no reason to fail
            path.unlink()


def checkpoint_files(run: Path) -> dict[int, Path]:
    """The checkpoints beside a run file by their steps, newest first; their content is not looked at."""
    found = {}
    for path in run.parent.glob(f"{glob.escape(run.name)}.checkpoint-*.safetensors"):
        if (match := _NAME.fullmatch(path.name.removeprefix(run.name))) and path.is_file():
            found[int(match[1])] = path
    return dict(sorted(found.items(), reverse=True))
