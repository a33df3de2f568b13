"""`precgui export`: a run for other tools, as a PyTorch script, or its integer model as a program."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from precgui.cli.parser import UserError
from precgui.cli.terminal import say, say_notes
from precgui.words import _, wording


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
    if args.script:
        return _script(saved, args.script)
    if args.pt2:
        return _program(saved, args)
    if args.weights:
        return _weights(saved, args)
    if args.tensorboard:
        from precgui.runs.tensorboard.export import export_events

        return export_events(saved, args.tensorboard)
    if args.html:
        from precgui.runs.page import write_page

        return write_page(saved, args.html, wording())
    from precgui.runs.csv_export import export_csv

    return export_csv(saved, args.csv)


def _script(saved: Any, path: Path) -> list[Path]:
    from precgui.engine.export.script import write_script

    return write_script(saved.config, saved.environment, path)


def _weights(saved: Any, args: argparse.Namespace) -> list[Path]:
    from precgui.engine.export.weights import write_run_weights
    from precgui.runs.recorded_facts import weights_sources

    places = {name: Path(path) if path else None for name, path in weights_sources(saved).items()}
    return write_run_weights(places["checkpoint"], places["saved"], saved.run_id, args.weights, args.of)


def _program(saved: Any, args: argparse.Namespace) -> list[Path]:
    from precgui.runs.quantised_model import integer_model

    model = integer_model(saved)
    if model is None:
        raise UserError(
            _("{file} has no integer model; train in int8-qat to int1-qat with qat.save_to = auto").format(
                file=args.file
            )
        )
    if model.file is None:
        if model.kept:
            raise UserError(_("the integer model of {file} is no longer where it was written").format(file=args.file))
        raise UserError(_("the integer model of {file} was not kept; set qat.save_to = auto").format(file=args.file))
    from precgui.engine.qat.pt2 import write_program

    return write_program(model.file, args.pt2, own_code=args.own_code)
