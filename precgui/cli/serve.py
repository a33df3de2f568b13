"""`precgui serve --stdio`: the agent of a place; `precgui places` starts it, people do not."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from precgui.cli.parser import UserError
from precgui.words import _


def add_parsers(subparsers: Any) -> None:
    """Add `serve` to the command line."""
    parser = subparsers.add_parser("serve", help=_("the far end of a place: frames in, frames out (docs/frames.md)"))
    parser.add_argument("--stdio", action="store_true", help=_("over standard input and output; there is no other way"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until the input ends."""
    if not args.stdio:
        raise UserError(_("--stdio is missing: the agent speaks over its input and output alone"))
    if sys.stdin.isatty():
        raise UserError(_("the agent is started by a place, not by hand; see `precgui places --help`"))
    from precgui.places.agent import serve_stdio

    serve_stdio()
    return 0
