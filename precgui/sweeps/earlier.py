"""Figures of earlier runs and studies of this machine: the time of a run, and how far results of two seeds spread."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from precgui.config import RunConfig
from precgui.errors import SentenceError
from precgui.events import Metric
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import SavedRun, open_run
from precgui.runs.metric import metric_of
from precgui.runs.verdict.paired import paired_difference
from precgui.sweeps.folder import SweepFolder, is_sweep
from precgui.sweeps.plan import Kind

FEWEST_SEEDS = 3  # of which a spread is computed
_MOST_FILES, _MOST_STUDIES = 200, 20  # the newest ones
# What decides how long a run takes; other fields of the config may differ.
_WORK = ("task", "model_name", "model.size", "data.batch_size", "train.epochs", "train.max_steps", "train.accumulation")
_NOT_OF_RESULT = ("title", "seed", "precision", "device", "threads", "record")
_NO_RESULT = (
    "train.rounding_twin",
    "train.save_to",
    "train.save_average",
    "train.checkpoint_every",
    "qat.save_to",
    "adapter.save_to",
)


@dataclass(frozen=True)
class EarlierRun:
    """One run that completed on this machine. `run_s` is the time of its training."""

    kind: Kind
    arm: str
    precision: str
    seed: int
    run_s: float | None
    metric: Metric
    value: float | None
    grain: float
    work: tuple[object, ...]
    settings: str


@dataclass(frozen=True)
class Spread:
    """Paired differences of a precision from a baseline in an earlier study: standard deviation of single ones.

    `sd` is never below the grain of the metric over sqrt(6). `twin` is the largest difference of a rounding twin.
    """

    sd: float
    seeds: int
    study: str
    metric: Metric
    twin: float | None


@dataclass
class EarlierRuns:
    """The runs of a folder and of the studies in it; a file that has not changed is not read again."""

    folder: Path
    _known: dict[Path, tuple[tuple[int, int], EarlierRun | None]] = field(default_factory=dict)

    def seconds(self, config: RunConfig) -> float | None:
        """How long the newest run of the same work in this precision took; None without any."""
        work = work_of(config)
        result = (run.run_s for run in self._all() if run.precision == config.precision and run.work == work)
        return next((seconds for seconds in result if seconds is not None), None)

    def spread(self, config: RunConfig, baseline: str) -> Spread | None:
        """The spread in the newest study with these settings, precision and baseline; None without one."""
        requested = settings_of(config)
        for study in self._studies():
            runs = [run for run in self._members(study) if run.settings == requested]
            result = _spread(runs, config.precision, baseline, study.name)
            if result is not None:
                return result
        return None

    def _all(self) -> Iterable[EarlierRun]:
        """Single runs first, then those of studies, each the newest first; short ones of studies left out."""
        yield from self._read(_newest(self.folder.glob("*.h5"), _MOST_FILES), {})
        for study in self._studies():
            yield from (run for run in self._members(study) if run.kind in ("run", "twin"))

    def _studies(self) -> list[Path]:
        return _newest((path for path in self.folder.glob("*") if is_sweep(path)), _MOST_STUDIES)

    def _members(self, study: Path) -> list[EarlierRun]:
        try:
            folder = SweepFolder(study)
        except SentenceError:
            return []
        members = {folder.path_of(member): (member.kind, member.arm) for member in folder.plan.members}
        return self._read([path for path in members if path.exists()], members)

    def _read(self, paths: list[Path], members: Mapping[Path, tuple[Kind, str]]) -> list[EarlierRun]:
        results = []
        for path in paths:
            kind, arm = members.get(path, ("run", ""))
            run = self._one(path, kind, arm)
            if run is not None:
                results.append(run)
        return results

    def _one(self, path: Path, kind: Kind, arm: str) -> EarlierRun | None:
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if path not in self._known or self._known[path][0] != stamp:
                with open_run(path) as run:
                    self._known[path] = stamp, _earlier(run, kind, arm)
            return self._known[path][1]
        except (OSError, RunFileError):
            return None


def _newest(paths: Iterable[Path], most: int) -> list[Path]:
    try:
        return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)[:most]
    except OSError:
        return []


def _earlier(run: SavedRun, kind: Kind, arm: str) -> EarlierRun | None:
    """An earlier run of an arm; None for one that did not complete or ran on another machine."""
    if run.status != "completed" or run.machine.get("host") != platform.node():
        return None
    final, data = run.summary.get("final"), run.environment.get("data")
    value = final.get("val_accuracy") if isinstance(final, Mapping) else None
    metric = metric_of(run.environment)
    samples = data.get("validation_samples") if isinstance(data, Mapping) else None
    counts = metric.unit == "%" and metric.of_outputs
    grain = 1 / samples if counts and isinstance(samples, int) and samples > 0 else 0.0
    return EarlierRun(
        kind, arm, run.config.precision, run.config.seed, _number(run.summary.get("time_s")), metric, _number(value),
        grain, work_of(run.config), settings_of(run.config),
    )  # fmt: skip


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def work_of(config: RunConfig) -> tuple[object, ...]:
    """The fields that decide how long a run takes, the precision aside."""
    return tuple(attrgetter(path)(config) for path in _WORK)


def settings_of(config: RunConfig) -> str:
    """The fields that decide the result of a run, precision and seed aside, as text to compare."""
    tree = config.model_dump(mode="json", exclude=set(_NOT_OF_RESULT))
    for path in _NO_RESULT:
        section, _, name = path.partition(".")
        tree[section].pop(name, None)
    return json.dumps(tree, sort_keys=True)


def _spread(runs: list[EarlierRun], precision: str, baseline: str, study: str) -> Spread | None:
    base = {run.seed: run for run in runs if run.kind == "run" and run.precision == baseline}
    differences = _differences(runs, "run", precision, base)
    if len(differences) < FEWEST_SEEDS:
        return None
    first = next(iter(base.values()))
    result = paired_difference(differences, first.grain)
    twins = _differences(runs, "twin", baseline, base)
    largest = max(map(abs, twins)) if twins else None
    return Spread(result.standard_error * result.n**0.5, result.n, study, first.metric, largest)


def _differences(runs: list[EarlierRun], kind: Kind, precision: str, base: Mapping[int, EarlierRun]) -> list[float]:
    pairs = [
        (run, base[run.seed]) for run in runs if run.kind == kind and run.precision == precision and run.seed in base
    ]
    return [a.value - b.value for a, b in pairs if a.value is not None and b.value is not None]
