"""`precgui examples`: the bundled runs and the study, with their paths for other commands."""

from __future__ import annotations

import argparse
from typing import Any

from rich.text import Text

from precgui.cli.format_tables import console, print_json
from precgui.examples import EXAMPLES, Example
from precgui.words import _, translated


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command and set its `run`."""
    parser = subparsers.add_parser("examples", help=_("bundled example runs and a study, with their paths"))
    parser.add_argument("--json", action="store_true", help=_("print one JSON document"))
    parser.set_defaults(run=run_examples)


def run_examples(args: argparse.Namespace) -> int:
    if args.json:
        print_json({"examples": [_row(each) for each in EXAMPLES]})
        return 0
    screen = console()
    for each in EXAMPLES:
        screen.print(Text(translated(each.title), style="bold"))
        screen.print(Text(f"  {translated(each.about)}"))
        screen.print(Text(f"  precgui {_command(each)} {each.path}", style="cyan"), soft_wrap=True)
    return 0


def _command(each: Example) -> str:
    return "compare --groups" if each.is_study else "diagnose"


def _row(each: Example) -> dict[str, Any]:
    kind = "study" if each.is_study else "run"
    return {
        "name": each.name, "title": each.title, "about": each.about, "kind": kind, "path": str(each.path),
        "rule": each.rule or None,
    }  # fmt: skip
