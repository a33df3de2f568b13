"""`precgui model`: what a checkpoint holds, read as data."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from rich.text import Text

from precgui.cli.format_tables import console, print_json, print_lines, table
from precgui.cli.terminal import say
from precgui.formats.checkpoints.contents import SUFFIXES, Checkpoint, open_checkpoint
from precgui.formats.checkpoints.tensor import CheckpointTensor
from precgui.formats.text import grouped
from precgui.planner.ledger import mib

MOST_ROWS = 400  # of a table on a terminal; --json and --csv have all


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command and set its `run`."""
    parser = subparsers.add_parser(
        "model", help="a trained model from its files: tensors, how they are stored",
        description=f"List the tensors of a model: a folder, an index.json, or a file ({', '.join(SUFFIXES)}). Files "
        "are read as data; nothing in them is executed.",
    )  # fmt: skip
    parser.add_argument("source", type=Path, metavar="FILE|DIR", help="a file or a folder with one model")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run_model)


def run_model(args: argparse.Namespace) -> int:
    """Print the table of contents. Raises SentenceError for what is no model."""
    checkpoint = open_checkpoint(args.source)
    if args.json:
        print_json(document(checkpoint))
        return 0
    print_contents(checkpoint)
    return 0


def document(checkpoint: Checkpoint) -> dict[str, Any]:
    """The contents as JSON."""
    return {
        "source": str(checkpoint.source),
        "files": [{"name": file.name, "bytes": file.nbytes} for file in checkpoint.files],
        "parameters": checkpoint.parameters, "bytes": checkpoint.nbytes,
        "architecture": checkpoint.architecture or None,
        "tensors": [tensor_row(tensor) for tensor in checkpoint.tensors],
        "skipped": [{"name": each.name, "why": each.why_not} for each in checkpoint.tensors if each.why_not],
        "notes": list(checkpoint.notes),
    }  # fmt: skip


def tensor_row(tensor: CheckpointTensor) -> dict[str, Any]:
    return {
        "name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype, "stored_as": tensor.stored_as,
        "bytes": tensor.nbytes,
    }  # fmt: skip


def print_contents(checkpoint: Checkpoint) -> None:
    kinds = Counter[str]()
    for tensor in checkpoint.tensors:
        kinds[tensor.stored_as] += tensor.nbytes
    print_lines(
        [
            ("Model", str(checkpoint.source)),
            ("Architecture", checkpoint.architecture or "not told"),
            ("Files", f"{len(checkpoint.files)}, {mib(sum(file.nbytes for file in checkpoint.files))}"),
            ("Tensors", f"{grouped(len(checkpoint.tensors))} with {grouped(checkpoint.parameters)} parameters"),
            ("Stored as", ", ".join(f"{kind} {mib(size)}" for kind, size in kinds.most_common())),
        ]
    )
    for note in checkpoint.notes:
        say(note)
    headings = ("Tensor", "Shape", "Format", "Stored as", "Bytes", "Remark")
    listed = table("", headings, right=("Bytes",))
    for tensor in checkpoint.tensors[:MOST_ROWS]:
        shape = " x ".join(map(str, tensor.shape)) or "one number"
        remark = f"not read: {tensor.why_not}" if tensor.why_not else ""
        listed.add_row(*map(Text, (tensor.name, shape, tensor.dtype, tensor.stored_as, mib(tensor.nbytes), remark)))
    console().print(listed)
    if (left := len(checkpoint.tensors) - MOST_ROWS) > 0:
        say(f"{grouped(left)} more tensors; --json lists all.")
