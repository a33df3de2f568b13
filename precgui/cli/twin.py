"""`precgui twin`: branches of one run in a precision and in FP32, which tell its bias apart from noise."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from precgui import config
from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError
from precgui.cli.place_option import add_place_option, run_source_there
from precgui.cli.terminal import say
from precgui.sanitize import some_names

if TYPE_CHECKING:
    from precgui.config import RunConfig
    from precgui.runs.twins import TwinResult
    from precgui.runs.verdict.branches import Drift

_BRANCHES, _STEPS, _TWINS = 16, 12, 1
_MOST = 1000
_MAX_TENSORS = 8
_COLOURS = {"bias": "red", "broken": "red", "undecided": "yellow"}


def add_parsers(subparsers: Any) -> None:
    """Add `twin` to the command line."""
    parser = subparsers.add_parser(
        "twin",
        help="tell the bias of a precision apart from noise, within one run",
        description="Trains in FP32. At each branch point the next steps are made in FP32, in the precision, and in "
        "FP32 from weights that moved by one ulp, from the same state on the same batches; the held-out losses "
        "afterwards are compared in pairs.",
        epilog="Exit code: 0 no bias is shown, 1 the precision is biased or breaks.",
    )
    parser.add_argument("source", metavar="CONFIG.toml|RECIPE|RUN.h5", help="what to train, or a run to train again")
    parser.add_argument("--precision", metavar="P", help="beside FP32; default: that of the source")
    parser.add_argument(
        "--branches", type=int, default=_BRANCHES, metavar="N", help=f"10 to {_MOST}, default {_BRANCHES}"
    )
    parser.add_argument("--steps", type=int, default=_STEPS, metavar="N", help=f"of each branch, default {_STEPS}")
    parser.add_argument("--twins", type=int, default=_TWINS, metavar="N", help=f"at each point, default {_TWINS}")
    parser.add_argument("--warm-up", type=int, metavar="N", help="steps before the first branch; default a fifth")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="change one value"
    )
    parser.add_argument("--own-code", action="store_true", help="run the code of a task of your own that a run names")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.json",
        help="where the result is kept; default: beside RUN.h5, where Inspect > Error reads it; else nowhere",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    add_place_option(parser, run_source_there)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Branch, judge, keep and print. Raises SentenceError for faults that the user can correct."""
    from precgui.job import branched
    from precgui.runs.twins import TWINS

    _check_numbers(args)
    requested = _requested(args)
    precision = _precision(args, requested)
    plan = (args.branches, args.steps, args.warm_up)
    result = branched(requested, precision, plan, args.twins, lambda: False, _quiet if args.json else _say)
    path = _path(args, precision)
    if path is not None:
        TWINS.write(path, result)
    if args.json:
        document = {"source": args.source, "kept": str(path) if path is not None else None, **result.document()}
        print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    else:
        _print(result, path)
    return 1 if result.verdict in ("bias", "broken") else 0


def _check_numbers(args: argparse.Namespace) -> None:
    from precgui.runs.verdict.branches import LEAST_BRANCHES

    for name, value, least in (
        ("--branches", args.branches, LEAST_BRANCHES), ("--steps", args.steps, 1), ("--twins", args.twins, 1),
        ("--warm-up", args.warm_up or 0, 0),
    ):  # fmt: skip
        if not least <= value <= _MOST and not (name == "--warm-up" and value > _MOST):
            raise UserError(f"{name} {value} is outside {least} to {_MOST}")


def _is_run(source: str) -> bool:
    return source.endswith((".h5", ".hdf5"))


def _requested(args: argparse.Namespace) -> RunConfig:
    """The config of the source with the settings. Raises SentenceError."""
    from precgui.config.names import OWN_LOOP, is_own_task, no_start
    from precgui.runs.file.reader import open_run

    if not _is_run(args.source):
        return config.load(args.source, args.settings)
    if args.settings:
        raise UserError("--set changes a config or a recipe; a run is branched as it was recorded")
    with open_run(Path(args.source)) as saved:
        requested = saved.config
    if requested.task == OWN_LOOP:
        raise UserError(no_start(str(args.source)))
    if is_own_task(requested.task) and not args.own_code:
        raise UserError(f"{args.source} was trained on a task of your own; --own-code runs the code that it names")
    return requested


def _precision(args: argparse.Namespace, requested: RunConfig) -> str:
    from precgui.config.names import check_precision

    name = args.precision or requested.precision
    if args.precision is None and name == "fp32":
        raise UserError("the source is in FP32, which the branches are compared with; add --precision P")
    try:
        return check_precision(name)
    except ValueError as error:
        raise UserError(f"--precision: {error}") from None


def _path(args: argparse.Namespace, precision: str) -> Path | None:
    from precgui.runs.twins import TWINS

    if args.output is not None:
        return Path(args.output)
    return TWINS.path(Path(args.source), precision) if _is_run(args.source) else None


def _quiet(done: int, count: int) -> None:
    """Progress is not printed."""


def _say(done: int, count: int) -> None:
    say(f"branch {done} of {count}", file=sys.stderr, flush=True)


def _print(result: TwinResult, path: Path | None) -> None:
    console = HarmlessConsole(highlight=False, soft_wrap=True)
    console.print(Text(result.message, style=_COLOURS.get(result.verdict, "green")))
    table = Table(box=SIMPLE_HEAD)
    for name in ("held-out loss against FP32", "mean", "sd of a branch", "p (t)", "p (sign flips)", "verdict"):
        table.add_column(name, justify="left" if name.startswith(("held", "verdict")) else "right")
    for name, drift in ((result.precision, result.drift), ("rounding twin", result.twin)):
        table.add_row(name, *_cells(drift))
    console.print(table)
    step, outside = result.first_step_outside, result.tensors_outside()
    if step is None:
        console.print(Text(f"within {result.steps} steps nothing leaves the band of the rounding twins"))
    else:
        console.print(Text(f"step {step} of a branch is the first outside the band of the rounding twins"))
    if outside:
        names = some_names([band.name for band in outside], _MAX_TENSORS)
        console.print(Text(f"first tensors outside it, the farthest first: {names}"))
    for note in result.notes:
        console.print(Text(f"note: {note}"))
    if path is not None:
        console.print(Text(f"written to {path}"))


def _cells(drift: Drift) -> list[str]:
    from precgui.runs.twins import p_text

    if drift.mean is None or drift.sd is None or drift.p_t is None or drift.p_sign_flip is None:
        return ["not finite", "", "", "", drift.verdict]
    p_values = (p_text(p).removeprefix("= ") for p in (drift.p_t, drift.p_sign_flip))
    return [f"{drift.mean:+.2e}", f"{drift.sd:.1e}", *p_values, drift.verdict]
