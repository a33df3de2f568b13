"""Sentences on single runs side by side: one for each reason, with the number and the names of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from precgui.runs.compared import Compared
from precgui.runs.timing import EMULATED_HERE
from precgui.sanitize import some_names

_NAMED = 6  # runs in a sentence; more are a number
ONE_SEED = (
    "Each difference of a metric is between two single runs, and one seed is no measurement: another seed moves it, "
    "too; a study of several seeds tells a small difference from none."
)
SEPARATE_RUNS = (
    "Intervals hold what varied within the runs; runs one after the other share no noise, so that what changed on the "
    "machine between them is in no interval: repeat the runs before you believe a small difference."
)
_OTHER_LOAD = (
    "{runs} trained while other programs kept the CPU busier, or less busy, than beside the baseline: {why} ({names})."
)
_WITH_NOISE = "an interval there holds the noise between runs of the same work"
_NO_NOISE = "how much that moved the times is not known, since no work ran twice, so that there is no interval"


def comparison_notes(
    rows: Sequence[Compared], baseline: str, silent: Sequence[str], repeats: Sequence[str]
) -> list[str]:
    """The sentences on these rows. `silent` are runs without samples, `repeats` copies of a run."""
    withheld = {row.run: row.withheld for row in rows if row.withheld}
    costs = {row.run: row.costs_withheld for row in rows if row.costs_withheld not in ("", EMULATED_HERE)}
    other = {row.run: _values(row.differs_in) for row in rows if row.differs_in and not row.withheld}
    notes = [
        f"No ratios and no difference in {_count(names)}: {why} ({_listed(names)})." for why, names in _by(withheld)
    ]
    notes += [
        f"No ratios of time, memory and energy in {_count(names)}: {why} ({_listed(names)})."
        for why, names in _by(costs)
    ]
    notes += [
        f"Settings differ from the baseline in {_count(names)}, too, so that differences are not those of "
        f"the precision alone: {why} ({_listed(names)})."
        for why, names in _by(other)
    ]
    if repeats:
        notes.append(f"Copies of a run that is there, by the run id: {_count(repeats)} ({_listed(repeats)}).")
    return [*notes, *_metric_notes(rows, baseline), *_time_notes(rows), *_sample_notes(silent)]


def copies(run_ids: Mapping[str, str]) -> list[str]:
    """The names of runs whose id an earlier one has, too."""
    first: dict[str, str] = {}
    return [name for name, run_id in run_ids.items() if run_id and first.setdefault(run_id, name) != name]


def _by(reasons: Mapping[str, str]) -> Iterable[tuple[str, list[str]]]:
    grouped: dict[str, list[str]] = {}
    for name, why in reasons.items():
        grouped.setdefault(why, []).append(name)
    return grouped.items()


def _count(names: Sequence[str]) -> str:
    return "1 run" if len(names) == 1 else f"{len(names)} runs"


def _listed(names: Sequence[str]) -> str:
    return some_names(names, _NAMED)


def _values(settings: Mapping[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{key} ({own}, not {base})" for key, (own, base) in settings.items())


def _metric_notes(rows: Sequence[Compared], baseline: str) -> list[str]:
    titles = list(dict.fromkeys(row.metric["title"] for row in rows))
    notes = []
    if len(titles) > 1:
        notes.append(
            f"The runs have different metrics ({', '.join(titles)}): differences are given to runs with the metric of "
            "the baseline only."
        )
    if not any(row.accuracy_delta is not None for row in rows if row.run != baseline):
        return notes
    notes.append(ONE_SEED)
    if grain := max((row.accuracy_grain or 0.0 for row in rows), default=0.0):
        notes.append(f"One sample of the {round(1 / grain)} for validation is {100 * grain:.2g} points of the metric.")
    return notes


def _time_notes(rows: Sequence[Compared]) -> list[str]:
    notes = [SEPARATE_RUNS] if any(row.speedup_interval for row in rows) else []
    other = [row for row in rows if row.loads_differ and row.speedup is not None]
    if other:
        names = [row.run for row in other]
        why = _WITH_NOISE if any(row.speedup_interval for row in other) else _NO_NOISE
        notes.append(_OTHER_LOAD.format(runs=_count(names), why=why, names=_listed(names)))
    return notes


def _sample_notes(silent: Sequence[str]) -> list[str]:
    """A note on runs whose loops did not record the number of samples of a step."""
    if not silent:
        return []
    return [
        f"No samples were recorded in {_count(silent)}: speed-ups compare the times of steps, which is right where the "
        f"steps are of equal size; give recorder.step(loss, samples=...) ({_listed(silent)})."
    ]
