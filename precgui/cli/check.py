"""`precgui check`: mistakes in mixed precision that the text of a training script shows. The script is never run."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from precgui.cli.console import HarmlessConsole
from precgui.cli.terminal import say
from precgui.words import L_, _, error_text, translated

if TYPE_CHECKING:
    from precgui.lint.check import ScriptError, ScriptFinding

_COLOURS = {L_("error"): "red", L_("warning"): "yellow", L_("info"): "cyan"}


def add_parsers(subparsers: Any) -> None:
    """Add `check` to the command line."""
    parser = subparsers.add_parser(
        "check",
        help=_("look for mistakes in mixed precision in training scripts, without running them"),
        epilog=_(
            "Exit code: 0 nothing found (infos do not count), 1 errors or warnings, 2 the command is not "
            "understood or a script cannot be read; the other scripts are checked all the same."
        ),
    )
    parser.add_argument("scripts", nargs="+", type=Path, metavar="SCRIPT.py", help=_("Python files or notebooks"))
    parser.add_argument("--diff", action="store_true", help=_("print the change of each finding that has one, too"))
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check each script and report, those that cannot be read, too. Returns 1 for errors and warnings, 2 where a script
    of several cannot be read. Raises SentenceError for a script alone that cannot be read."""
    from precgui.lint.check import ScriptError, check_file

    reported: dict[Path, list[ScriptFinding]] = {}
    unread: dict[Path, ScriptError] = {}
    for path in dict.fromkeys(args.scripts):
        try:
            reported[path] = check_file(path)
        except ScriptError as error:
            if len(args.scripts) == 1:
                raise
            unread[path] = error
    if args.json:
        documents = [_document(path, findings, diff=args.diff) for path, findings in reported.items()]
        documents += [{"script": str(path), "findings": [], "error": str(why)} for path, why in unread.items()]
        print(json.dumps({"scripts": documents} if len(args.scripts) > 1 else documents[0], ensure_ascii=False))
    else:
        console = HarmlessConsole(highlight=False, soft_wrap=True)
        for path, findings in reported.items():
            _print(console, path, findings, diff=args.diff)
        for why in unread.values():
            say(f"precgui: {error_text(why)}", file=sys.stderr)
    if unread:
        return 2
    return 1 if any(each.severity != "info" for findings in reported.values() for each in findings) else 0


def _document(path: Path, findings: list[ScriptFinding], *, diff: bool) -> dict[str, Any]:
    """The findings of one script for JSON; those of a notebook have a cell, and no change that could be applied."""
    changes = _changes(path, findings) if diff else [None] * len(findings)
    rows = [asdict(each) | {"diff": change} for each, change in zip(findings, changes, strict=True)]
    left_out = _left_out(path)
    return {
        "script": str(path),
        "findings": [{key: value for key, value in row.items() if value is not None} for row in rows],
        **({"cells_left_out": left_out} if left_out else {}),
    }


def _print(console: HarmlessConsole, path: Path, findings: list[ScriptFinding], *, diff: bool) -> None:
    from precgui.formats.claims import claims_about

    if left_out := _left_out(path):
        cells = ", ".join(map(str, left_out))
        console.print(
            _("{path}: no Python that can be parsed in cell {cells}: left out").format(
                path=escape(str(path)), cells=cells
            )
        )
    if not findings:
        console.print(_("{path}: nothing found").format(path=escape(str(path))))
    changes = _changes(path, findings) if diff else [""] * len(findings)
    for each, change in zip(findings, changes, strict=True):
        colour = _COLOURS[each.severity]
        place = f"{each.line}" if each.cell is None else f"{each.cell}:{each.line}"
        severity, title = translated(each.severity), escape(translated(each.title))
        console.print(f"{escape(str(path))}:{place}: [{colour}]{severity}[/] {title} ({each.rule})")
        console.print("    " + _("Fix: {fix}").format(fix=escape(translated(each.fix))))
        for claim in claims_about(each.rule):
            console.print(f"    [dim]{escape(translated(claim.sentence))}[/]")
        if change:
            console.print(escape(textwrap.indent(change, "    ")), end="")


def _changes(path: Path, findings: list[ScriptFinding]) -> list[str]:
    """The change of each finding as a unified diff, empty where there is none and for notebooks."""
    from precgui.lint.check import read_script
    from precgui.lint.rewrites import difference

    text = read_script(path)
    return ["" if each.cell is not None else difference(text, each, path.name) for each in findings]


def _left_out(path: Path) -> list[int]:
    """The cells of a notebook that hold no Python."""
    from precgui.lint.check import notebook_at

    notebook = notebook_at(path)
    return list(notebook.left_out) if notebook is not None else []
