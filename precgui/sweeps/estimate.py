"""Before and while a sweep runs: how long it takes here, and which difference so many seeds can tell apart."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from precgui.config import RunConfig
from precgui.config.names import IMAGE_TASKS
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.runs.verdict.looks import Looks
from precgui.runs.verdict.paired import detectable
from precgui.sweeps.spec import SweepSpec
from precgui.sweeps.state import MemberState

START_S = 5.0  # a process with torch; only for members of which nothing else is known
TYPICAL_SD = 0.0063  # of paired differences of accuracy, INT4 against FP32 on the digits (benchmarks/verdicts.py)
_MOST_FILES = 200
# What decides how long a run takes; other fields of the config may differ.
_WORK = ("task", "model_name", "model.size", "data.batch_size", "train.epochs", "train.max_steps", "train.accumulation")


@dataclass(frozen=True)
class SweepEstimate:
    """`total_s` is None when nothing is known of some precision; `detectable` is in the unit of the metric.

    `sources` are sentences that say where the figures come from.
    """

    runs: int
    total_s: float | None
    detectable: float | None
    sources: tuple[str, ...]


def estimate_sweep(spec: SweepSpec, runs_folder: Path) -> SweepEstimate:
    """Time and smallest visible difference of a sweep on this machine, from runs of the same work."""
    known = _past_seconds(spec.config_of(spec.arms()[0], spec.first_seed), runs_folder)
    arms = spec.arms()
    short = 1 + spec.timing_rounds * len(arms)
    runs = spec.seeds * len(arms) + min(spec.twins, spec.seeds) * len(spec.baselines()) + short
    smallest, spread = _smallest(spec, len(arms))
    missing = sorted({arm.precision for arm in arms} - known.keys())
    if missing:
        why = f"no earlier run of the same work here in {', '.join(missing)}: the time is known after the first block"
        return SweepEstimate(runs, None, smallest, (why, *spread))
    per_arm = [known[arm.precision] for arm in arms]
    twins = min(spec.twins, spec.seeds) * sum(known[arm.precision] for arm in spec.baselines())
    total = spec.seeds * sum(per_arm) + twins + short * START_S
    return SweepEstimate(runs, total, smallest, ("times of earlier runs of the same work on this machine", *spread))


def _smallest(spec: SweepSpec, arms: int) -> tuple[float | None, tuple[str, ...]]:
    """The difference that the seeds can tell apart, where the metric is an accuracy of which a spread is known."""
    value = detectable(TYPICAL_SD, spec.seeds, Looks(tuple(spec.looks)).alpha, max(arms - 1, 1))
    if spec.config.get("task", "digits") not in IMAGE_TASKS or not math.isfinite(value):
        return None, ()
    return value, (
        f"{spec.seeds} seeds can tell apart differences that are this large, if single differences spread by "
        f"{100 * TYPICAL_SD:.2f} points, as INT4 against FP32 on the digits",
    )


def _past_seconds(config: RunConfig, folder: Path) -> dict[str, float]:
    """Seconds of a run by precision, of the newest runs with the same work on this host."""
    found: dict[str, float] = {}
    try:
        files = sorted(folder.glob("*.h5"), key=lambda file: file.stat().st_mtime, reverse=True)[:_MOST_FILES]
    except OSError:
        return found
    wanted = _work(config)
    for path in files:
        try:
            with open_run(path) as run:
                time_s = run.summary.get("time_s")
                fits = run.status == "completed" and run.machine.get("host") == platform.node()
                if fits and isinstance(time_s, int | float) and _work(run.config) == wanted:
                    found.setdefault(run.config.precision, float(time_s) + START_S)
        except RunFileError:
            continue
    return found


def _work(config: RunConfig) -> tuple[object, ...]:
    values = []
    for path in _WORK:
        value: object = config
        for part in path.split("."):
            value = getattr(value, part)
        values.append(value)
    return tuple(values)


def seconds_left(states: Sequence[MemberState]) -> float | None:
    """How long the rest takes, from the runs that have ended: of the same arm, else of any; None before the first."""
    waiting = [state for state in states if state.status in ("waiting", "cut off", "running")]
    known = _seconds_of_arms(states)
    if not waiting:
        return 0.0
    if not known:
        return None
    usual = mean(known.values())
    return sum(START_S + _short_share(state) * known.get(state.member.arm, usual) for state in waiting)


def _short_share(state: MemberState) -> float:
    return 0.0 if state.member.kind in ("warm-up", "timing") else 1.0


def _seconds_of_arms(states: Sequence[MemberState]) -> Mapping[str, float]:
    arms: dict[str, list[float]] = {}
    for state in states:
        if (
            state.member.kind in ("run", "twin")
            and state.wall_s is not None
            and state.status in ("completed", "failed")
        ):
            arms.setdefault(state.member.arm, []).append(state.wall_s)
    return {arm: mean(values) for arm, values in arms.items()}


def detectable_now(differences: Sequence[float], seeds: int, looks: Looks, arms: int) -> float | None:
    """The difference that so many seeds can tell apart, from the paired differences so far; None below three."""
    return detectable(stdev(differences), seeds, looks.alpha, arms) if len(differences) >= 3 else None
