"""`precgui model`: what a checkpoint holds, and what every format does to every tensor of it."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from precgui.cli.csv_file import write_new_csv
from precgui.cli.format_tables import console, json_number, print_json, print_lines, progress_text, table
from precgui.cli.parser import UserError
from precgui.cli.terminal import say
from precgui.config.new_places import place_fault
from precgui.formats.checkpoints.contents import StoredModel, open_checkpoint
from precgui.formats.checkpoints.suffixes import SUFFIXES
from precgui.formats.checkpoints.survey import FIGURES, TensorSurvey
from precgui.formats.checkpoints.tensor import CheckpointTensor
from precgui.formats.text import grouped
from precgui.formats.weight_formats import DEFAULT, WeightFormat, known_formats, weight_format
from precgui.planner.ledger import mib
from precgui.sanitize import visible_name
from precgui.words import L_, _, translated

if TYPE_CHECKING:
    from precgui.runs.models.model_facts import FormatTotal

MOST_ROWS = 400  # of a table on a terminal; --json and --csv have all


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command and set its `run`."""
    parser = subparsers.add_parser(
        "model", help=_("a trained model from its files: its tensors, and what each format does to them"),
        description=_(
            "List the tensors of a model: a folder, an index.json, or a file ({suffixes}). Files are read as data; "
            "nothing in them is executed. With --formats every tensor is rounded to each format: bytes, signal to "
            "noise, largest error, what became zero, what was cut off."
        ).format(suffixes=", ".join(SUFFIXES)),
    )  # fmt: skip
    parser.add_argument("source", type=Path, metavar="FILE|DIR", help=_("a file or a folder with one model"))
    parser.add_argument(
        "other", nargs="?", type=Path, metavar="OTHER", help=_("another model: what moved from the first to this one")
    )
    parser.add_argument(
        "--formats", metavar="F,F", help=_(
            "scan it in these: {known}; any eXmY or INT2 to INT8, with /row, /none or a group, such as e3m4/32; "
            "default: {default}"
        ).format(known=", ".join(known_formats()), default=",".join(DEFAULT)),
    )  # fmt: skip
    parser.add_argument("--scan", action="store_true", help=_("scan it in the formats that --formats has by default"))
    parser.add_argument(
        "--threads", type=int, default=0, metavar="N", help=_("of the scan; 0: as many as cores but one")
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="MODEL.h5", help=_("keep the scan; one that was broken off there goes on")
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help=_("print one JSON document"))
    output.add_argument("--csv", type=Path, metavar="FILE", help=_("write a row for each tensor and format"))
    parser.set_defaults(run=run_model)


def run_model(args: argparse.Namespace) -> int:
    """Print the contents, then the scan. Raises SentenceError for what is no model; 130 where it was broken off."""
    if args.other is not None:
        from precgui.cli.model_comparison import run_comparison

        return run_comparison(args)
    if args.csv is not None and (fault := place_fault(args.csv)):
        raise UserError(fault)
    names = args.formats.split(",") if args.formats else DEFAULT
    formats = [weight_format(name.strip()) for name in names]
    checkpoint = open_checkpoint(args.source)
    scans = bool(args.formats or args.scan or args.output or args.csv)
    if not args.json:
        _print_contents(checkpoint, rows=not scans)
    surveys: list[TensorSurvey] = []
    whole = True
    if scans:
        surveys, whole = _scan(args, checkpoint, formats)
    if args.json:
        findings = _findings(checkpoint, formats, surveys) if scans and whole else None
        print_json(_document(checkpoint, formats, surveys) | {"findings": findings})
    elif args.csv:
        _write_csv(args.csv, formats, surveys)
        say(args.csv)
    elif scans:
        _print_scan(checkpoint, formats, surveys)
    return 0 if whole else 130


def _scan(
    args: argparse.Namespace, checkpoint: StoredModel, formats: Sequence[WeightFormat]
) -> tuple[list[TensorSurvey], bool]:
    """Scan with the share that is done on a line of the terminal; broken off, what is done so far."""
    from precgui.model_job import scan_model

    shows, broken = sys.stderr.isatty(), threading.Event()

    def progress(share: float) -> None:
        if shows:
            say(
                progress_text(share, checkpoint.parameters),
                file=sys.stderr,
                end="",
            )

    earlier = signal.signal(signal.SIGINT, lambda *_: broken.set())
    try:
        surveys, whole = scan_model(
            checkpoint, formats, args.output, progress, threads=args.threads, stopped=broken.is_set
        )
    finally:
        signal.signal(signal.SIGINT, earlier)
        if shows:
            say(file=sys.stderr)
    if not whole:
        if args.output:
            text = _("the scan was broken off; the same command goes on.")
        else:
            text = _("the scan was broken off; with -o MODEL.h5 it could go on.")
        say(f"precgui: {text}", file=sys.stderr)
    return surveys, whole


def _document(
    checkpoint: StoredModel, formats: Sequence[WeightFormat], surveys: Sequence[TensorSurvey]
) -> dict[str, Any]:
    """Contents and scan as JSON; infinite ratios are text, since JSON has none."""
    known = {each.name: each for each in surveys}
    rows = [_tensor(tensor, formats, known.get(tensor.name)) for tensor in checkpoint.tensors]
    sums = _totals(checkpoint, formats, surveys) if surveys else []
    return {
        "source": str(checkpoint.source),
        "files": [{"name": file.name, "bytes": file.nbytes} for file in checkpoint.files],
        "parameters": checkpoint.parameters, "bytes": checkpoint.nbytes,
        "architecture": checkpoint.architecture or None, "tensors": rows,
        "totals": {
            each.name: {
                "bytes": each.nbytes, "sqnr_db": json_number(each.sqnr_db), "as_stored": len(surveys) - each.fitting,
            }
            for each in sums
        },
        "skipped": [{"name": each.name, "why": each.why_not} for each in checkpoint.tensors if each.why_not],
        "notes": list(checkpoint.notes),
    }  # fmt: skip


def _totals(
    checkpoint: StoredModel, formats: Sequence[WeightFormat], surveys: Sequence[TensorSurvey]
) -> list[FormatTotal]:
    """The whole model in each format, in their order."""
    from precgui.runs.models.model_facts import format_totals
    from precgui.runs.models.model_file import scan_of

    known = {each.name: each for each in format_totals(scan_of(checkpoint, formats, surveys))}
    return [known[fmt.name] for fmt in formats]


def _findings(
    checkpoint: StoredModel, formats: Sequence[WeightFormat], surveys: Sequence[TensorSurvey]
) -> list[dict[str, Any]]:
    from precgui.runs.diagnosis import as_json, examine_scan
    from precgui.runs.models.model_file import scan_of

    return [as_json(each) for each in examine_scan(scan_of(checkpoint, formats, surveys)).findings]


def _tensor(tensor: CheckpointTensor, formats: Sequence[WeightFormat], found: TensorSurvey | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype, "stored_as": tensor.stored_as,
        "bytes": tensor.nbytes,
    }  # fmt: skip
    if found is not None:
        row |= {
            "amax": found.amax,
            "zeros": found.zeros,
            "nonfinite": found.nonfinite,
            "kurtosis": json_number(found.kurtosis),
        }
        row["formats"] = {
            fmt.name: dict(zip(FIGURES, map(json_number, figures.tolist()), strict=True)) | {"scale": fmt.rule}
            for fmt, figures in zip(formats, found.figures, strict=True)
            if not math.isnan(figures[0])
        }
    return row


def _write_csv(path: Path, formats: Sequence[WeightFormat], surveys: Sequence[TensorSurvey]) -> None:
    rows = (
        (each.name, fmt.name, *figures.tolist())
        for each in surveys
        for fmt, figures in zip(formats, each.figures, strict=True)
        if not math.isnan(figures[0])
    )
    write_new_csv(path, ("tensor", "format", *FIGURES), rows)


def _print_contents(checkpoint: StoredModel, *, rows: bool) -> None:
    kinds = Counter[str]()
    for tensor in checkpoint.tensors:
        kinds[tensor.stored_as] += tensor.nbytes
    print_lines(
        [
            (_("Model"), str(checkpoint.source)),
            (_("Architecture"), checkpoint.architecture or _("not told")),
            (_("Files"), f"{len(checkpoint.files)}, {mib(sum(file.nbytes for file in checkpoint.files))}"),
            (
                _("Tensors"),
                _("{tensors} with {parameters} parameters").format(
                    tensors=grouped(len(checkpoint.tensors)), parameters=grouped(checkpoint.parameters)
                ),
            ),
            (_("Stored as"), ", ".join(f"{kind} {mib(size)}" for kind, size in kinds.most_common())),
        ]
    )
    for note in checkpoint.notes:
        say(translated(note))
    if not rows:
        return
    headings = (L_("Tensor"), L_("Shape"), L_("Format"), L_("Stored as"), L_("Bytes"), L_("Remark"))
    listed = table("", headings, right=("Bytes",))
    for tensor in checkpoint.tensors[:MOST_ROWS]:
        shape = " x ".join(map(str, tensor.shape)) or _("one number")
        remark = _("not read: {why}").format(why=translated(tensor.why_not)) if tensor.why_not else ""
        listed.add_row(
            *map(Text, (visible_name(tensor.name), shape, tensor.dtype, tensor.stored_as, mib(tensor.nbytes), remark))
        )
    console().print(listed)
    _say_more(len(checkpoint.tensors))


def _say_more(count: int) -> None:
    if count > MOST_ROWS:
        say(_("{count} more tensors; --json and --csv have all.").format(count=grouped(count - MOST_ROWS)))


def _print_totals(sums: Sequence[FormatTotal], tensors: int) -> None:
    """The whole model in each format."""
    left = [tensors - each.fitting for each in sums]
    kept, columns = (L_("As they are"),) if any(left) else (), (L_("Bytes"), L_("Signal to noise, dB"))
    headings = (L_("Format"), L_("Stored by"), *columns, *kept)
    whole = table(_("All tensors"), headings, right=(*columns, *kept))
    for each, count in zip(sums, left, strict=True):
        cells = [each.name, translated(each.title), mib(each.nbytes), _decibel(each.sqnr_db)]
        whole.add_row(*map(Text, [*cells, *([grouped(count) if count else ""] if kept else [])]))
    console().print(whole)
    if kept:
        say(_("As they are: tensors that the format does not fit; they count as they are stored."))


def _print_scan(checkpoint: StoredModel, formats: Sequence[WeightFormat], surveys: Sequence[TensorSurvey]) -> None:
    """Totals of each format, then the signal to noise of each tensor in each format."""
    _print_totals(_totals(checkpoint, formats, surveys), len(surveys))
    names = [fmt.name for fmt in formats]
    listed = table(_("Signal to noise of each tensor, dB"), (L_("Tensor"), L_("Outliers"), *names), right=names)
    for each in surveys[:MOST_ROWS]:
        cells = (_decibel(row[FIGURES.index("sqnr_db")]) for row in each.figures)
        listed.add_row(*map(Text, (visible_name(each.name), _outliers(each), *cells)))
    console().print(listed)
    _say_more(len(surveys))
    for tensor in checkpoint.tensors:
        if tensor.why_not:
            text = _("{name} was left out: {why}.")
            say(text.format(name=visible_name(tensor.name), why=translated(tensor.why_not)))


def _decibel(value: float) -> str:
    return "" if math.isnan(value) else _("exact") if value == math.inf else f"{value:.1f}"


def _outliers(each: TensorSurvey) -> str:
    """The widest columns, where some are far wider than the usual one."""
    wide = [place for place, peak in each.columns if peak > 4 * each.usual_column]
    if not wide:
        return ""
    places = f"{', '.join(map(str, wide[:3]))}{' ...' if len(wide) > 3 else ''}"
    return _("columns {places}").format(places=places)
