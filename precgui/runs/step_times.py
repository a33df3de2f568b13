"""The time of a step here or at a place, one small file for each kind of run, to estimate a run before it starts."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from precgui import paths
from precgui.config.tree import RunConfig
from precgui.runs.run import Run
from precgui.runs.summary import summarise
from precgui.runs.timing import RunTiming, timing_of
from precgui.safe_open import replace_file

_FOLDER = "step-times"
_MOST_RUNS = 24  # whose times are kept for a kind of run
_FEWEST_STEPS = 5  # the first steps warm caches up
# What a step costs does not depend on these.
_FREE = {
    "": ("title", "seed", "precision"),
    "train": ("epochs", "max_steps", "clip_norm", "deterministic", "save_to", "save_average", "checkpoint_every"),
    "optimizer": ("lr", "momentum", "eps", "weight_decay", "schedule"),
}


@dataclass(frozen=True)
class StepTime:
    """Measured in a run of the same work: median seconds of a step, data included, and the steps of an epoch."""

    step_s: float
    steps_per_epoch: int
    measured: str  # the day
    precision: str


@dataclass(frozen=True)
class TimedRow:
    """The timing of one run with its seed and the folder of its file, by which runs of a study are paired."""

    folder: str
    seed: int
    timing: RunTiming


def keep_step_time(run: Run, place: str = "") -> None:
    """Remember the step time of a run of this machine or of a place that has come far enough. Raises OSError.

    `place` is the name of its place where its environment does not tell it yet.
    """
    steps = len(run.series("loss")[1])
    step_s, place = _step_s(run), place or str(run.environment.get("place") or "")
    if not place and run.machine.get("host", socket.gethostname()) != socket.gethostname():
        return
    if step_s is None or steps < _FEWEST_STEPS or not run.steps_per_epoch or run.path is None:
        return
    path = _path(run.config, run.config.precision, place)
    own = {"run_id": run.run_id, "folder": str(run.path.parent), "seed": run.config.seed, **asdict(timing_of(run))}
    others = [each for each in _timed_rows(path) if each.get("run_id") != run.run_id]
    row = {"step_s": step_s, "steps_per_epoch": run.steps_per_epoch, "measured": run.created[:10]}
    row["runs"] = [*others[1 - _MOST_RUNS :], own]
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(row).encode())


def step_time(config: RunConfig, precision: str, place: str = "") -> StepTime | None:
    """The step time kept for this work in a precision, here or at a place; None where none was measured or its file is
    damaged."""
    try:
        row = json.loads(_path(config, precision, place).read_text(encoding="utf-8"))
        step_s, steps = float(row["step_s"]), int(row["steps_per_epoch"])
        return StepTime(step_s, steps, str(row["measured"])[:10], precision) if step_s > 0 and steps > 0 else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def timed_runs(config: RunConfig, precision: str) -> list[TimedRow]:
    """The newest runs of this work in a precision that were timed here, the newest last; damaged rows are left out."""
    return [row for each in _timed_rows(_path(config, precision)) if (row := _timed(each)) is not None]


def _timed_rows(path: Path) -> list[dict[str, Any]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["runs"]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _timed(row: Mapping[str, Any]) -> TimedRow | None:
    try:
        texts = {name: str(row[name]) for name in ("host", "device", "device_kind", "emulated")}
        numbers = {name: None if row[name] is None else float(row[name]) for name in ("step_s", "cpu_s", "pressure")}
        threads = None if row["threads"] is None else int(row["threads"])
        timing = RunTiming(threads=threads, **texts, **numbers)  # type: ignore[arg-type]
        return TimedRow(str(row["folder"]), int(row["seed"]), timing)
    except (ValueError, TypeError, KeyError):
        return None


def total_steps(config: RunConfig, steps_per_epoch: int) -> int:
    """The steps that a run of this config takes, where an epoch has so many."""
    steps = config.train.epochs * steps_per_epoch
    return min(steps, config.train.max_steps or steps)


def _step_s(run: Run) -> float | None:
    summary = summarise(run)
    rate, samples = summary["samples_per_s"], run.series("samples")[1]
    return float(samples.sum() / rate / len(samples)) if rate and len(samples) else None


def _path(config: RunConfig, precision: str, place: str = "") -> Path:
    key = json.dumps([_work(config), precision, *([place] if place else [])], sort_keys=True)
    return paths.state_dir() / _FOLDER / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _work(config: RunConfig) -> Mapping[str, Any]:
    """The settings on which the time of a step depends, other than the precision."""
    tree = config.model_dump(mode="json")
    for section, names in _FREE.items():
        branch = tree[section] if section else tree
        for name in names:
            branch.pop(name, None)
    for section in ("precision_options", "scaling", "qat"):
        tree.pop(section)
    return tree
