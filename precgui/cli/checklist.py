"""`precgui checklist`: the check list of guides on mixed precision, each line measured from a run's file."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError

_MARKS = {"met": ("✓", "green"), "missed": ("✗", "red"), "not needed": ("-", "dim"), "not measured": ("?", "yellow")}


def add_parsers(subparsers: Any) -> None:
    """Add `checklist` to the command line."""
    parser = subparsers.add_parser(
        "checklist",
        help="what guides on mixed precision ask of a run, each line measured from its file",
        epilog="The effect of a setting is measured by a study: precgui sweep CONFIG.toml --vary SETTING=a,b. "
        "Exit code: 0 all lines met that were measured, 1 lines missed, 2 the command is not understood.",
    )
    parser.add_argument("file", type=Path, metavar="RUN.h5", help="a run file")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the lines. Returns 1 where one is missed. Raises UserError for a file that cannot be read."""
    from precgui.runs.check_list import check_list, lines_met
    from precgui.runs.errors import RunFileError
    from precgui.runs.open import open_run_or_events

    try:
        with open_run_or_events(args.file) as saved:
            lines = check_list(saved)
    except RunFileError as error:
        raise UserError(str(error)) from None
    if args.json:
        document = {"run": str(args.file), "lines": [asdict(line) for line in lines]}
        print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    else:
        console = HarmlessConsole(highlight=False, soft_wrap=True)
        for line in lines:
            mark, colour = _MARKS[line.state]
            console.print(Text(f"{mark} {line.title}: {line.state}", style=colour))
            console.print(Text(f"  {line.measured}"))
            for path, value in line.change.items():
                text = str(value).lower() if isinstance(value, bool) else value
                console.print(Text(f"  try: --set {path}={text}, in pairs: --vary {path}=..."))
        console.print(Text(lines_met(lines)))
    return 1 if any(line.state == "missed" for line in lines) else 0
