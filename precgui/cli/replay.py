"""`precgui replay`: one step of a recorded run again, with FP64 beside it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError
from precgui.cli.place_option import add_place_option, run_source_there
from precgui.cli.terminal import say
from precgui.words import L_, _, translated

if TYPE_CHECKING:
    from precgui.runs.file.reader import SavedRun
    from precgui.runs.replays import StepReplay

_MAX_ROWS = 12
_MECHANISMS = {
    "flush": L_("flush"), "rounding": L_("rounding"), "casts": L_("casts"), "flips": L_("flips"),
    "overflow": L_("overflow"),
}  # fmt: skip


def add_parsers(subparsers: Any) -> None:
    """Add `replay` to the command line."""
    parser = subparsers.add_parser(
        "replay",
        help=_("make one step of a run again with FP64 beside it: which line makes the error, is precision to blame"),
        epilog=_(
            "A step with a snapshot beside the run (the first with NaN or Inf, and record.snapshot_step) "
            "is made from it; up to any other one the run is trained again. Exit code: 0 healthy, 1 problems."
        ),
    )
    parser.add_argument("file", type=Path, metavar="RUN.h5", help=_("a run file of precgui run"))
    parser.add_argument(
        "--step", type=int, metavar="N", help=_("counted from 1; default the first that is not finite, else the last")
    )
    parser.add_argument(
        "--layers",
        metavar="P,P,...",
        help=_("compare each layer in up to five precisions with FP64, on this step's batch"),
    )
    parser.add_argument("--anatomy", action="store_true", help=_("print the moments and the casts of the step, too"))
    parser.add_argument(
        "--own-code", action="store_true", help=_("run the code of a task of your own that the run names")
    )
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    add_place_option(parser, run_source_there)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay and report; writes a side file that the window reads. Raises SentenceError for what cannot be replayed."""
    from precgui.cli.replay_anatomy import anatomy_of, print_anatomy
    from precgui.cli.replay_layers import layers_report
    from precgui.runs.file.reader import open_run
    from precgui.runs.replays import REPLAYS

    with open_run(args.file) as saved:
        if args.layers is not None:
            return layers_report(args, saved.config, _step(saved, args)[0])
        replay = _replayed(saved, args)
        path = REPLAYS.keep(args.file, replay)
    if args.json:
        reported = replay.model_dump(exclude={"format_version"})
        if args.anatomy:
            reported["anatomy"] = anatomy_of(args.file, replay.step).model_dump(exclude={"format_version"})
        print(json.dumps({"run": str(args.file), **reported}, ensure_ascii=False, allow_nan=False))
    else:
        _print(replay, path)
        if args.anatomy:
            print_anatomy(args.file, replay.step)
    return 0 if replay.verdict == "healthy" else 1


def _replayed(saved: SavedRun, args: argparse.Namespace) -> StepReplay:
    from precgui.job import replayed

    step, losses = _step(saved, args)
    return replayed(args.file, saved.config, losses, step, lambda: False)


def _step(saved: SavedRun, args: argparse.Namespace) -> tuple[int, list[float]]:
    """The step to be made again, and the recorded losses. Raises SentenceError for a run that cannot be made again."""
    from precgui.config.names import OWN_LOOP, is_own_task, no_start
    from precgui.runs.replays import first_bad_step, last_step, snapshot_path

    config = saved.config
    if config.task == OWN_LOOP:
        raise UserError(
            no_start(str(args.file), L_("call precgui.shadow and precgui.keep_shadow in it (docs/shadow.md)"))
        )
    if is_own_task(config.task) and not args.own_code:
        raise UserError(
            _("{file} was trained on a task of your own; --own-code runs the code that it names").format(file=args.file)
        )
    losses, last = saved.series("loss")[1].tolist(), last_step(saved)
    if not last:
        raise UserError(
            _("{file} has no recorded step to compare with; replay a run of precgui run").format(file=args.file)
        )
    step = args.step if args.step is not None else first_bad_step(saved) or last
    if not 1 <= step <= last:
        raise UserError(
            _("{file} has no step {step}; it has the steps 1 to {last}").format(file=args.file, step=step, last=last)
        )
    if not args.json and not snapshot_path(args.file, step).exists():
        say(_("training again up to step {step} ...").format(step=step), flush=True)
    return step, losses


def _print(replay: StepReplay, path: Path) -> None:
    console = HarmlessConsole(highlight=False, soft_wrap=True)
    colour = "green" if replay.verdict == "healthy" else "red"
    console.print(
        Text(_("step {step}: {verdict}").format(step=replay.step, verdict=translated(replay.verdict)), style=colour)
    )
    console.print(Text(translated(replay.message)))
    if replay.gradient_error is not None:
        table = Table(box=SIMPLE_HEAD)
        table.add_column(_("share"), justify="right", min_width=6)
        table.add_column(_("left"), justify="right", min_width=9)
        table.add_column(_("line"), overflow="fold")
        table.add_column(_("module"), overflow="fold")
        for line in replay.lines[:_MAX_ROWS]:
            left = _left(line.left_measured, line.left_predicted)
            table.add_row(f"{line.share:z.1%}", left, translated(line.line), line.module)
        console.print(table)
        console.print(
            Text(_("left: of the error, when all of this line runs in FP64, products too; about: from its share"))
        )
        shares = replay.mechanisms.model_dump().items()
        parts = ", ".join(f"{translated(_MECHANISMS[name])} {_share(value)}" for name, value in shares)
        console.print(Text(_("explained {share:.3f}; {parts}").format(share=replay.explained, parts=parts)))
    for note in replay.notes:
        console.print(Text(_("note: {note}").format(note=translated(note))))
    console.print(Text(_("written to {path}").format(path=path)))


def _left(measured: float | None, predicted: float | None) -> str:
    if measured is not None:
        return f"{measured:z.0%}"
    return _("unknown") if predicted is None else _("about {share}").format(share=f"{predicted:z.0%}")


def _share(value: float | None) -> str:
    return _("unknown") if value is None else f"{value:z.1%}"
