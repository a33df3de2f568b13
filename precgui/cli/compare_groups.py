"""`precgui compare` of groups: a sweep, or runs that are grouped by their settings; as table, JSON, CSV and report."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError
from precgui.cli.terminal import say
from precgui.config import DEFAULT_RECIPE, build

if TYPE_CHECKING:
    from precgui.runs.file.reader import SavedRun
    from precgui.runs.report.content import ReportContent
    from precgui.runs.study.figures import RunFigures
    from precgui.runs.study.groups import Group, Study
    from precgui.runs.tensorboard.imported_run import ImportedRun
    from precgui.runs.verdict.targets import Targets
    from precgui.sweeps.spec import SweepSpec


@dataclass(frozen=True)
class StudyForm:
    """How a study is put out: at most one of them."""

    as_json: bool = False
    csv: Path | None = None
    html: Path | None = None
    markdown: Path | None = None


@dataclass(frozen=True)
class JudgedRuns:
    """A study with the runs that it was made of, and the command that repeats it."""

    study: Study
    runs: Sequence[RunFigures]
    command: str
    title: str
    targets: Targets

    def verdicts_of_runs(self, baseline: str) -> dict[str, dict[str, str]]:
        """Of each run the words on each target, as a single pair with the baseline; none for the baseline itself."""
        from precgui.runs.study.groups import pair_verdicts

        base = next(run for run in self.runs if run.name == baseline)
        return {
            run.name: {} if run is base else {t: v.verdict for t, v in pair_verdicts(run, base, self.targets).items()}
            for run in self.runs
        }

    def content(self) -> ReportContent:
        from precgui.runs.report.content import report_content

        return report_content(self.study, self.runs, title=self.title, command=self.command)

    def document(self) -> dict[str, Any]:
        """The keys of DESIGN: baseline, runs, groups, twin, answer, and what else is known."""
        content = self.content()
        groups = [asdict(group) for group in self.study.groups]
        return {
            "baseline": next((g.baseline for g in self.study.groups if g.baseline), ""),
            "runs": [_run_row(run) for run in self.runs], "groups": groups, "twin": asdict(self.study.twin),
            "looks": list(self.study.looks), "metric": dict(self.study.metric), "notes": list(self.study.notes),
            "answer": content.answer, "claims": [asdict(claim) for claim in content.claims],
        }  # fmt: skip


def is_study(paths: Sequence[Path]) -> bool:
    """Whether a single folder of a sweep is meant."""
    from precgui.sweeps.folder import is_sweep

    sweeps = [path for path in paths if is_sweep(path)]
    if sweeps and len(paths) > 1:
        raise UserError(f"{sweeps[0]} is the folder of a sweep: compare it alone, or name run files of its members")
    return bool(sweeps)


def sweep_study(path: Path, baseline: str, targets: Path | None) -> JudgedRuns:
    """The study of a sweep. Raises UserError."""
    from precgui.sweeps.errors import SweepError
    from precgui.sweeps.folder import SweepFolder
    from precgui.sweeps.study import SweepReader

    try:
        folder, wanted = SweepFolder(path), _targets(targets)
        reader = SweepReader(folder)
        study = reader.study(baseline=baseline, targets=wanted)
        runs = reader.figures(lambda note: say(f"precgui: {note}", file=sys.stderr))
    except SweepError as error:
        raise UserError(str(error)) from None
    spec = folder.spec
    return JudgedRuns(
        study, runs, _sweep_command(spec, len(folder.plan.seeds)), spec.title or path.resolve().name, wanted
    )


def _sweep_command(spec: SweepSpec, seeds: int) -> str:
    """The command that runs the same sweep again, from the default recipe and all that differs from it."""
    changed = build(spec.config).model_dump(exclude_defaults=True, exclude={"precision", "title", "seed"})
    words = ["precgui sweep", DEFAULT_RECIPE, f"--precisions {','.join(spec.precisions)}", f"--seeds {seeds}"]
    words += [f"--set {path}={value}" for path, value in _flat(changed)]
    words += [f"--vary {key}={','.join(map(str, values))}" for key, values in spec.vary.items()]
    return " ".join([*words, f"--baseline {spec.baseline}", "-o DIR"])


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in tree.items():
        pairs += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return pairs


def groups_of(paths: Sequence[Path], baseline: str, targets: Path | None, tags: Mapping[str, str]) -> JudgedRuns:
    """Runs that belong to no sweep, in groups. Raises UserError."""
    from precgui.runs.errors import RunFileError
    from precgui.runs.open import open_run_or_events
    from precgui.runs.study.groups import make_study
    from precgui.runs.study.loose import loose_figures

    with ExitStack() as stack:
        try:
            opened: list[SavedRun | ImportedRun] = []
            for path in paths:
                opened.append(open_run_or_events(path, tags))
                stack.callback(opened[-1].close)
            runs = loose_figures(opened)
        except RunFileError as error:
            raise UserError(str(error)) from None
    named = {run.name: run.group for run in runs} | {str(run.path): run.group for run in runs}
    try:
        wanted = _targets(targets)
        study = make_study(runs, baseline=named.get(baseline, baseline), targets=wanted)
    except ValueError as error:
        raise UserError(str(error)) from None
    return JudgedRuns(study, runs, f"precgui compare {' '.join(path.name for path in paths)}", "Comparison", wanted)


def _targets(path: Path | None) -> Targets:
    from precgui.runs.verdict.targets import DEFAULT_TARGETS, TargetError, load_targets

    if path is None:
        return DEFAULT_TARGETS
    try:
        return load_targets(path)
    except TargetError as error:
        raise UserError(str(error)) from None


def print_study(judged: JudgedRuns, form: StudyForm) -> int:
    """Put the study out in the form that was asked for. Raises UserError for a file that cannot be written."""
    if form.as_json:
        print(json.dumps(judged.document(), allow_nan=False))
        return 0
    target = form.csv or form.html or form.markdown
    if target is None:
        _print_tables(judged)
        return 0
    text = _csv_text(judged.study) if form.csv else _report_text(judged, html=form.html is not None)
    try:
        with target.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{target} already exists; choose another name or delete it first.") from None
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}; choose another place.") from None
    return 0


def _report_text(judged: JudgedRuns, *, html: bool) -> str:
    from precgui.runs.report.html import html_report
    from precgui.runs.report.markdown import markdown_report

    return html_report(judged.content()) if html else markdown_report(judged.content())


def _print_tables(judged: JudgedRuns) -> None:
    content, console = judged.content(), HarmlessConsole()
    console.print(f"[bold]{escape(content.answer)}[/]\n", highlight=False)
    table = Table("", *(escape(name) for name in content.columns))
    for label, cells in content.rows:
        table.add_row(escape(label), *(escape(cell) for cell in cells))
    console.print(table)
    for sentence in content.notes:
        console.print(escape(sentence), highlight=False)


def _csv_text(study: Study) -> str:
    """One row for each group and figure, with the verdicts below; nothing rounded."""
    from io import StringIO

    from precgui.runs.csv_cells import write_table

    text = StringIO()
    header = ["group", "precision", "baseline", "n", "failed", "figure", "mean", "sd", "ci_low", "ci_high",
                     "difference", "ratio", "change_low", "change_high", "p_holm", "verdict", "why"]  # fmt: skip
    write_table(text, header, (row for group in study.groups for row in _csv_rows(group)))
    return text.getvalue()


def _csv_rows(group: Group) -> list[list[object]]:
    head = [group.group, group.precision, group.baseline, group.n, group.failed]
    rows: list[list[object]] = []
    for name, m in group.metrics.items():
        ci, change = m.ci95 or ("", ""), m.difference_ci95 or m.ratio_ci95 or ("", "")
        rows.append([*head, name, m.mean, m.sd, *ci, m.difference, m.ratio, *change, m.p_holm, "", m.withheld])
    for target, v in group.verdicts.items():
        rows.append([*head, target, v.value, "", *(v.ci or ("", "")), "", "", "", "", "", v.text, v.why])
    return [["" if cell is None else cell for cell in row] for row in rows]


def _run_row(run: RunFigures) -> dict[str, Any]:
    row = {
        "run": run.name, "path": str(run.path) if run.path else None, "group": run.group, "precision": run.precision,
        "seed": run.seed, "kind": run.kind, "block": run.order, "status": run.status, "came_through": run.came_through,
        "metric": run.metric_value, "val_loss": run.val_loss, "train_loss": run.train_loss, "steps": run.work.steps,
        "step_s": run.step_s, "cpu_s": run.cpu_s, "memory_bytes": run.memory_bytes, "time_s": run.time_s,
        "joules_per_sample": run.joules_per_sample, "data_share": run.data_share, "emulated": bool(run.emulated),
        "cpu_pressure": run.pressure,
    }  # fmt: skip
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
