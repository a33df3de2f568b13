"""`precgui export`: the raw values of a run for other tools."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from precgui.cli.errors import UserError


def add_parsers(subparsers: Any) -> None:
    """Add `export` to the command line."""
    parser = subparsers.add_parser("export", help="write the raw values of a run for other tools")
    parser.add_argument("file", type=Path, metavar="RUN.h5", help="a run file")
    parser.add_argument(
        "--csv", type=Path, metavar="DIR", required=True, help="folder for one CSV file per table and run.json"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Export and name the files. Raises UserError for a file that is no run or a folder that cannot be written."""
    from precgui.runs.errors import RunFileError
    from precgui.runs.export import export_csv
    from precgui.runs.reader import open_run

    try:
        with open_run(args.file) as saved:
            written = export_csv(saved, args.csv)
    except RunFileError as error:
        raise UserError(str(error)) from None
    for path in written:
        print(path)
    return 0
