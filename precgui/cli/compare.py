"""`precgui compare`: the figures of several runs beside those of a baseline."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from precgui.cli.console import HarmlessConsole
from precgui.cli.csv_file import write_new_csv
from precgui.cli.parser import UserError
from precgui.cli.terminal import say, say_notes
from precgui.events import Metric
from precgui.runs.caveats import Arithmetic, marked
from precgui.runs.figures import FIGURES
from precgui.words import L_, _, translated

if TYPE_CHECKING:
    from precgui.runs.compared import Compared, RunComparison
    from precgui.runs.file.reader import SavedRun
    from precgui.runs.study.energy import EnergyPrice
    from precgui.runs.tensorboard.imported_run import ImportedRun

    _Rows = tuple[tuple[str, Callable[[Compared], str]], ...]

_NOT_MEASURABLE = L_("not measurable")


def add_parsers(subparsers: Any) -> None:
    """Add `compare` to the command line."""
    parser = subparsers.add_parser("compare", help=_("put the figures of runs beside those of a baseline"))
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUN.h5|DIR",
        help=_("run files, TensorBoard event files and their folders, or the folder of a sweep"),
    )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help=_("file name, title or precision of the baseline, of a sweep a group (default: the first fp32 run)"),
    )
    parser.add_argument(
        "--tag", action="append", default=[], metavar="SIGNAL=NAME",
        help=_("which scalar of an event file is which signal, such as loss=objective"),
    )  # fmt: skip
    parser.add_argument("--targets", type=Path, metavar="FILE.toml", help=_("targets to judge by"))
    parser.add_argument("--targets-template", action="store_true", help=_("print the default targets as TOML, to edit"))
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    parser.add_argument("--csv", type=Path, metavar="FILE", help=_("write the table to a new CSV file"))
    parser.add_argument("--html", type=Path, metavar="FILE", help=_("write the report as one HTML file"))
    parser.add_argument("--markdown", type=Path, metavar="FILE", help=_("write the report as Markdown"))
    parser.add_argument(
        "--price", metavar="PRICE", help=_("price of a kilowatt-hour for the costs of a study, such as '0.30 EUR'")
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare and report. Raises SentenceError for a file that is no run and a baseline that is none of them."""
    if args.targets_template:
        from precgui.runs.verdict.targets import targets_toml

        say(targets_toml(), end="")
        return 0
    if not args.runs:
        raise UserError(_("RUN.h5 is missing: name run files or the folder of a sweep; see precgui compare --help"))
    from precgui.cli.compare_groups import StudyForm, groups_of, is_study, print_study, sweep_study

    form = StudyForm(args.json, args.csv, args.html, args.markdown, _price(args.price))
    if is_study(args.runs):
        return print_study(sweep_study(args.runs[0], args.baseline or "", args.targets), form)
    tags = _tags(args.tag)
    if args.targets and not args.json:
        return print_study(groups_of(args.runs, args.baseline or "", args.targets, tags), form)
    if args.html or args.markdown:
        report = StudyForm(html=args.html, markdown=args.markdown, price=form.price)
        print_study(groups_of(args.runs, args.baseline or "", args.targets, tags), report)
        if not (args.json or args.csv):
            return 0
    comparison = _compared(args.runs, args.baseline, tags)
    if args.csv:
        _write_csv(comparison, args.csv)
    if args.json:
        from precgui.runs.file.json_text import dump

        grouped = groups_of(args.runs, comparison.baseline, args.targets, tags, with_notes=False)
        document = {**grouped.document(form.price), **asdict(comparison)}
        verdicts = grouped.verdicts_of_runs(comparison.baseline)
        document["runs"] = [{**row, "verdicts": verdicts[row["run"]]} for row in document["runs"]]
        print(dump(document))
    elif not args.csv:
        _print(comparison)
    return 0


def _print(comparison: RunComparison) -> None:
    from precgui.runs.comparison_notes import ONE_SEED

    HarmlessConsole().print(_table(comparison))
    for note in comparison.notes:
        shown = translated(note)
        say(_("{note} precgui sweep --seeds makes one.").format(note=shown) if note == ONE_SEED else shown)


def _price(text: str | None) -> EnergyPrice | None:
    from precgui.runs.study.energy import parse_price

    return None if text is None else parse_price(text)


def _compared(paths: list[Path], baseline: str | None, tags: dict[str, str]) -> RunComparison:
    from precgui.runs.compare import compare
    from precgui.runs.open import open_run_or_events

    runs: list[SavedRun | ImportedRun] = []
    with ExitStack() as stack:
        for path in paths:
            runs.append(open_run_or_events(path, tags))
            stack.callback(runs[-1].close)
        result = compare(runs, baseline)
        for path, opened in zip(paths, runs, strict=True):
            say_notes(path, opened.notes)
    return result


def _tags(given: list[str]) -> dict[str, str]:
    """SIGNAL=NAME as a mapping. Raises SentenceError."""
    pairs = [text.partition("=") for text in given]
    for signal, sign, tag in pairs:
        if not (signal and sign and tag):
            raise UserError(_("--tag {signal} is not SIGNAL=NAME, such as --tag loss=objective.").format(signal=signal))
    return {signal: tag for signal, sign, tag in pairs}


def _write_csv(comparison: RunComparison, path: Path) -> None:
    rows = [_worded(asdict(compared)) for compared in comparison.runs]
    write_new_csv(path, ["baseline", *rows[0]], ([comparison.baseline, *row.values()] for row in rows))


def _worded(row: dict[str, Any]) -> dict[str, Any]:
    """None and intervals in words, the metric as its title and its unit, and the names of other settings."""
    metric = {"metric": row["metric"]["title"], "metric_unit": row["metric"]["unit"]}
    metric["differs_in"] = ", ".join(row["differs_in"])
    ends = {key: f"{value[0]} to {value[1]}" for key, value in row.items() if isinstance(value, tuple)}
    return {key: _NOT_MEASURABLE if value is None else value for key, value in {**row, **metric, **ends}.items()}


_BEFORE_METRIC = 5  # rows that stand above those of the metric
_ROWS: _Rows = (
    (L_("precision"), lambda run: run.precision),
    (L_("status"), lambda run: translated(run.outcome or run.status)),
    (L_("steps"), lambda run: f"{run.steps}"),
    (FIGURES["train_loss"].in_words, lambda run: _train_loss(run.train_loss, run.steps)),
    (FIGURES["val_loss"].in_words, lambda run: _number(run.val_loss)),
    (FIGURES["time_s"].in_words, lambda run: _figure("time_s", run.time_s, ".1f")),
    (FIGURES["step_s"].in_words, lambda run: _step_time(run)),
    (FIGURES["cpu_s"].in_words, lambda run: _figure("cpu_s", run.cpu_s_median, ".3f")),
    (L_("samples per second"), lambda run: _number(run.samples_per_s, ".0f")),
    (L_("speed-up"), lambda run: _ratio(run, run.speedup, run.speedup_interval, run.arithmetic)),
    (FIGURES["memory_bytes"].in_words,
     lambda run: _figure("memory_bytes", run.memory_peak_bytes, ".1f", _(" (emulated)") if run.emulated else "")),
    (L_("memory against baseline"), lambda run: _ratio_alone(run, run.memory_ratio)),
    (L_("energy"), lambda run: _number(run.energy_j, ".1f", " J")),
    (FIGURES["tensor_use"].in_words, lambda run: _figure("tensor_use", run.tensor_use, ".1f")),
    (L_("energy against baseline"), lambda run: _ratio(run, run.energy_ratio, run.energy_ratio_interval)),
    (L_("skipped steps"), lambda run: _number(run.skipped_steps, "d")),
    (L_("non-finite events"), lambda run: f"{run.nonfinite_events}"),
)  # fmt: skip


def _table(comparison: RunComparison) -> Table:
    """Runs as columns, so that the figures to compare stand side by side."""
    table = Table("", *(_heading(run, comparison.baseline) for run in comparison.runs))
    for name, displayed in (*_ROWS[:_BEFORE_METRIC], *_metric_rows(comparison), *_ROWS[_BEFORE_METRIC:]):
        table.add_row(escape(translated(name)), *(escape(displayed(run)) for run in comparison.runs))
    return table


def _difference(metric: Metric, run: Compared, *, is_base: bool) -> str:
    from precgui.runs.metric import difference_text

    text = difference_text(metric, run.accuracy_delta, run.why_no_difference or _NOT_MEASURABLE)
    return translated(text if is_base or run.accuracy_delta is None else run.with_remark(text))


def _metric_rows(comparison: RunComparison) -> _Rows:
    """The rows of the metric, called as it is called where all runs have the same one."""
    from precgui.runs.metric import in_text, shared, value_text, way_text

    of = {run.run: Metric(**run.metric) for run in comparison.runs}
    common = shared(of.values())
    name, against = _("validation metric"), _("against baseline")
    if common:
        name = _("validation {metric}").format(metric=in_text(translated(common.title)))
        against = _("against baseline, {way}").format(way=translated(way_text(common)))

    def value(run: Compared) -> str:
        text = value_text(of[run.run], run.val_accuracy, translated(_NOT_MEASURABLE))
        return text if common else f"{in_text(translated(of[run.run].title))} {text}"

    return (
        (name, value),
        (against, lambda run: _difference(of[run.run], run, is_base=run.run == comparison.baseline)),
    )


def _heading(run: Compared, baseline: str) -> str:
    return escape(run.run) + "\n" + (_("baseline") if run.run == baseline else "")


def _train_loss(loss: float | None, steps: int) -> str:
    return _("not finite") if loss is None and steps else _number(loss)


def _number(value: float | None, form: str = ".4g", unit: str = "", factor: float = 1) -> str:
    return translated(_NOT_MEASURABLE) if value is None else f"{value * factor:{form}}{unit}"


def _figure(key: str, value: float | None, form: str, mark: str = "") -> str:
    """A value in the unit of its figure."""
    figure = FIGURES[key]
    return _number(value, form, figure.suffix + translated(mark), figure.scale)


def _ratio(
    run: Compared, ratio: float | None, interval: tuple[float, float] | None, arithmetic: Arithmetic = "native"
) -> str:
    from precgui.runs.ratio_interval import ratio_text

    why = run.why_no_ratio or _NOT_MEASURABLE
    return translated(ratio_text(ratio, interval, why, arithmetic, run.why_no_interval))


def _step_time(run: Compared) -> str:
    text = _figure("step_s", run.step_s_median, ".3f")
    return text if run.step_s_median is None else translated(marked(text, run.arithmetic))


def _ratio_alone(run: Compared, ratio: float | None) -> str:
    return translated(run.why_no_ratio or _NOT_MEASURABLE) if ratio is None else f"{ratio:.2f}x"
