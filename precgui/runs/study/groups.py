"""Judges groups of runs against their baselines: statistics, verdicts, and the floor of twins."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from precgui.runs.figures import COSTS, FIGURES, Figure, metric_figure, study_figures
from precgui.runs.metric import ACCURACY
from precgui.runs.study.members import chosen_members
from precgui.runs.study.pairs import (
    ONE_STEP,
    PairedArm,
    curve_distance,
    curve_distances,
    differences,
    log_ratios,
    memory_ratios,
    own_values,
)
from precgui.runs.study.places import place_notes
from precgui.runs.study.result import LEVEL, Group, GroupMetric, LossReached, Study, TwinFloor
from precgui.runs.study.run_figures import RunFigures
from precgui.runs.timing import clock_note, record_note
from precgui.runs.verdict.interim_analyses import DEFAULT_LOOKS, InterimAnalyses
from precgui.runs.verdict.judge import Sample, Verdict, judge, judge_failures, success_text
from precgui.runs.verdict.paired import PairedDifference, holm, paired_difference
from precgui.runs.verdict.targets import DEFAULT_TARGETS, Targets, goals
from precgui.sanitize import some_names
from precgui.sentences import L_, Sentence, counted, filled, together

_COMPARED = [each for each in (metric_figure(ACCURACY), *FIGURES.values()) if each.compared_by == "difference"]
_FLOOR_IN_WORDS = {
    "metric": L_("{value} in the metric"), "val_loss": L_("{value} in the validation loss"),
    "train_loss": L_("{value} in the training loss"), "curve_distance": L_("{value} in the distance of the curves"),
}  # fmt: skip


def make_study(
    runs: Sequence[RunFigures],
    *,
    baseline: str = "",
    targets: Targets = DEFAULT_TARGETS,
    looks: InterimAnalyses = DEFAULT_LOOKS,
    baseline_of: Mapping[str, str] | None = None,
) -> Study:
    """Judge groups of runs, the baseline first where there is one for all.

    `baseline` names a group or a precision, by default fp32, else the first one. `baseline_of` gives each group a
    baseline of its own where fields were varied. Raises ValueError for a baseline that is no group, and when there are
    no runs.
    """
    names = list(dict.fromkeys(run.group for run in runs))
    if not names:
        raise ValueError(L_("there is no run to compare"))
    default = _baseline(runs, names, baseline)
    if baseline_of is None:
        names.sort(key=lambda name: name != default)
    own = {name: (baseline_of or {}).get(name, default) if not baseline else default for name in names}
    used, members = chosen_members(runs)
    of = {name: tuple(run for run in used if run.group == name) for name in names}
    arms = [PairedArm(name, of[name], of.get(own[name], ())) for name in names]
    baselines = {name: of.get(name, ()) for name in own.values()}  # empty where none of its runs has ended
    floor = twin_floor([PairedArm("", twins_of(each), each) for each in baselines.values()])
    judged = [arm for arm in arms if own[arm.name] != arm.name]
    verdicts = _verdicts(judged, targets, looks, floor)
    figures = study_figures(vars(runs[0].metric))
    metrics = _metrics(arms, {arm.name for arm in judged}, floor, figures)
    first = {run.group: run for run in reversed(runs)}
    groups = [
        _group(arm, own[arm.name], first[arm.name], metrics[arm.name], verdicts.get(arm.name, {}), used) for arm in arms
    ]
    grain = max((run.grain for run in used), default=0.0)
    notes = [*_time_notes(judged), *place_notes(used)]
    return Study(
        groups, floor, looks.seeds, vars(runs[0].metric), notes, paired=_paired(arms, figures),
        grain=grain, members=members,
    )  # fmt: skip


def twins_of(runs: Sequence[RunFigures]) -> tuple[RunFigures, ...]:
    """The twins as if they were runs of an arm of their own."""
    return tuple(replace(run, kind="run") for run in runs if run.kind == "twin")


def twin_floor(arms: Sequence[PairedArm]) -> TwinFloor:
    results: dict[str, list[float]] = {}
    count = 0
    for arm in arms:
        base = {run.seed: run for run in arm.baseline if run.kind == "run" and run.came_through}
        for twin in arm.runs:
            if twin.seed in base and twin.came_through:
                count += 1
                for name, distance in _distances(twin, base[twin.seed]).items():
                    results.setdefault(name, []).append(distance)
    largest = {name: max(values) for name, values in results.items()}
    return TwinFloor(count, largest, _twin_text(count, largest))


def _distances(twin: RunFigures, base: RunFigures) -> dict[str, float]:
    pairs = {figure.key: (figure.value(twin), figure.value(base)) for figure in _COMPARED}
    results = {name: abs(a - b) for name, (a, b) in pairs.items() if a is not None and b is not None}
    curve = curve_distance(twin, base)
    return results | ({"curve_distance": curve} if curve is not None else {})


def _twin_text(count: int, largest: Mapping[str, float]) -> str:
    if not count:
        return L_("no rounding twin was run: it is not known which differences are rounding alone")
    distances = (filled(_FLOOR_IN_WORDS[name], value=f"{value:.4g}") for name, value in largest.items())
    return counted(
        "runs whose start weights moved by one ulp differ by up to {distances} ({count} twin): less is rounding alone",
        "runs whose start weights moved by one ulp differ by up to {distances} ({count} twins): less is rounding alone",
        count,
        distances=together(*distances, between=", "),
    )


def _time_notes(arms: Sequence[PairedArm]) -> list[str]:
    """Sentences on the times that are compared: those of which clock, and those of which runs are missing."""
    note = clock_note({arm.name: arm.clock for arm in arms})
    untimed = list(dict.fromkeys(name for arm in arms for name in arm.untimed()))
    missing = Sentence("The times leave out the pairs of {runs}, which recorded none.", runs=some_names(untimed, 6))
    shares = {run.name: run.record_share for arm in arms for pair in arm.time_pairs() for run in pair}
    return [sentence for sentence in (note, record_note(shares), missing if untimed else "") if sentence]


def pair_verdicts(run: RunFigures, baseline: RunFigures, targets: Targets = DEFAULT_TARGETS) -> dict[str, Verdict]:
    """The verdicts on a single run beside a single baseline: one pair measures neither speed nor accuracy."""
    pair = [replace(each, kind="run", seed=0, run_id="", refused="") for each in (baseline, run)]
    named = [replace(each, group=group) for each, group in zip(pair, ("baseline", "run"), strict=True)]
    study = make_study(named, baseline="baseline", targets=targets)
    return next(group.verdicts for group in study.groups if group.group == "run")


def _baseline(runs: Sequence[RunFigures], names: list[str], requested: str) -> str:
    precisions = {run.precision: run.group for run in reversed(runs)}
    if requested:
        if requested not in names and requested not in precisions:
            known = ", ".join(names)
            raise ValueError(Sentence("no group is called {name}; the groups are {names}", name=requested, names=known))
        return requested if requested in names else precisions[requested]
    return precisions.get("fp32", names[0])


def _verdicts(
    arms: Sequence[PairedArm], targets: Targets, looks: InterimAnalyses, floor: TwinFloor
) -> dict[str, dict[str, Verdict]]:
    base = [run for arm in arms for run in arm.baseline if run.kind == "run"]
    values = [run.metric_value for run in base if run.came_through and run.metric_value is not None]
    metric = base[0].metric if base else None
    grain = max((run.grain for run in base), default=0.0)
    way = -1 if metric is None or metric.higher_is_better else 1
    samples: dict[str, Callable[[PairedArm], Sample]] = {
        "speedup": _speedups,
        "memory_saved": memory_ratios,
        "accuracy_lost": lambda arm: differences(arm, lambda run: run.metric_value, worse_is_positive=way),
        "tensor_use": lambda arm: own_values(arm, lambda run: run.tensor_use),
        "energy_saved": lambda arm: log_ratios(arm, lambda run: run.joules_per_sample),
        "curve_distance": curve_distances,
    }
    verdicts: dict[str, dict[str, Verdict]] = {arm.name: {} for arm in arms}
    mean = float(np.mean(values)) if values else None
    for goal in goals(targets, metric_is_share=metric is None or metric.unit == "%", baseline_value=mean):
        created = {arm.name: samples[goal.name](arm) for arm in arms}
        own_plan = _plan_of_rounds(arms, looks) if goal.name == "speedup" else looks
        judged = judge(goal, created, own_plan, grain if goal.name == "accuracy_lost" else 0.0)
        for name, verdict in judged.items():
            verdicts[name][goal.name] = _against_twin(verdict, floor) if goal.name == "curve_distance" else verdict
    if targets.failures is not None:
        for arm in arms:
            verdicts[arm.name]["failures"] = judge_failures(
                arm.failed, len(arm.ended), targets.failures, looks.seeds[0]
            )
    return verdicts


def _plan_of_rounds(arms: Sequence[PairedArm], looks: InterimAnalyses) -> InterimAnalyses:
    """Rounds of timing are planned as a whole and judged once."""
    rounds = max((sum(run.kind == "timing" for run in arm.runs) for arm in arms), default=0)
    return InterimAnalyses((rounds,)) if rounds >= 3 else looks


def _against_twin(verdict: Verdict, floor: TwinFloor) -> Verdict:
    """A curve no farther away than that of a twin is as like the baseline's as one can be."""
    largest = floor.largest.get("curve_distance")
    if largest is None or verdict.value is None or verdict.value > largest or verdict.verdict == "met":
        return verdict
    why = Sentence(
        "no farther from the baseline than runs that differ by rounding alone ({share:.1f} %)", share=100 * largest
    )
    return replace(verdict, verdict="met", seeds_needed=None, why=why)


def _speedups(arm: PairedArm) -> Sample:
    """Logarithms of the speed-up of each pair, by the clock of the arm."""
    signal = arm.clock.signal
    sample = log_ratios(arm, lambda run: run.cpu_s if signal == "cpu_s" else run.step_s, times=True)
    return replace(sample, values=tuple(-value for value in sample.values))


def _paired(arms: Sequence[PairedArm], figures: Sequence[Figure]) -> dict[str, dict[str, dict[int, float]]]:
    """The value of each seed by group and figure; of times, that of each round of timing where there are some."""
    kept = [figure for figure in figures if figure.key == "metric" or figure in COSTS]
    with_rounds = all(any(run.kind == "timing" for run in arm.runs) for arm in arms)
    results: dict[str, dict[str, dict[int, float]]] = {}
    for arm in arms:
        of_seeds = {run.seed: run for run in arm.of_seeds if run.came_through}
        rounds = {run.order: run for run in arm.runs if run.kind == "timing"}
        results[arm.name] = {
            figure.key: {
                key: result
                for key, run in (rounds if with_rounds and figure.is_time else of_seeds).items()
                if (result := figure.value(run)) is not None
            }
            for figure in kept
        }
    return results


def _metrics(
    arms: Sequence[PairedArm], judged: set[str], floor: TwinFloor, figures: Sequence[Figure]
) -> dict[str, dict[str, GroupMetric]]:
    metrics = {arm.name: {figure.key: _own(arm, figure) for figure in figures} for arm in arms}
    compared = [arm for arm in arms if arm.name in judged]
    for figure in figures:
        if not figure.compared_by:
            continue
        key, is_cost = figure.key, figure.compared_by == "ratio"
        samples = {arm.name: _sample(arm, figure) for arm in compared}
        grains = {arm.name: max((r.grain for r in arm.baseline), default=0.0) * (key == "metric") for arm in compared}
        for arm_name, change in _compared(samples, grains, floor.largest.get(key), is_cost=is_cost).items():
            metrics[arm_name][key] = replace(metrics[arm_name][key], **change)
    return metrics


def _sample(arm: PairedArm, figure: Figure) -> Sample:
    """The values of one figure of an arm beside those of its baseline."""
    if figure.key == "memory_bytes":
        return memory_ratios(arm)
    if figure.compared_by == "ratio":
        return log_ratios(arm, figure.value, times=figure.is_time)
    return differences(arm, figure.value)


def _own(arm: PairedArm, figure: Figure) -> GroupMetric:
    runs = [run for run in arm.of_seeds if run.came_through]
    values = [result for run in runs if (result := figure.value(run)) is not None]
    is_memory = figure.key == "memory_bytes" and all(run.memory_of_one_step for run in runs)
    if is_memory and len(set(values)) == 1:
        return GroupMetric(1, values[0], once=ONE_STEP)
    if len(values) < 2:
        return GroupMetric(len(values), values[0] if values else None)
    spread = paired_difference(values)
    low, high = spread.interval(LEVEL)
    least, most = _range_of(figure)
    ci95 = max(low, least), min(high, most)
    return GroupMetric(len(values), spread.mean, spread.sd, ci95, cut=ci95 != (low, high))


def _range_of(figure: Figure) -> tuple[float, float]:
    """The least and the largest value that a figure can have."""
    if figure.unit == "%":
        return 0.0, 1.0
    return -math.inf if figure.compared_by == "difference" else 0.0, math.inf


def _compared(
    samples: Mapping[str, Sample], grains: Mapping[str, float], floor: float | None, *, is_cost: bool
) -> dict[str, dict[str, Any]]:
    """The changes that a comparison makes to the figures of each arm."""
    changes: dict[str, dict[str, Any]] = {}
    tested: dict[str, PairedDifference] = {}
    for arm, sample in samples.items():
        key = "ratio" if is_cost else "difference"
        mean = math.fsum(sample.values) / len(sample.values) if sample.values else None
        displayed = math.exp(mean) if is_cost and mean is not None else mean
        changes[arm] = {"withheld": sample.why, key: None if sample.why else displayed}
        repeated = sample.once and len(set(sample.values)) == 1
        if len(sample.values) >= 3 and not sample.why and not repeated:
            tested[arm] = paired_difference(sample.values, grains[arm])
            low, high = tested[arm].interval(LEVEL)
            changes[arm][f"{key}_ci95"] = (math.exp(low), math.exp(high)) if is_cost else (low, high)
        if floor is not None and mean is not None and not is_cost:
            changes[arm]["within_rounding"] = abs(mean) <= floor
    adjusted = holm([difference.p_different() for difference in tested.values()])
    for arm, p_holm in zip(tested, adjusted, strict=True):
        changes[arm]["p_holm"] = p_holm
    return changes


def _group(
    arm: PairedArm, baseline: str, first: RunFigures, metrics: dict[str, GroupMetric], verdicts: dict[str, Verdict],
    all_runs: Sequence[RunFigures],
) -> Group:  # fmt: skip
    loss = None if arm.withheld else common_loss(all_runs, baseline)
    through = [run for run in arm.of_seeds if run.came_through]
    runs = len(arm.ended)
    return Group(
        group=arm.name, precision=first.precision, baseline=baseline, n=len(through),
        seeds=[run.seed for run in through], runs=[run.name for run in arm.runs], failed=arm.failed,
        success=success_text(arm.failed, runs) if runs else L_("no run has ended"),
        emulated=next((run.emulated for run in arm.runs if run.emulated), first.emulated),
        metrics=metrics, verdicts=verdicts,
        to_loss=None if loss is None else loss_reached(all_runs, arm.name, loss),
    )  # fmt: skip


def common_loss(runs: Sequence[RunFigures], baseline: str) -> float | None:
    """The worst of the best validation losses of the baseline's runs: each of them has reached it. None without any."""
    own = [run for run in runs if run.group == baseline and run.kind == "run" and run.came_through]
    best = [float(np.nanmin(run.validation.loss)) for run in own if np.isfinite(run.validation.loss).any()]
    return max(best) if best else None


def loss_reached(runs: Sequence[RunFigures], group: str, loss: float) -> LossReached:
    """How many runs of a group reached the loss, and after what time."""
    own = [run for run in runs if run.group == group and run.kind == "run" and run.status in ("completed", "failed")]
    places = [(run, place) for run in own if (place := _first(run, loss)) is not None]
    if not own or len(places) < len(own):
        return LossReached(loss, len(places), len(own))
    times = [float(run.validation.time_s[place]) for run, place in places]
    cpu = [float(run.validation.cpu_s[place]) for run, place in places]
    energy = [
        run.joules_per_sample * run.work.samples_per_step * float(run.validation.step[place])
        for run, place in places
        if run.joules_per_sample is not None
    ]
    return LossReached(
        loss, len(places), len(own), median(times), median(cpu) if np.isfinite(cpu).all() else None,
        median(energy) if len(energy) == len(own) else None,
    )  # fmt: skip


def _first(run: RunFigures, loss: float) -> int | None:
    there = np.flatnonzero(run.validation.loss <= loss)
    return int(there[0]) if len(there) else None
