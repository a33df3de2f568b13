"""The content of a report, in whole sentences and finished cells: HTML, Markdown and the terminal only lay it out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precgui import __version__
from precgui.config.names import OWN_LOOP
from precgui.events import Metric
from precgui.runs.comparison_notes import changed_setting
from precgui.runs.differences import (
    NOT_RECORDED,
    PARTS,
    ComparedFacts,
    DifferenceRow,
    Part,
    differing,
    machine_facts,
    machine_sentence,
)
from precgui.runs.known_settings import NOT_KNOWN
from precgui.runs.metric import decimals, with_unit
from precgui.runs.report.energy_table import EnergyTable, energy_table
from precgui.runs.report.group_table import TITLES, Row, SettingsMatrix, group_rows, settings_matrix
from precgui.runs.report.sixteen_bits import SixteenBits, sixteen_bits
from precgui.runs.study.answer import answer, level_text
from precgui.runs.study.claims import ClaimResult, judge_claims
from precgui.runs.study.energy import EnergyPrice
from precgui.runs.study.members import member_notes
from precgui.runs.study.pairs import ONE_STEP
from precgui.runs.study.result import Group, Study, StudyMember
from precgui.runs.study.run_figures import RunFigures
from precgui.runs.verdict.judge import Verdict
from precgui.sentences import L_, Sentence, counted, together, whole

MEMBER_COLUMNS = (L_("run"), L_("group"), L_("kind"), L_("seed"), L_("used"), L_("why"))

VERDICT_COLUMNS = (L_("group"), L_("target"), L_("verdict"), L_("measured"))
CLAIM_COLUMNS = (L_("claim"), L_("source"), L_("here"), L_("measured, or why not"), L_("group"))


def difference_of_settings(run: RunFigures, baseline: RunFigures) -> dict[str, tuple[object, object]]:
    """Settings that differ, each with both values; title, seed and precision aside, and those that are not known."""
    keys = sorted({*run.settings, *baseline.settings})
    values = {key: (run.settings.get(key, NOT_KNOWN), baseline.settings.get(key, NOT_KNOWN)) for key in keys}
    return {key: pair for key, pair in values.items() if pair[0] != pair[1] and NOT_KNOWN not in pair}


@dataclass(frozen=True)
class VerdictLine:
    """One verdict with its rule, for the table of verdicts."""

    group: str
    target: str
    verdict: str
    word: str
    detail: str

    @property
    def short(self) -> str:
        """The verdict for a table in which its reason stands beside it."""
        return self.word if self.word == "not measurable" else self.verdict


@dataclass(frozen=True)
class ReportContent:
    """Everything that a report says. `columns` are the groups; `rows` and `differences` have a cell for each.

    `answer_lines` are about one group beside its baseline; `more_seeds` would probably decide. `members` has a row for
    each run, in the order of `MEMBER_COLUMNS`; `runs` are those that are used. `sixteen_bits` is None unless there are
    groups in FP16 and in BF16, `matrix` unless settings such as the model were varied.
    """

    title: str
    answer: str
    answer_lines: tuple[str, ...]
    more_seeds: int
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    verdicts: tuple[VerdictLine, ...]
    notes: tuple[str, ...]
    claims: tuple[ClaimResult, ...]
    facts: tuple[tuple[str, str], ...]
    rules: tuple[str, ...]
    command: str
    study: Study
    runs: tuple[RunFigures, ...]
    differences: tuple[DifferenceRow, ...]
    members: tuple[tuple[str, ...], ...]
    energy: EnergyTable
    sixteen_bits: SixteenBits | None = None
    matrix: SettingsMatrix | None = None


def report_content(
    study: Study, all_runs: Sequence[RunFigures], *, title: str, command: str, price: EnergyPrice | None = None
) -> ReportContent:
    """The content of the report of a study. `all_runs` may have more runs than the study uses; `price` is of energy."""
    groups, answered = study.groups, answer(study)
    used = {member.run for member in study.members if member.used}
    runs = [run for run in all_runs if run.name in used]
    metric = Metric(**study.metric)
    differences = group_differences(study, runs)
    machines = machine_sentence(differences)
    twin = whole(study.twin.text)
    return ReportContent(
        title=title,
        answer=answered.text,
        answer_lines=answered.lines,
        more_seeds=answered.more_seeds,
        columns=tuple(group.group for group in groups),
        rows=tuple((row.title, row.cells) for row in group_rows(groups, metric)),
        verdicts=tuple(_line(group, verdict, metric) for group in groups for verdict in group.verdicts.values()),
        notes=(
            *member_notes(study.members),
            *([machines] if machines else []),
            *study.notes,
            twin,
            *_setting_notes(groups, runs),
        ),
        claims=tuple(judge_claims(study, runs)),
        facts=tuple(_facts(runs or all_runs)),
        rules=_rules(study),
        command=command,
        study=study,
        runs=tuple(runs),
        differences=tuple(differences),
        energy=energy_table(study, runs, price),
        members=tuple(_member_row(member) for member in study.members),
        sixteen_bits=sixteen_bits(study, runs),
        matrix=settings_matrix(groups, metric),
    )


def _member_row(member: StudyMember) -> tuple[str, ...]:
    return (member.run, member.group, member.kind, str(member.seed), member.use, member.why)


def _setting_notes(groups: Sequence[Group], runs: Sequence[RunFigures]) -> list[str]:
    """A sentence for each difference of settings from the baseline, precision apart, with the groups that have it."""
    first = {run.group: run for run in reversed(runs) if run.kind == "run"}
    differing: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        if group.group in first and group.baseline in first:
            changed = difference_of_settings(first[group.group], first[group.baseline])
            values = together(*(changed_setting(key, own, base) for key, (own, base) in changed.items()), between=", ")
            if values:
                differing.setdefault((group.baseline, values), []).append(group.group)
    return [
        Sentence(
            "Settings other than the precision differ from those of {base}: {settings} ({names}).",
            base=base,
            settings=values,
            names=", ".join(names),
        )
        for (base, values), names in differing.items()
    ]


def _line(group: Group, verdict: Verdict, metric: Metric) -> VerdictLine:
    return VerdictLine(group.group, TITLES[verdict.target], verdict.text, verdict.verdict, _detail(verdict, metric))


def _detail(verdict: Verdict, metric: Metric) -> str:
    """The value, its interval, the target and the reason, in the unit of the target."""
    if verdict.value is None or verdict.target == "failures":
        return verdict.why
    share = verdict.target in ("tensor_use", "curve_distance") or (
        verdict.target == "accuracy_lost" and metric.unit == "%"
    )
    ratio = verdict.target in ("speedup", "memory_saved", "energy_saved")
    factor, unit, digits = (100, "%", 2) if share else (1, "x" if ratio else "", 3)
    lost = verdict.target == "accuracy_lost"
    if lost and share:
        unit = "points"
    if not (share or ratio) and verdict.margin:  # a metric without a unit: in steps of a hundredth of its target
        digits = min(max(digits, 2 - math.floor(math.log10(1.01 * abs(verdict.margin)))), 12)
    sign, plus = (-1 if lost and metric.higher_is_better else 1), ("+" if lost else "")  # as the change of the metric
    ends = sorted(sign * factor * end for end in verdict.ci or ())
    digits = decimals(digits, factor * (verdict.value - ratio), ends)
    ci = f"[{ends[0]:{plus}z.{digits}f}, {ends[1]:{plus}z.{digits}f}]{level_text(verdict)}" if ends else ""
    value = _with_unit(f"{sign * factor * verdict.value:{plus}z.{digits}f}", unit)
    measured = Sentence("{value} {interval}", value=value, interval=ci) if ci else value
    margin = _with_unit(f"{factor * (verdict.margin or 0):.4g}", unit)
    if verdict.target in ("speedup", "tensor_use"):
        target = Sentence("target at least {margin}", margin=margin)
    elif lost:
        target = Sentence("target at most {margin} lost", margin=margin)
    else:
        target = Sentence("target at most {margin}", margin=margin)
    pairs = counted("{count} pair", "{count} pairs", verdict.n) if verdict.why != ONE_STEP else ""
    return together(measured, target, pairs, verdict.why, verdict.caution, between="; ")


def _with_unit(number: str, unit: str) -> str:
    return f"{number}x" if unit == "x" else with_unit(number, unit)


def _rules(study: Study) -> tuple[str, ...]:
    looks = ", ".join(str(n) for n in study.looks)
    return (
        L_(
            "Runs are compared in pairs of one seed, which decides the split of the data, the start weights and the "
            "order of the batches; intervals are Student's t."
        ),
        Sentence(
            "Verdicts are made at {looks} seeds and nowhere else, so that adding seeds does not add false verdicts; "
            "arms share the level of error (Holm).",
            looks=looks,
        ),
        L_("met: the interval lies wholly inside the target; missed: wholly outside; undecided: it holds the border."),
        L_("Runs that failed enter no mean. Arithmetic that is emulated has no speed, memory or energy of its own."),
    )


def _facts(runs: Sequence[RunFigures]) -> list[tuple[str, str]]:
    """Machine, versions and settings; where runs differ, each value."""

    def reported(label: str, value: Callable[[RunFigures], Any]) -> tuple[str, str]:
        values = dict.fromkeys(str(value(run)) for run in runs if value(run) not in (None, ""))
        return label, ", ".join(values) or NOT_RECORDED

    first = runs[0]
    cpu = first.machine.get("cpu")
    cores = cpu.get("usable_cores") if isinstance(cpu, dict) else None
    return [
        reported(L_("machine"), lambda run: run.host),
        reported(L_("device"), lambda run: run.device),
        (L_("processor cores"), str(cores or NOT_RECORDED)),
        reported(L_("system"), lambda run: str(run.machine.get("os") or "").partition(",")[0]),
        reported(L_("CPU threads"), lambda run: run.threads),
        reported(L_("task"), lambda run: run.work.config.task),
        reported(L_("steps"), lambda run: run.work.steps if run.kind == "run" else None),
        reported(L_("samples a step"), lambda run: run.work.samples_per_step),
        reported("precgui", lambda run: run.versions.get("precgui")),
        reported("torch", lambda run: run.versions.get("torch")),
        reported("Python", lambda run: run.versions.get("python")),
        (L_("CPU busy with other programs"), _pressure(runs)),
        (L_("report made by"), f"precgui {__version__}"),
    ]


def _pressure(runs: Sequence[RunFigures]) -> str:
    known = [run.pressure for run in runs if run.pressure is not None and math.isfinite(run.pressure)]
    if not known:
        return NOT_RECORDED
    return Sentence(
        "in {low:.0f} to {high:.0f} % of the time of a run some process waited for a CPU",
        low=100 * min(known),
        high=100 * max(known),
    )


def group_differences(study: Study, runs: Sequence[RunFigures]) -> list[DifferenceRow]:
    """The facts in which groups differ; where runs of one group differ, one cell holds all its values."""
    names = [group.group for group in study.groups]
    own = [(name, [run for run in runs if run.group == name and run.kind == "run"]) for name in names]
    return differing([_facts_of_group(name, members) for name, members in own])


def _facts_of_group(name: str, runs: Sequence[RunFigures]) -> ComparedFacts:
    tables = [_of_run(run) for run in runs]
    parts: dict[Part, Mapping[str, Any]] = {part: _joined([table[part] for table in tables]) for part in PARTS}
    return ComparedFacts(name, parts)


def _of_run(run: RunFigures) -> dict[Part, Mapping[str, Any]]:
    seed = NOT_KNOWN if run.work.config.task == OWN_LOOP else run.seed
    return {
        "machine": machine_facts({**run.machine, "host": run.host}, run.device, run.threads),
        "libraries": run.versions,
        "settings": {"precision": run.precision, "seed": seed, **run.settings},
    }


def _joined(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One table; a fact that differs inside the group has all its values, in their order of coming."""
    keys = dict.fromkeys(key for table in tables for key in table)
    results = {}
    for key in keys:
        values = [table.get(key) for table in tables]
        values = [value for value in values if value != NOT_KNOWN] or [NOT_KNOWN]
        same = all(value == values[0] for value in values)
        results[key] = values[0] if same else ", ".join(dict.fromkeys(map(str, values)))
    return results
