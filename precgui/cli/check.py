"""`precgui check`: mistakes in mixed precision that the text of a training script shows. The script is never run."""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.markup import escape

from precgui.cli.console import HarmlessConsole

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


def add_parsers(subparsers: Any) -> None:
    """Add `check` to the command line."""
    parser = subparsers.add_parser(
        "check",
        help="look for mistakes in mixed precision in training scripts, without running them",
        epilog="Exit code: 0 nothing found (infos do not count), 1 errors or warnings, 2 the command is not "
        "understood.",
    )
    parser.add_argument("scripts", nargs="+", type=Path, metavar="SCRIPT.py", help="Python files")
    parser.add_argument("--diff", action="store_true", help="print the change of each finding that has one, too")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check each script and report. Returns 1 for errors and warnings. Raises SentenceError for what cannot be read."""
    from precgui.formats.claims import claims_about
    from precgui.lint.check import check_file, read_script
    from precgui.lint.rewrites import difference

    reported = [(path, check_file(path)) for path in args.scripts]
    texts = {path: read_script(path) for path in args.scripts} if args.diff else {}
    if args.json:
        documents = [
            {
                "script": str(path),
                "findings": [
                    asdict(each) | ({"diff": difference(texts[path], each, path.name)} if args.diff else {})
                    for each in outcome
                ],
            }
            for path, outcome in reported
        ]
        print(json.dumps(documents[0] if len(documents) == 1 else {"scripts": documents}, ensure_ascii=False))
    else:
        console = HarmlessConsole(highlight=False, soft_wrap=True)
        for path, result in reported:
            if not result:
                console.print(f"{escape(str(path))}: nothing found")
            for each in result:
                colour = _COLOURS[each.severity]
                console.print(
                    f"{escape(str(path))}:{each.line}: [{colour}]{each.severity}[/] {escape(each.title)} ({each.rule})"
                )
                console.print(f"    Fix: {escape(each.fix)}")
                for claim in claims_about(each.rule):
                    console.print(f"    [dim]{escape(claim.sentence)}[/]")
                if args.diff and (change := difference(texts[path], each, path.name)):
                    console.print(escape(textwrap.indent(change, "    ")), end="")
    return 1 if any(each.severity != "info" for _, answer in reported for each in answer) else 0
