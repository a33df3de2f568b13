"""`precgui model FILE OTHER`: what moved from one checkpoint to another."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from precgui.cli.csv_file import write_new_csv
from precgui.cli.format_tables import console, json_number, print_json, print_lines, progress_text, table
from precgui.cli.parser import UserError
from precgui.cli.terminal import say
from precgui.config.new_places import place_fault
from precgui.formats.checkpoints.comparison import ModelComparison, TensorChange, compare_models
from precgui.formats.checkpoints.contents import StoredModel, open_checkpoint
from precgui.formats.text import grouped
from precgui.runs.models.comparison_rows import TITLES, change_rows, comparison_notes
from precgui.words import _, translated

MOST_ROWS = 400  # of a table on a terminal; --json and --csv have all
_FIELDS = ("name", "dtype", "other_dtype", "numbers", "changed", "nonfinite", "sqnr_db", "largest", "ulps_of",
           "median_ulps", "largest_ulps")  # fmt: skip


def run_comparison(args: argparse.Namespace) -> int:
    """Compare two models and print the result; 0 also where they differ. Raises SentenceError for what is no model."""
    if args.formats or args.scan or args.output:
        raise UserError(_("two models are compared without a scan: leave --formats, --scan and -o away, or the second"))
    if args.csv is not None and (fault := place_fault(args.csv)):
        raise UserError(fault)
    source, other = open_checkpoint(args.source), open_checkpoint(args.other)
    result = _compared(source, other, args.threads)
    if args.json:
        print_json(_document(result))
    elif args.csv:
        _write_csv(args.csv, result.changes)
        say(args.csv)
    else:
        _print(result)
    return 0


def _compared(source: StoredModel, other: StoredModel, threads: int) -> ModelComparison:
    shows = sys.stderr.isatty()

    def progress(share: float) -> None:
        if shows:
            say(
                progress_text(share, source.parameters),
                file=sys.stderr,
                end="",
            )

    count = threads if threads > 0 else max((os.cpu_count() or 2) - 1, 1)
    try:
        return compare_models(source, other, progress, threads=count)
    finally:
        if shows:
            say(file=sys.stderr)


def _document(result: ModelComparison) -> dict[str, Any]:
    return {
        "source": result.source, "other": result.other, "compared": len(result.changes),
        "unchanged": result.unchanged, "numbers": result.numbers, "changed": result.changed_numbers,
        "sqnr_db": json_number(result.sqnr_db), "sentence": result.sentence,
        "tensors": [{**_row(each), "shape": list(each.shape)} for each in result.changes],
        "only_in_source": list(result.only_source), "only_in_other": list(result.only_other),
        "other_shapes": [
            {"name": name, "shape": list(shape), "other_shape": list(second)}
            for name, shape, second in result.other_shapes
        ],
        "skipped": [{"name": name, "why": why} for name, why in result.skipped],
    }  # fmt: skip


def _row(each: TensorChange) -> dict[str, Any]:
    values = {**vars(each), "numbers": each.size, "sqnr_db": each.sqnr_db}
    return {name: json_number(values[name]) if isinstance(values[name], float) else values[name] for name in _FIELDS}


def _write_csv(path: Path, changes: Sequence[TensorChange]) -> None:
    write_new_csv(path, _FIELDS, ([_row(each)[name] for name in _FIELDS] for each in changes))


def _print(result: ModelComparison) -> None:
    print_lines([(_("Model"), result.source), (_("Other"), result.other), (_("Result"), translated(result.sentence))])
    rows = change_rows(result)
    if len(rows) > 1:
        listed = table(_("Tensors that differ, the most changed first"), TITLES, right=TITLES[2:])
        for cells in rows[: MOST_ROWS + 1]:
            listed.add_row(*(Text(translated(cell)) for cell in cells))
        console().print(listed)
        if len(rows) > MOST_ROWS + 1:
            say(_("{count} more tensors; --json and --csv have all.").format(count=grouped(len(rows) - MOST_ROWS - 1)))
    for note in comparison_notes(result):
        say(translated(note))
