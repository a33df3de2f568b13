"""Sentences on single runs side by side: one for each reason, with the number and the names of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from precgui.runs.compared import Compared
from precgui.runs.timing import EMULATED_HERE
from precgui.sanitize import some_names
from precgui.sentences import L_, Sentence, counted, together

_NAMED = 6  # runs in a sentence; more are a number
ONE_SEED = L_(
    "Each difference of a metric is between two single runs, and one seed is no measurement: another seed moves it, "
    "too; a study of several seeds tells a small difference from none."
)
SEPARATE_RUNS = L_(
    "Intervals hold what varied within the runs; runs one after the other share no noise, so that what changed on the "
    "machine between them is in no interval: repeat the runs before you believe a small difference."
)
_WITH_NOISE = L_("an interval there holds the noise between runs of the same work")
_NO_NOISE = L_("how much that moved the times is not known, since no work ran twice, so that there is no interval")


def comparison_notes(
    rows: Sequence[Compared], baseline: str, silent: Sequence[str], repeats: Sequence[str]
) -> list[str]:
    """The sentences on these rows. `silent` are runs without samples, `repeats` copies of a run."""
    withheld = {row.run: row.withheld for row in rows if row.withheld}
    costs = {row.run: row.costs_withheld for row in rows if row.costs_withheld not in ("", EMULATED_HERE)}
    other = {row.run: _values(row.differs_in) for row in rows if row.differs_in and not row.withheld}
    notes = [_no_comparison(why, names) for why, names in _by(withheld)]
    notes += [_no_costs(why, names) for why, names in _by(costs)]
    notes += [_other_settings(settings, names) for settings, names in _by(other)]
    if repeats:
        notes.append(
            counted(
                "Copies of a run that is there, by the run id: {count} run ({names}).",
                "Copies of a run that is there, by the run id: {count} runs ({names}).",
                len(repeats),
                names=_listed(repeats),
            )
        )
    return [*notes, *_metric_notes(rows, baseline), *_time_notes(rows), *_sample_notes(silent)]


def _no_comparison(why: str, names: Sequence[str]) -> str:
    return counted(
        "No ratios and no difference in {count} run: {why} ({names}).",
        "No ratios and no difference in {count} runs: {why} ({names}).",
        len(names),
        why=why,
        names=_listed(names),
    )


def _no_costs(why: str, names: Sequence[str]) -> str:
    return counted(
        "No ratios of time, memory and energy in {count} run: {why} ({names}).",
        "No ratios of time, memory and energy in {count} runs: {why} ({names}).",
        len(names),
        why=why,
        names=_listed(names),
    )


def _other_settings(settings: str, names: Sequence[str]) -> str:
    return counted(
        "Settings differ from the baseline in {count} run, too, so that differences are not those of the precision "
        "alone: {settings} ({names}).",
        "Settings differ from the baseline in {count} runs, too, so that differences are not those of the precision "
        "alone: {settings} ({names}).",
        len(names),
        settings=settings,
        names=_listed(names),
    )


def copies(run_ids: Mapping[str, str]) -> list[str]:
    """The names of runs whose id an earlier one has, too."""
    first: dict[str, str] = {}
    return [name for name, run_id in run_ids.items() if run_id and first.setdefault(run_id, name) != name]


def _by(reasons: Mapping[str, str]) -> Iterable[tuple[str, list[str]]]:
    grouped: dict[str, list[str]] = {}
    for name, why in reasons.items():
        grouped.setdefault(why, []).append(name)
    return grouped.items()


def _listed(names: Sequence[str]) -> str:
    return some_names(names, _NAMED)


def _values(settings: Mapping[str, tuple[Any, Any]]) -> str:
    return together(*(changed_setting(key, own, base) for key, (own, base) in settings.items()), between=", ")


def changed_setting(key: str, own: Any, base: Any) -> Sentence:
    """A setting with its value and that of the baseline."""
    return Sentence("{key} ({own}, not {base})", key=key, own=own, base=base)


def _metric_notes(rows: Sequence[Compared], baseline: str) -> list[str]:
    titles = list(dict.fromkeys(row.metric["title"] for row in rows))
    notes: list[str] = []
    if len(titles) > 1:
        notes.append(
            Sentence(
                "The runs have different metrics ({titles}): differences are given to runs with the metric of the "
                "baseline only.",
                titles=together(*titles, between=", "),
            )
        )
    if not any(row.accuracy_delta is not None for row in rows if row.run != baseline):
        return notes
    notes.append(ONE_SEED)
    if grain := max((row.accuracy_grain or 0.0 for row in rows), default=0.0):
        notes.append(
            Sentence(
                "One sample of the {samples} for validation is {points:.2g} points of the metric.",
                samples=round(1 / grain),
                points=100 * grain,
            )
        )
    return notes


def _time_notes(rows: Sequence[Compared]) -> list[str]:
    notes: list[str] = [SEPARATE_RUNS] if any(row.speedup_interval for row in rows) else []
    other = [row for row in rows if row.loads_differ and row.speedup is not None]
    if other:
        names = [row.run for row in other]
        why = _WITH_NOISE if any(row.speedup_interval for row in other) else _NO_NOISE
        notes.append(
            counted(
                "{count} run trained while other programs kept the CPU busier, or less busy, than beside the baseline: "
                "{why} ({names}).",
                "{count} runs trained while other programs kept the CPU busier, or less busy, than beside the "
                "baseline: {why} ({names}).",
                len(names),
                why=why,
                names=_listed(names),
            )
        )
    return notes


def _sample_notes(silent: Sequence[str]) -> list[str]:
    """A note on runs whose loops did not record the number of samples of a step."""
    if not silent:
        return []
    return [
        counted(
            "No samples were recorded in {count} run: speed-ups compare the times of steps, which is right where the "
            "steps are of equal size; give recorder.step(loss, samples=...) ({names}).",
            "No samples were recorded in {count} runs: speed-ups compare the times of steps, which is right where the "
            "steps are of equal size; give recorder.step(loss, samples=...) ({names}).",
            len(silent),
            names=_listed(silent),
        )
    ]
