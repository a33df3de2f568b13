"""`precgui whatif`: what another format or loss scale would have done to the tensors of a run, without a new run."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from math import isfinite, isnan, log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from precgui.cli import whatif_scaler
from precgui.cli.console import HarmlessConsole
from precgui.cli.csv_file import write_new_csv
from precgui.cli.parser import UserError
from precgui.cli.terminal import say_notes
from precgui.events import TENSOR_KINDS
from precgui.words import L_, Sentence, _, error_text, translated

if TYPE_CHECKING:
    from precgui.runs.tensors.what_if_table import WhatIfRow, WhatIfTable

_GROUPINGS = {
    "tensor": L_("by tensor"), "layer": L_("by layer"), "block": L_("by block"), "type": L_("by parameter type")
}  # fmt: skip
_EARLIER_GROUPINGS = {"sort": "type"}  # words of --for, as it was called before
_SORTS = ("underflow", "overflow", "snr", "safe-scale", "largest", "changed", "nonfinite", "lost")


def add_parsers(subparsers: Any) -> None:
    """Add `whatif` to the command line."""
    parser = subparsers.add_parser("whatif", help=_("what another format or loss scale would do to a run's tensors"))
    parser.add_argument("file", type=Path, metavar="RUN.h5", nargs="?", help=_("a run file; without it --scaler only"))
    parser.add_argument("--format", default="fp16", metavar="F", help=_("a format, several with commas, or all"))
    parser.add_argument(
        "--scale", default="1", metavar="S", help=_("a power of two, such as 65536 or 2^16 (default 1)")
    )
    parser.add_argument(
        "--tensors",
        choices=TENSOR_KINDS,
        metavar="KIND",
        help=_("list them all: one of {kinds}").format(kinds=", ".join(TENSOR_KINDS)),
    )
    parser.add_argument(
        "--group-by", dest="grouping", choices=_GROUPINGS, default="tensor", metavar="WHAT",
        help=_("one line for each {groups} (default tensor)").format(groups=", ".join(_GROUPINGS)),
    )  # fmt: skip
    parser.add_argument(
        "--for", dest="grouping", choices=_GROUPINGS, type=lambda word: _EARLIER_GROUPINGS.get(word, word),
        default=argparse.SUPPRESS, help=argparse.SUPPRESS,
    )  # fmt: skip
    parser.add_argument(
        "--sort", choices=_SORTS, metavar="S", help=_("the worst first: {sorts}").format(sorts=", ".join(_SORTS))
    )
    whatif_scaler.add_options(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    form.add_argument("--csv", type=Path, metavar="FILE", help=_("write every tensor of every kind to a new CSV file"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the record and report. Raises SentenceError for a file without tensors, and for what cannot be asked."""
    if args.scaler:
        return whatif_scaler.run(args, _formats(args.format))
    if args.file is None:
        raise UserError(_("whatif needs a run file; only --scaler has made-up gradients to try it on."))
    if args.inject:
        raise UserError(_("--inject belongs to --scaler; give a policy, such as --scaler initial=65536."))
    log2_scale = _log2_scale(args.scale)
    formats = _formats(args.format)
    about, reported = _foretold(args, formats, log2_scale)
    if args.json:
        kinds = [_as_json(kind, listed=args.tensors is not None, sort=args.sort) for kind in reported]
        print(json.dumps({**about, "scale": 2.0**log2_scale, "kinds": kinds}, ensure_ascii=False, allow_nan=False))
    elif args.csv is not None:
        _write_csv(args.csv, reported)
    else:
        _print(HarmlessConsole(), reported, args, log2_scale)
    return 0


def _foretold(
    args: argparse.Namespace, formats: list[str], log2_scale: int
) -> tuple[dict[str, Any], list[WhatIfTable]]:
    from precgui.runs.file.reader import open_run
    from precgui.runs.tensors.what_if_table import what_if_table

    with open_run(args.file) as saved:
        recorded = list(saved.tensors())
        if args.tensors and recorded and args.tensors not in recorded:
            raise UserError(
                _("{file} has no {tensors}: choose from {recorded}.").format(
                    file=args.file, tensors=args.tensors, recorded=", ".join(recorded)
                )
            )
        kinds = [args.tensors] if args.tensors else recorded
        results = [what_if_table(saved, kind, formats, log2_scale, _GROUPINGS[args.grouping]) for kind in kinds]
        about = {"run": str(args.file), "title": saved.title, "precision": saved.config.precision}
        say_notes(args.file, saved.notes)
    reported = [kind for kind in results if kind is not None]
    if not reported:
        raise UserError(
            _("{file} has no tensors; train it again with record.tensors switched on.").format(file=args.file)
        )
    return about, reported


def _log2_scale(text: str) -> int:
    """The exponent of a power of two. Raises SentenceError."""
    if power := re.fullmatch(r"2(?:\^|\*\*)([+-]?\d{1,3})", text):
        return int(power[1])
    try:
        scale = float(text)
    except ValueError:
        scale = float("nan")
    if not (isfinite(scale) and scale > 0):
        raise UserError(_("--scale {text}: a power of two is needed, such as 65536 or 2^16.").format(text=text))
    exponent = round(log2(scale))
    if 2.0**exponent != scale:
        raise UserError(
            _("--scale {text} is no power of two; the nearest one is {value:.10g}, 2^{exponent}.").format(
                text=text, value=2.0**exponent, exponent=exponent
            )
        )
    return exponent


def _formats(text: str) -> list[str]:
    """Names of formats as the record answers for them. Raises SentenceError."""
    from precgui.formats.registry import blocks, get
    from precgui.runs.tensors.what_if import format_names, range_of

    if text == "all":
        return format_names()
    names = []
    for given in text.split(","):
        try:
            range_of(given.strip())
            names.append(get(given.strip()).name)
        except ValueError as error:
            if given.strip() in blocks():
                raise UserError(
                    _("--format {given}: {error}; ask for its elements, such as e2m1").format(
                        given=given, error=error_text(error)
                    )
                ) from None
            raise UserError(f"--format {given}: {error_text(error)}") from None
    return names


def _as_json(table: WhatIfTable, *, listed: bool, sort: str | None) -> dict[str, Any]:
    from precgui.runs.tensors.what_if_table import as_json

    lines = [as_json(line) for line in _lines(table, listed=listed, sort=sort)]
    return {
        "kind": table.kind,
        "recorded_steps": table.steps,
        "first_step": table.first_step,
        "last_step": table.last_step,
        "certainty": table.certainty,
        "notes": list(table.notes),
        "tensors": lines,
    }


def _lines(table: WhatIfTable, *, listed: bool, sort: str | None) -> list[WhatIfRow]:
    """The entries of a kind, or only the whole, which comes first in each format."""
    from precgui.runs.tensors.grouping import ALL
    from precgui.runs.tensors.what_if_table import ordered

    if not listed:
        return [line for line in table.tensors if line.tensor == ALL]
    return ordered(table.tensors, sort, ALL) if sort else list(table.tensors)


def _print(console: Console, tables: list[WhatIfTable], args: argparse.Namespace, log2_scale: int) -> None:
    listed, several = args.tensors is not None, "," in args.format or args.format == "all"
    displayed = [(kind.kind, line) for kind in tables for line in _lines(kind, listed=listed, sort=args.sort)]
    columns = _columns([line for kind, line in displayed], listed=listed)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(_("tensor") if listed else _("tensors"), overflow="fold", no_wrap=not listed)
    if several:
        table.add_column(_("format"), no_wrap=True)
    for title, _cell in columns:
        table.add_column(title, justify="right")
    for kind, line in displayed:
        cells = [
            line.tensor if listed else kind,
            *([line.format] if several else []),
            *(cell_text(line) for title, cell_text in columns),
        ]
        table.add_row(*(escape(cell) for cell in cells))
    formats = args.format if several else tables[0].tensors[0].format
    console.print(
        _("{formats} at scale 2^{exponent}; {extent}").format(
            formats=escape(formats), exponent=log2_scale, extent=_extent(tables)
        ),
        highlight=False,
    )
    console.print(table)
    for note in _notes(tables):
        console.print(escape(note), highlight=False)


def _extent(tables: list[WhatIfTable]) -> str:
    first, last = min(kind.first_step for kind in tables), max(kind.last_step for kind in tables)
    if len(tables) == 1:
        return _("{kind}, measured at {steps} steps from {first} to {last}").format(
            kind=tables[0].kind, steps=tables[0].steps, first=first, last=last
        )
    return _("steps {first} to {last}").format(first=first, last=last)


def _notes(tables: list[WhatIfTable]) -> list[str]:
    """How sure the answers are, each note once with the kinds that it is about, and what stored weights would lose."""
    from precgui.runs.tensors.what_if_table import LOST_FORMATS, lost_sentence

    about: dict[str, list[str]] = {}
    for kind in tables:
        whole = kind.tensors[0]
        sentence = lost_sentence({name: getattr(whole, f"lost_{name}") for name in LOST_FORMATS})
        if sentence:
            about.setdefault(sentence, []).append(kind.kind)
    for kind in tables:
        about.setdefault(Sentence("{text}.", text=kind.certainty), []).append(kind.kind)
    for kind in tables:
        for note in kind.notes:
            about.setdefault(note, []).append(kind.kind)
    note_of = _("{kinds}: {note}")
    return [note_of.format(kinds=", ".join(kinds), note=translated(note)) for note, kinds in about.items()]


def _columns(lines: list[WhatIfRow], *, listed: bool) -> list[tuple[str, Callable[[WhatIfRow], str]]]:
    """Headings and texts; what no line has is left out."""
    from precgui.runs.tensors.confidence import NOTHING, share_text, spread_text

    def whole(value: float, before: str = "") -> str:
        return NOTHING if isnan(value) else f"{before}{value:.0f}"

    columns: list[tuple[str, Callable[[WhatIfRow], str]]] = [
        (_("to zero"), lambda line: spread_text(line.underflow, line.underflow_spread)),
        (_("overflow"), lambda line: spread_text(line.overflow, line.overflow_spread)),
        (_("SNR\ndB"), lambda line: f"{line.snr_db:.0f}" if isfinite(line.snr_db) else NOTHING),
        (_("safe\nscale"), lambda line: whole(line.safe_scale_log2, "2^")),
        (_("largest"), lambda line: NOTHING if isnan(line.largest) else f"{line.largest:.2e}"),
    ]
    if listed and not all(isnan(line.changed) for line in lines):
        columns.append((_("changed"), lambda line: share_text(line.changed)))
        if not all(isnan(share) for share in map(_lost, lines)):
            columns.append((_("lost"), lambda line: share_text(_lost(line))))
    if not all(isnan(line.nonfinite_step) for line in lines):
        columns.append((_("NaN/Inf\nin step"), lambda line: whole(line.nonfinite_step)))
    return columns


def _lost(line: WhatIfRow) -> float:
    """The share of the changes that weights stored in the format of the line would not take, NaN if not recorded."""
    return float(getattr(line, f"lost_{line.format}", float("nan")))


def _write_csv(path: Path, tables: list[WhatIfTable]) -> None:
    from precgui.runs.tensors.what_if_table import as_json

    rows = [
        {"kind": kind.kind, **as_json(line), "certainty": kind.certainty} for kind in tables for line in kind.tensors
    ]
    write_new_csv(path, list(rows[0]), (row.values() for row in rows))
