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
from precgui.cli.parser import UserError, add_settings
from precgui.cli.place_option import add_place_option, run_source_there
from precgui.cli.terminal import say
from precgui.sanitize import some_names
from precgui.words import _, error_text, translated

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
        help=_("tell the bias of a precision apart from noise, within one run"),
        description=_(
            "Trains in FP32. At each branch point the next steps are made in FP32, in the precision, and in "
            "FP32 from weights that moved by one ulp, from the same state on the same batches; the held-out losses "
            "afterwards are compared in pairs."
        ),
        epilog=_("Exit code: 0 no bias is shown, 1 the precision is biased or breaks."),
    )
    parser.add_argument("source", metavar="CONFIG.toml|RECIPE|RUN.h5", help=_("what to train, or a run to train again"))
    parser.add_argument("--precision", metavar="P", help=_("beside FP32; default: that of the source"))
    _add_branches(parser)
    add_settings(parser, _("change one value"))
    parser.add_argument(
        "--own-code", action="store_true", help=_("run the code of a task of your own that a run names")
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.json",
        help=_("where the result is kept; default: beside RUN.h5, where Inspect > Error reads it; else nowhere"),
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    add_place_option(parser, run_source_there)
    parser.set_defaults(run=run)


def _add_branches(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--branches",
        type=int,
        default=_BRANCHES,
        metavar="N",
        help=_("10 to {most}, default {branches}").format(most=_MOST, branches=_BRANCHES),
    )
    parser.add_argument(
        "--steps", type=int, default=_STEPS, metavar="N", help=_("of each branch, default {steps}").format(steps=_STEPS)
    )
    parser.add_argument(
        "--twins", type=int, default=_TWINS, metavar="N", help=_("at each point, default {twins}").format(twins=_TWINS)
    )
    parser.add_argument("--warm-up", type=int, metavar="N", help=_("steps before the first branch; default a fifth"))


def run(args: argparse.Namespace) -> int:
    """Branch, judge, keep and print. Raises SentenceError for faults that the user can correct."""
    from precgui.replay_job import branched
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
            raise UserError(
                _("{name} {value} is outside {least} to {most}").format(name=name, value=value, least=least, most=_MOST)
            )


def _is_run(source: str) -> bool:
    return source.endswith((".h5", ".hdf5"))


def _requested(args: argparse.Namespace) -> RunConfig:
    """The config of the source with the settings. Raises SentenceError."""
    from precgui.config.names import OWN_LOOP, is_own_task, no_start
    from precgui.runs.file.reader import open_run

    if not _is_run(args.source):
        return config.load(args.source, args.settings)
    if args.settings:
        raise UserError(_("--set changes a config or a recipe; a run is branched as it was recorded"))
    with open_run(Path(args.source)) as saved:
        requested = saved.config
    if requested.task == OWN_LOOP:
        raise UserError(no_start(str(args.source)))
    if is_own_task(requested.task) and not args.own_code:
        raise UserError(
            _("{source} was trained on a task of your own; --own-code runs the code that it names").format(
                source=args.source
            )
        )
    return requested


def _precision(args: argparse.Namespace, requested: RunConfig) -> str:
    from precgui.config.names import check_precision

    name = args.precision or requested.precision
    if args.precision is None and name == "fp32":
        raise UserError(_("the source is in FP32, which the branches are compared with; add --precision P"))
    try:
        return check_precision(name)
    except ValueError as error:
        raise UserError(f"--precision: {error_text(error)}") from None


def _path(args: argparse.Namespace, precision: str) -> Path | None:
    from precgui.runs.twins import TWINS

    if args.output is not None:
        return Path(args.output)
    return TWINS.path(Path(args.source), precision) if _is_run(args.source) else None


def _quiet(done: int, count: int) -> None:
    """Progress is not printed."""


def _say(done: int, count: int) -> None:
    say(_("branch {done} of {count}").format(done=done, count=count), file=sys.stderr, flush=True)


def _print(result: TwinResult, path: Path | None) -> None:
    console = HarmlessConsole(highlight=False, soft_wrap=True)
    console.print(Text(translated(result.message), style=_COLOURS.get(result.verdict, "green")))
    table = Table(box=SIMPLE_HEAD)
    table.add_column(_("held-out loss against FP32"))
    for name in (_("mean"), _("sd of a branch"), "p (t)", _("p (sign flips)")):
        table.add_column(name, justify="right")
    table.add_column(_("verdict"))
    for name, drift in ((result.precision, result.drift), (_("rounding twin"), result.twin)):
        table.add_row(name, *_cells(drift))
    console.print(table)
    step, outside = result.first_step_outside, result.tensors_outside()
    if step is None:
        console.print(
            Text(_("within {steps} steps nothing leaves the band of the rounding twins").format(steps=result.steps))
        )
    else:
        console.print(
            Text(_("step {step} of a branch is the first outside the band of the rounding twins").format(step=step))
        )
    if outside:
        names = some_names([band.name for band in outside], _MAX_TENSORS)
        console.print(Text(_("first tensors outside it, the farthest first: {names}").format(names=names)))
    for note in result.notes:
        console.print(Text(_("note: {note}").format(note=translated(note))))
    if path is not None:
        console.print(Text(_("written to {path}").format(path=path)))


def _cells(drift: Drift) -> list[str]:
    from precgui.runs.twins import p_text

    if drift.mean is None or drift.sd is None or drift.p_t is None or drift.p_sign_flip is None:
        return [_("not finite"), "", "", "", translated(drift.verdict)]
    p_values = (p_text(p).removeprefix("= ") for p in (drift.p_t, drift.p_sign_flip))
    return [f"{drift.mean:+.2e}", f"{drift.sd:.1e}", *p_values, translated(drift.verdict)]
