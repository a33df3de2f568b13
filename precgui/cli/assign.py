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
from precgui.cli.parser import UserError
from precgui.cli.place_option import add_place_option, run_source_there
from precgui.cli.terminal import say

if TYPE_CHECKING:
    from precgui.config import RunConfig
    from precgui.engine.assignment.search import Assignment, MeasuredPlan
    from precgui.runs.verdict.judge import Verdict

_DEFAULT_SEEDS = 5
_BASELINE = "fp32"
_STOPPED = "stopped before the formats were verified, so they are not used; precgui sweep {path} trains what is left"


def add_parsers(subparsers: Any) -> None:
    """Add `assign` to the command line."""
    parser = subparsers.add_parser(
        "assign",
        help="choose a format for each layer within a budget, and verify it by training",
        description="Trains in FP32, scores each linear and convolutional layer in each format, measures the best "
        "plans on held-out data, and trains the plan beside FP32 with several seeds.",
        epilog="Exit code: 0 the plan keeps the metric of FP32, 1 that could not be shown, and nothing is written.",
    )
    parser.add_argument("source", metavar="CONFIG.toml|RECIPE", help="what to train")
    parser.add_argument("--formats", required=True, metavar="F,F,...", help="for example e4m3fn,e2m1,bf16")
    parser.add_argument(
        "--budget", required=True, metavar="bits=B|loss=X",
        help="bits of a weight on average, or how much the held-out loss may rise",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="change one value"
    )
    parser.add_argument("--seeds", type=int, default=_DEFAULT_SEEDS, metavar="N", help="runs of each arm that verify")
    parser.add_argument("--sweep", type=Path, metavar="DIR", help="the folder of the runs that verify; must not exist")
    parser.add_argument("-o", "--output", type=Path, metavar="CONFIG.toml", help="write the config of the plan here")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    add_place_option(parser, run_source_there)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Assign, verify, report and write the config. Raises SentenceError for faults that the user can correct."""
    if args.output is not None and args.output.exists():
        raise UserError(f"{args.output} already exists; choose another name or delete it first")
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
    from precgui.engine.assignment.budget_sentence import budget_sentence
    from precgui.engine.assignment.search import assign, assigned_config

    kind, budget = _budget(args.budget)
    formats = _formats(args.formats)
    if not args.json:
        say("training in FP32, then scoring the layers ...", file=sys.stderr, flush=True)
    bits, rise = (budget, None) if kind == "bits" else (None, budget)
    assignment = assign(base, formats, bits=bits, rise=rise)
    planned = assigned_config(base, assignment.best.layers)
    if not args.json and (sentence := budget_sentence(assignment, bits)):
        say(sentence, file=sys.stderr, flush=True)
    folder, verdict = _verify(planned, args)
    return assignment, planned, folder, verdict


def _budget(text: str) -> tuple[str, float]:
    kind, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if kind not in ("bits", "loss") or not 0 <= number < float("inf"):
        raise UserError(f"--budget {text} is no budget; write bits=6 or loss=0.05")
    return kind, number


def _formats(text: str) -> list[str]:
    from precgui.config.names import check_format

    try:
        return list(dict.fromkeys(check_format(name.strip()) for name in text.split(",") if name.strip()))
    except ValueError as error:
        raise UserError(f"--formats: {error}") from None


def _verify(planned: RunConfig, args: argparse.Namespace) -> tuple[Path, Verdict]:
    """The folder of a sweep of the plan beside FP32, and the verdict on the metric."""
    from precgui.cli.sweep_progress import SweepProgress, run_or_watch
    from precgui.sweeps.folder import create_sweep
    from precgui.sweeps.spec import make_spec
    from precgui.sweeps.study import SweepReader

    spec = make_spec(planned, [_BASELINE, planned.precision], args.seeds, twins=0, title="Formats of layers")
    path = args.sweep or paths.runs_dir() / time.strftime("assign-%Y%m%d-%H%M%S")
    folder = create_sweep(path, spec)
    with SweepProgress(folder, quiet=args.json) as progress:
        stopped = run_or_watch(folder, progress)
    if stopped:
        raise UserError(_STOPPED.format(path=path))
    study = SweepReader(folder).study()
    return path, next(g for g in study.groups if g.precision == planned.precision).verdicts["accuracy_lost"]


def _write(path: Path, planned: RunConfig) -> None:
    try:
        path.write_text(config.to_toml(planned), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; choose another place") from None


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
    table.add_column("layer", overflow="fold")
    table.add_column("weights", justify="right")
    table.add_column("format")
    for name in assignment.uniform:
        table.add_column(f"score in {name}", justify="right")
    for layer, chosen in assignment.best.layers.items():
        scores = (f"{assignment.scores[layer][name]:.2g}" for name in assignment.uniform)
        table.add_row(layer, f"{assignment.weights[layer]:,}".replace(",", " "), chosen, *scores)
    console.print(table)
    for name, measured in [("this plan", assignment.best), *assignment.uniform.items()]:
        console.print(Text(_sentence(name, measured, assignment)))
    console.print(Text("scores order the layers; they do not say how much the loss rises"))
    why = f" ({verdict.why})" if verdict.why else ""
    console.print(
        Text(f"the metric beside FP32, {seeds_text(verdict.n)}: {verdict.verdict}{why}; the runs are in {folder}")
    )
    if verdict.verdict != "met":
        console.print(Text("the plan is not verified, so no config is written; try more bits or more seeds"))
    elif output is not None:
        console.print(Text(f"written to {output}"))


def seeds_text(count: int) -> str:
    """A count of seeds, as words."""
    return "1 seed" if count == 1 else f"{count} seeds"


def _sentence(name: str, measured: MeasuredPlan, assignment: Assignment) -> str:
    text = (
        f"{name}: {measured.bits:.3g} bits a weight, held-out loss {assignment.fp32_loss + measured.rise:.4g}, "
        f"{measured.rise:+.2g} against FP32"
    )
    return text if measured.above_noise else f"{text}; the change is within the noise of the held-out data"
