"""The names of the checkpoints of a run: files beside its own from which it can go on."""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Collection, Iterator
from pathlib import Path

KEPT = 2  # the newest ones of a run
_NAME = re.compile(r"\.checkpoint-(\d{6,10})(?:\.rank-(\d{4}))?\.safetensors")


def checkpoint_path(run: Path, step: int, rank: int = 0) -> Path:
    """The checkpoint after a step of the run in a file: `RUN.h5.checkpoint-000042.safetensors`.

    Of a run of several processes it is the first one's; the others have `.rank-0001` in theirs, and so on.
    """
    part = f".rank-{rank:04d}" if rank else ""
    return run.with_name(f"{run.name}.checkpoint-{step:06d}{part}.safetensors")


def part_of_rank(checkpoint: Path, rank: int) -> Path:
    """The part of a checkpoint that a rank has written; the checkpoint itself is that of the first one."""
    return checkpoint.with_name(f"{checkpoint.stem}.rank-{rank:04d}{checkpoint.suffix}") if rank else checkpoint


def remove_checkpoints(run: Path) -> None:
    """Delete the checkpoints of a run that has completed."""
    for path in all_checkpoint_files(run):
        with contextlib.suppress(OSError):  # a file more is no reason to fail
            path.unlink()


def all_checkpoint_files(run: Path) -> list[Path]:
    """All files of the checkpoints of a run, those of its further processes included, also of unfinished ones."""
    return [path for path, _, _ in _found(run)]


def files_of_other_steps(run: Path, kept: Collection[int]) -> list[Path]:
    """The checkpoint files of all steps but these."""
    return [path for path, step, _ in _found(run) if step not in kept]


def checkpoint_files(run: Path) -> dict[int, Path]:
    """The checkpoints beside a run file by their steps, newest first; their content is not looked at."""
    return dict(sorted(((step, path) for path, step, rank in _found(run) if not rank), reverse=True))


def _found(run: Path) -> Iterator[tuple[Path, int, int]]:
    """Each file with its step and rank."""
    for path in run.parent.glob(f"{glob.escape(run.name)}.checkpoint-*.safetensors"):
        if (match := _NAME.fullmatch(path.name.removeprefix(run.name))) and path.is_file():
            yield path, int(match[1]), int(match[2] or 0)
