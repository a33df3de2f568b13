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
from precgui.cli.terminal import say, say_notes
from precgui.words import L_, _, error_text, translated, wording

if TYPE_CHECKING:
    from precgui.runs.file.reader import SavedRun
    from precgui.runs.report.content import ReportContent
    from precgui.runs.report.energy_table import EnergyTable
    from precgui.runs.report.group_table import SettingsMatrix
    from precgui.runs.report.writing import ReportKind
    from precgui.runs.study.energy import EnergyPrice
    from precgui.runs.study.result import Study
    from precgui.runs.study.run_figures import RunFigures
    from precgui.runs.tensorboard.imported_run import ImportedRun
    from precgui.runs.verdict.targets import Targets


@dataclass(frozen=True)
class StudyForm:
    """How a study is put out: as files and as JSON, in any combination; as tables where none is chosen."""

    as_json: bool = False
    csv: Path | None = None
    html: Path | None = None
    markdown: Path | None = None
    price: EnergyPrice | None = None


@dataclass(frozen=True)
class JudgedRuns:
    """A study with the runs that it was made of, and the command that repeats it."""

    study: Study
    runs: Sequence[RunFigures]
    command: str
    title: str
    targets: Targets

    def verdicts_of_runs(self, baseline: str) -> dict[str, dict[str, str]]:
        """The verdict text of each run on each target, as a single pair with the baseline; none for the baseline."""
        from precgui.runs.study.groups import pair_verdicts

        base = next(run for run in self.runs if run.name == baseline)
        return {
            run.name: {} if run is base else {t: v.verdict for t, v in pair_verdicts(run, base, self.targets).items()}
            for run in self.runs
        }

    def content(self, price: EnergyPrice | None = None) -> ReportContent:
        from precgui.runs.report.content import report_content

        return report_content(self.study, self.runs, title=self.title, command=self.command, price=price)

    def document(self, price: EnergyPrice | None = None) -> dict[str, Any]:
        """The keys of DESIGN: baseline, runs, groups, twin, answer, and what else is known."""
        content = self.content(price)
        groups = [asdict(group) for group in self.study.groups]
        return {
            "baseline": next((g.baseline for g in self.study.groups if g.baseline), ""),
            "runs": [_run_row(run) for run in self.runs], "groups": groups, "twin": asdict(self.study.twin),
            "looks": list(self.study.looks), "metric": dict(self.study.metric), "notes": list(self.study.notes),
            "answer": content.answer, "answer_lines": list(content.answer_lines),
            "members": [asdict(member) for member in self.study.members],
            "claims": [asdict(claim) for claim in content.claims],
            "matrix": None if content.matrix is None else asdict(content.matrix),
            "energy": {
                "price_per_kwh": None if price is None else price.per_kwh,
                "currency": "" if price is None else price.currency,
                "groups": [asdict(group) for group in content.energy.groups],
            },
        }  # fmt: skip


def is_study(paths: Sequence[Path]) -> bool:
    """Whether a single folder of a sweep is meant. Raises SentenceError for one beside other paths."""
    from precgui.sweeps.folder import is_sweep

    sweeps = [path for path in paths if is_sweep(path)]
    if sweeps and len(paths) > 1:
        raise UserError(
            _("{folder} is the folder of a sweep: compare it alone, or name run files of its members").format(
                folder=sweeps[0]
            )
        )
    return bool(sweeps)


def sweep_study(path: Path, baseline: str, targets: Path | None) -> JudgedRuns:
    """The study of a sweep. Raises SentenceError."""
    from precgui.sweeps.folder import SweepFolder, read_targets
    from precgui.sweeps.spec import repeat_command
    from precgui.sweeps.study import NoEndedRun, SweepReader

    try:
        folder = SweepFolder(path)
        requested = read_targets(path) if targets is None else _targets(targets)
        reader = SweepReader(folder)
        study = reader.study(baseline=baseline, targets=requested)
        runs = reader.figures(lambda note: say(f"precgui: {translated(note)}", file=sys.stderr))
    except NoEndedRun as error:
        raise UserError(
            _("{error}; precgui sweep {path} goes on with it").format(error=error_text(error), path=path)
        ) from None
    spec = folder.spec
    command = repeat_command(spec, len(folder.plan.seeds))
    return JudgedRuns(study, runs, command, spec.title or path.resolve().name, requested)


def groups_of(
    paths: Sequence[Path], baseline: str, targets: Path | None, tags: Mapping[str, str], *, with_notes: bool = True
) -> JudgedRuns:
    """Runs that belong to no sweep, in groups; notes on the files go to stderr. Raises SentenceError."""
    from precgui.runs.open import open_run_or_events
    from precgui.runs.study.groups import make_study
    from precgui.runs.study.ungrouped import ungrouped_figures

    with ExitStack() as stack:
        opened: list[SavedRun | ImportedRun] = []
        for path in paths:
            opened.append(open_run_or_events(path, tags))
            stack.callback(opened[-1].close)
        runs = ungrouped_figures(opened)
        for path, run in zip(paths, opened, strict=True):
            say_notes(path, run.notes if with_notes else ())
    named = {run.name: run.group for run in runs} | {str(run.path): run.group for run in runs}
    try:
        requested = _targets(targets)
        study = make_study(runs, baseline=named.get(baseline, baseline), targets=requested)
    except ValueError as error:
        raise UserError(error_text(error)) from None
    return JudgedRuns(
        study,
        runs,
        f"precgui compare {' '.join(path.name for path in paths)}",
        L_("Comparison"),
        requested,
    )


def _targets(path: Path | None) -> Targets:
    from precgui.runs.verdict.targets import DEFAULT_TARGETS, load_targets

    if path is None:
        return DEFAULT_TARGETS
    return load_targets(path)


def print_study(judged: JudgedRuns, form: StudyForm) -> int:
    """Put the study out in the forms that were asked for. Raises SentenceError for a file that cannot be written."""
    chosen: dict[ReportKind, Path | None] = {"csv": form.csv, "html": form.html, "markdown": form.markdown}
    files = {kind: target for kind, target in chosen.items() if target is not None}
    from precgui.runs.report.writing import write_report

    for kind, target in files.items():
        write_report(judged.content(form.price), kind, target, wording())
    if form.as_json:
        print(json.dumps(judged.document(form.price), allow_nan=False))
    elif not files:
        _print_tables(judged, form.price)
    return 0


def _print_tables(judged: JudgedRuns, price: EnergyPrice | None) -> None:
    content, console = judged.content(price), HarmlessConsole()
    console.print(f"[bold]{escape(translated(content.answer))}[/]", highlight=False)
    for line in content.answer_lines:
        console.print(escape(translated(line)), highlight=False)
    console.print()
    table = Table("", *(escape(translated(name)) for name in content.columns))
    for label, cells in content.rows:
        table.add_row(escape(translated(label)), *(escape(translated(cell)) for cell in cells))
    console.print(table)
    if content.matrix is not None:
        _print_matrix(console, content.matrix)
    _print_energy(console, content.energy)
    for sentence in content.notes:
        console.print(escape(translated(sentence)), highlight=False)


def _print_matrix(console: HarmlessConsole, matrix: SettingsMatrix) -> None:
    from precgui.runs.report.group_table import MATRIX_COLUMNS

    table = Table(*(escape(translated(name)) for name in (*MATRIX_COLUMNS, *matrix.precisions)))
    for settings, figure, cells in matrix.rows:
        table.add_row(*(escape(translated(cell)) for cell in (settings, figure, *cells)))
    console.print(table)


def _print_energy(console: HarmlessConsole, energy: EnergyTable) -> None:
    if not energy.is_measured:
        console.print(escape(translated(energy.why_not_measured)), highlight=False)
        return
    table = Table(_("energy"), *(escape(translated(name)) for name in energy.columns))
    for title, cells in energy.rows:
        table.add_row(escape(translated(title)), *(escape(translated(cell)) for cell in cells))
    console.print(table)


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
