"""`precgui export`: a run for other tools, as a PyTorch script, or its integer model as a program."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from precgui.cli.parser import UserError
from precgui.cli.place_option import LinkWords, add_place_option, placed_run
from precgui.cli.terminal import say, say_notes
from precgui.places.tasks import TASKS
from precgui.words import L_, _, translated, wording


def add_parsers(subparsers: Any) -> None:
    """Add `export` to the command line."""
    parser = subparsers.add_parser("export", help=_("write a run for other tools, or as a script without precgui"))
    parser.add_argument("file", type=Path, metavar="RUN.h5", help=_("a run file"))
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--csv", type=Path, metavar="DIR", help=_("folder for one CSV file per table, and run.json"))
    what.add_argument("--tensorboard", type=Path, metavar="DIR", help=_("folder for a TensorBoard event file"))
    what.add_argument(
        "--html", type=Path, metavar="FILE.html", help=_("one page with all that is recorded, to be read")
    )
    what.add_argument("--json", action="store_true", help=_("print summary, config and machine as one JSON document"))
    what.add_argument("--script", type=Path, metavar="FILE.py", help=_("a PyTorch script that does the same run again"))
    what.add_argument(
        "--pt2", type=Path, metavar="FILE.pt2", help=_("the integer model that the run kept, as a program for torchao")
    )
    what.add_argument(
        "--weights",
        type=Path,
        metavar="FILE.safetensors",
        help=_("the weights of its newest checkpoint, or those that it saved; of adapters a folder of PEFT"),
    )
    parser.add_argument(
        "--of",
        choices=("last", "average", "master"),
        default="last",
        help=_("for --weights: of the last step, their moving average, or the FP32 master weights (default last)"),
    )
    parser.add_argument("--own-code", action="store_true", help=_("for --pt2: run the code of a task of your own"))
    add_place_option(
        parser, _run_there, L_("let the place where the run was trained write it: its checkpoints are there")
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Export and name the files. Raises SentenceError for a file that is no run or a place that cannot be written."""
    from precgui.runs.csv_export import about
    from precgui.runs.file.reader import open_run

    with open_run(args.file) as saved:
        if args.json:
            print(json.dumps(about(saved), ensure_ascii=False, allow_nan=False))
            say_notes(args.file, saved.notes)
            return 0
        written = _written(saved, args)
        say_notes(args.file, saved.notes)
    for path in written:
        say(path)
    return 0


def _written(saved: Any, args: argparse.Namespace) -> list[Path]:
    from precgui.export_job import KINDS, export_run

    for kind in KINDS:
        if target := getattr(args, kind):
            return export_run(saved, kind, target, args.of, own_code=args.own_code)
    if args.tensorboard:
        from precgui.runs.tensorboard.export import export_events

        return export_events(saved, args.tensorboard)
    if args.html:
        from precgui.runs.page import write_page

        return write_page(saved, args.html, wording())
    from precgui.runs.csv_export import export_csv

    return export_csv(saved, args.csv)


def _run_there(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Let the place of the run write it, and bring what it has written home. Returns the exit code."""
    from precgui.config.new_places import package_name
    from precgui.export_job import KINDS
    from precgui.places.placed_task import TaskPlace, done_there
    from precgui.places.settings import place_called

    kind = next((kind for kind in KINDS if getattr(args, kind)), "")
    if not kind:
        raise UserError(_("this is made from the file alone, which is here; leave --place out"))
    target, run_id = getattr(args, kind), placed_run(args.place, args.file)
    if target.exists():
        raise UserError(_("{home} is there already; choose another name").format(home=target))
    homes = (target, *([target.with_name(package_name(target))] if kind == "script" else []))
    arguments = {"path": str(args.file), "kind": kind, "target": str(target), "of": args.of, "own_code": args.own_code}
    there = TaskPlace(place_called(args.place), run_id, args.file, homes)
    shown = LinkWords()
    for event in done_there(there, TASKS["export"], arguments, shown.show):
        if event["kind"] == "fault":
            raise UserError(translated(event["message"]))
        for path in event["files"]:
            say(path)
    return 0
