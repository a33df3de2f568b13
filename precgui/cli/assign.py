"""`precgui assign`: a format for each layer within a budget, verified by a sweep before it is handed over."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from precgui import config, paths
from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError, add_settings
from precgui.cli.place_option import add_place_option, run_source_there
from precgui.cli.terminal import say
from precgui.words import L_, _, error_text, n_, translated

if TYPE_CHECKING:
    from precgui.config import RunConfig
    from precgui.engine.assignment.search import Assignment, MeasuredPlan
    from precgui.runs.verdict.judge import Verdict

_DEFAULT_SEEDS = 5
_BASELINE = "fp32"
_STOPPED = L_(
    "stopped before the formats were verified, so they are not used; precgui sweep {path} trains what is left"
)


def add_parsers(subparsers: Any) -> None:
    """Add `assign` to the command line."""
    parser = subparsers.add_parser(
        "assign",
        help=_("choose a format for each layer within a budget, and verify it by training"),
        description=_(
            "Trains in FP32, scores each linear and convolutional layer in each format, measures the best "
            "plans on held-out data, and trains the plan beside FP32 with several seeds."
        ),
        epilog=_("Exit code: 0 the plan keeps the metric of FP32, 1 that could not be shown, and nothing is written."),
    )
    parser.add_argument("source", metavar="CONFIG.toml|RECIPE", help=_("what to train"))
    parser.add_argument("--formats", required=True, metavar="F,F,...", help=_("for example e4m3fn,e2m1,bf16"))
    parser.add_argument(
        "--budget", required=True, metavar="bits=B|loss=X",
        help=_("bits of a weight on average, or how much the held-out loss may rise"),
    )  # fmt: skip
    add_settings(parser, _("change one value"))
    parser.add_argument(
        "--seeds", type=int, default=_DEFAULT_SEEDS, metavar="N", help=_("runs of each arm that verify")
    )
    parser.add_argument(
        "--sweep", type=Path, metavar="DIR", help=_("the folder of the runs that verify; must not exist")
    )
    parser.add_argument("-o", "--output", type=Path, metavar="CONFIG.toml", help=_("write the config of the plan here"))
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    add_place_option(parser, run_source_there)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Assign, verify, report and write the config. Raises SentenceError for faults that the user can correct."""
    if args.output is not None and args.output.exists():
        raise UserError(_("{output} already exists; choose another name or delete it first").format(output=args.output))
    base = config.load(args.source, args.settings)
    assignment, planned, folder, verdict = verified_plan(base, args)
    verified = verdict.verdict == "met"
    if args.output is not None and verified:
        _write(args.output, planned)
    if args.json:
        written = str(args.output) if args.output is not None and verified else None
        kind, budget = _budget(args.budget)
        document = _document(assignment, budget if kind == "bits" else None, verdict, folder, written)
        print(json.dumps(document, allow_nan=False))
    else:
        _print(assignment, verdict, folder, args.output)
    return 0 if verified else 1


def verified_plan(base: RunConfig, args: argparse.Namespace) -> tuple[Assignment, RunConfig, Path, Verdict]:
    """Formats of layers, the config that trains in them, the folder of the runs that verify it, and their verdict.

    `args` has `formats`, `budget`, `seeds`, `sweep` and `json`. Raises SentenceError.
    """
    from precgui.engine.assignment.search import assign, assigned_config
    from precgui.engine.assignment.serving import budget_sentence

    kind, budget = _budget(args.budget)
    formats = _formats(args.formats)
    if not args.json:
        say(_("training in FP32, then scoring the layers ..."), file=sys.stderr, flush=True)
    bits, rise = (budget, None) if kind == "bits" else (None, budget)
    assignment = assign(base, formats, bits=bits, rise=rise)
    planned = assigned_config(base, assignment.best.layers)
    if not args.json and (sentence := budget_sentence(assignment, bits)):
        say(translated(sentence), file=sys.stderr, flush=True)
    folder, verdict = _verify(planned, args)
    return assignment, planned, folder, verdict


def _budget(text: str) -> tuple[str, float]:
    kind, value = (*text.split("=", 1), "")[:2]
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if kind not in ("bits", "loss") or not 0 <= number < float("inf"):
        raise UserError(_("--budget {text} is no budget; write bits=6 or loss=0.05").format(text=text))
    return kind, number


def _formats(text: str) -> list[str]:
    from precgui.config.names import check_format

    try:
        return list(dict.fromkeys(check_format(name.strip()) for name in text.split(",") if name.strip()))
    except ValueError as error:
        raise UserError(f"--formats: {error_text(error)}") from None


def _verify(planned: RunConfig, args: argparse.Namespace) -> tuple[Path, Verdict]:
    """The folder of a sweep of the plan beside FP32, and the verdict on the metric."""
    from precgui.cli.sweep_progress import SweepProgress, run_or_watch
    from precgui.sweeps.folder import create_sweep
    from precgui.sweeps.spec import make_spec
    from precgui.sweeps.study import SweepReader

    spec = make_spec(planned, [_BASELINE, planned.precision], args.seeds, twins=0, title=L_("Formats of layers"))
    path = args.sweep or paths.runs_dir() / time.strftime("assign-%Y%m%d-%H%M%S")
    folder = create_sweep(path, spec)
    with SweepProgress(folder, quiet=args.json) as progress:
        stopped = run_or_watch(folder, progress)
    if stopped:
        raise UserError(translated(_STOPPED).format(path=path))
    study = SweepReader(folder).study()
    return path, next(g for g in study.groups if g.precision == planned.precision).verdicts["accuracy_lost"]


def _write(path: Path, planned: RunConfig) -> None:
    try:
        path.write_text(config.to_toml(planned), encoding="utf-8")
    except OSError as error:
        raise UserError(
            _("{path} cannot be written: {strerror}; choose another place").format(path=path, strerror=error.strerror)
        ) from None


def _document(
    assignment: Assignment, bits: float | None, verdict: Verdict, folder: Path, written: str | None
) -> dict[str, Any]:
    from precgui.engine.assignment.serving import assignment_document

    return {
        "config": written, **assignment_document(assignment, bits), "sweep": str(folder), "verdict": asdict(verdict),
    }  # fmt: skip


def _print(assignment: Assignment, verdict: Verdict, folder: Path, output: Path | None) -> None:
    console = HarmlessConsole(highlight=False, soft_wrap=True)
    table = Table(box=SIMPLE_HEAD)
    table.add_column(_("layer"), overflow="fold")
    table.add_column(_("weights"), justify="right")
    table.add_column(_("format"))
    for name in assignment.uniform:
        table.add_column(_("score in {name}").format(name=name), justify="right")
    for layer, chosen in assignment.best.layers.items():
        scores = (f"{assignment.scores[layer][name]:.2g}" for name in assignment.uniform)
        table.add_row(layer, f"{assignment.weights[layer]:,}".replace(",", " "), chosen, *scores)
    console.print(table)
    for name, measured in [(_("this plan"), assignment.best), *assignment.uniform.items()]:
        console.print(Text(_sentence(name, measured, assignment)))
    console.print(Text(_("scores order the layers; they do not say how much the loss rises")))
    console.print(Text(metric_sentence(verdict, folder)))
    if verdict.verdict != "met":
        console.print(Text(_("the plan is not verified, so no config is written; try more bits or more seeds")))
    elif output is not None:
        console.print(Text(_("written to {output}").format(output=output)))


def metric_sentence(verdict: Verdict, folder: Path) -> str:
    """The verdict on the metric of a plan beside FP32, in the reader's language."""
    if verdict.why:
        text = _("the metric beside FP32, {seeds}: {verdict} ({why}); the runs are in {folder}")
    else:
        text = _("the metric beside FP32, {seeds}: {verdict}; the runs are in {folder}")
    seeds = n_("{count} seed", "{count} seeds", verdict.n).format(count=verdict.n)
    return text.format(seeds=seeds, verdict=translated(verdict.verdict), why=translated(verdict.why), folder=folder)


def _sentence(name: str, measured: MeasuredPlan, assignment: Assignment) -> str:
    if measured.above_noise:
        text = _("{name}: {bits:.3g} bits a weight, held-out loss {loss:.4g}, {rise:+.2g} against FP32")
    else:
        text = _(
            "{name}: {bits:.3g} bits a weight, held-out loss {loss:.4g}, {rise:+.2g} against FP32; the change is "
            "within the noise of the held-out data"
        )
    loss = assignment.fp32_loss + measured.rise
    return text.format(name=name, bits=measured.bits, loss=loss, rise=measured.rise)
