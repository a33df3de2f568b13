"""Before and while a sweep runs: how long it takes here, and which difference so many seeds can detect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from precgui.config.names import IMAGE_TASKS
from precgui.events import Metric
from precgui.runs.metric import ACCURACY, with_unit
from precgui.runs.step_times import step_time, total_steps
from precgui.runs.verdict.interim_analyses import InterimAnalyses
from precgui.runs.verdict.paired import detectable
from precgui.sentences import L_, Sentence, filled
from precgui.sweeps.earlier import EarlierRuns, Spread
from precgui.sweeps.spec import Arm, SweepSpec
from precgui.sweeps.state import START_S

TYPICAL_SD = 0.0063  # of paired differences of accuracy, INT4 against FP32 on the digits (benchmarks/verdicts.py)
_TYPICAL = L_(
    "{seeds} seeds can tell apart differences that are this large, if single differences spread by "
    "{sd:.2f} points, as INT4 against FP32 on the digits"
)


@dataclass(frozen=True)
class SweepEstimate:
    """`total_s` is None when nothing is known of some precision; `detectable` is in the unit of `metric`.

    `detectable` is the largest of `by_arm`, the smallest difference from the baseline that is detectable in each
    arm. `sources` are sentences that say where the figures come from.
    """

    runs: int
    total_s: float | None
    detectable: float | None
    sources: tuple[str, ...]
    by_arm: Mapping[str, float] = field(default_factory=dict)
    metric: Metric = ACCURACY

    def difference_text(self, value: float) -> str:
        """A difference of the metric with its unit; of a share in points."""
        share = self.metric.unit == "%"
        return with_unit(f"{100 * value:.2f}", "points") if share else with_unit(f"{value:.3g}", self.metric.unit)


def estimate_sweep(
    spec: SweepSpec, runs_folder: Path, earlier: EarlierRuns | None = None, place: str = ""
) -> SweepEstimate:
    """Time and smallest visible difference of a sweep, from runs and studies of the same work.

    The time is that on this machine, or at the place of this name.
    """
    known = earlier or EarlierRuns(runs_folder)
    arms = spec.arms()
    short = 1 + spec.timing_rounds * len(arms)
    twins = min(spec.twins, spec.seeds)
    runs = spec.seeds * len(arms) + twins * len(spec.baselines()) + short
    per_arm = {arm.name: _seconds(spec, arm, known, place) for arm in arms}
    by_arm, metric, spread = _smallest(spec, known)
    largest = max(by_arm.values(), default=None)
    missing = [name for name, seconds in per_arm.items() if seconds is None]
    if missing:
        precisions = ", ".join(missing)
        why = Sentence(
            "no earlier run of the same work here in {precisions}: the time is known after the first block",
            precisions=precisions,
        )
        if place:
            why = Sentence(
                "no earlier run of the same work at {place} in {precisions}: the time is known after the first block",
                place=place,
                precisions=precisions,
            )
        return SweepEstimate(runs, None, largest, (why, *spread), by_arm, metric)
    base_s = sum(per_arm[arm.name] or 0.0 for arm in spec.baselines())
    total = spec.seeds * sum(seconds or 0.0 for seconds in per_arm.values()) + twins * base_s + short * START_S
    source = L_("times of earlier runs of the same work on this machine")
    if place:
        source = Sentence("times of earlier runs of the same work at {place}", place=place)
    return SweepEstimate(runs, total, largest, (source, *spread), by_arm, metric)


def _seconds(spec: SweepSpec, arm: Arm, known: EarlierRuns, place: str) -> float | None:
    """Seconds of one run of an arm: those of the newest run of the same work, else by its kept step time."""
    config = spec.config_of(arm, spec.first_seed)
    run_s = None if place else known.seconds(config)
    if run_s is None and (step := step_time(config, config.precision, place)) is not None:
        run_s = step.step_s * total_steps(config, step.steps_per_epoch)
    return None if run_s is None else run_s + START_S


def _smallest(spec: SweepSpec, known: EarlierRuns) -> tuple[dict[str, float], Metric, tuple[str, ...]]:
    """The detectable difference of each arm, by its spread in an earlier study, else by a typical one.

    Arms of which no spread is known are left out where the metric is no accuracy.
    """
    arms = [arm for arm in spec.arms() if arm.precision != spec.baseline]
    spreads = {arm.name: known.spread(spec.config_of(arm, spec.first_seed), spec.baseline) for arm in arms}
    alpha = InterimAnalyses(tuple(spec.looks)).alpha
    typical = spec.config.get("task", "digits") in IMAGE_TASKS
    results: dict[str, float] = {}
    for name, spread in spreads.items():
        if spread is not None or typical:
            sd = spread.sd if spread is not None else TYPICAL_SD
            results[name] = detectable(sd, spec.seeds, alpha, len(arms))
    results = {name: value for name, value in results.items() if math.isfinite(value)}
    metric = next((spread.metric for spread in spreads.values() if spread is not None), ACCURACY)
    return results, metric, _sources(spec, results, spreads)


def _sources(spec: SweepSpec, results: Mapping[str, float], spreads: Mapping[str, Spread | None]) -> tuple[str, ...]:
    known = {name: spread for name in results if (spread := spreads[name]) is not None}
    sentences: list[str] = []
    for study in dict.fromkeys(spread.study for spread in known.values()):
        own = {name: spread for name, spread in known.items() if spread.study == study}
        first = next(iter(own.values()))
        sentences.append(
            Sentence(
                "spread of {arms}: as in the study {study} of this machine, with the same settings and {seeds} seeds",
                arms=", ".join(own),
                study=study,
                seeds=first.seeds,
            )
        )
        if first.twin:
            worth = SweepEstimate(0, None, None, (), metric=first.metric).difference_text(first.twin)
            sentences.append(
                Sentence(
                    "rounding alone moved the results there by up to {difference}; no study tells less than that",
                    difference=worth,
                )
            )
    if remainder := [name for name in results if name not in known]:
        typical = filled(_TYPICAL, seeds=spec.seeds, sd=100 * TYPICAL_SD)
        named = Sentence("{arms}: {text}", arms=", ".join(remainder), text=typical)
        sentences.append(named if known else typical)
    return tuple(sentences)
