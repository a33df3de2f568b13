"""`precgui cards`: the least time and the memory of products or of a training step on cards that are not at hand."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from precgui.cli.format_tables import console, print_json, table
from precgui.cli.parser import UserError
from precgui.hardware.datasheet import datasheet_devices
from precgui.planner.ledger import mib
from precgui.planner.network import NETWORKS
from precgui.runs import card_bounds
from precgui.runs.card_bounds import FORMATS, NOTE, USUAL_CARDS, Bound, cards_of, memory_bytes, time_text
from precgui.words import L_, _, error_text, translated


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command and set its `run`."""
    parser = subparsers.add_parser(
        "cards", help=_("least time and memory of products or a training step on cards that are not at hand"),
        description=_(
            "{note} A work is 4096 (two square matrices), 64x4096x11008 (rows x inner x columns, several with commas), "
            "or a training step of {networks}."
        ).format(note=translated(NOTE), networks=", ".join(NETWORKS)),
    )  # fmt: skip
    parser.add_argument("work", nargs="?", default="4096", metavar="WORK", help=_("default 4096"))
    parser.add_argument(
        "--card", action="append", default=[], metavar="NAME", help=_("cards whose names hold this text, repeatable")
    )
    parser.add_argument("--format", default=",".join(FORMATS), metavar="F,F", help=_("formats, with commas"))
    parser.add_argument("--batch", type=int, default=1, metavar="N", help=_("sequences of a training step (default 1)"))
    parser.add_argument("--list", action="store_true", help=_("name every card of the table"))
    parser.add_argument("--json", action="store_true", help=_("print one JSON document"))
    parser.set_defaults(run=run_cards)


def run_cards(args: argparse.Namespace) -> int:
    if args.list:
        console().print("\n".join(device.name for device in datasheet_devices()), markup=False, highlight=False)
        return 0
    try:
        work, devices = card_bounds.work_of(args.work, args.batch), cards_of(args.card or USUAL_CARDS)
        formats = [name.strip() for name in args.format.split(",") if name.strip()]
        memory = {name: memory_bytes(work, name) for name in formats}
        bounds = {device.name: [card_bounds.bound(work, device, name) for name in formats] for device in devices}
    except ValueError as error:
        raise UserError(error_text(error)) from None
    if args.json:
        rows = [_row(each) for own in bounds.values() for each in own]
        print_json({"work": work.title, "flops": work.flops, "source": "data sheet", "note": NOTE, "bounds": rows})
        return 0
    listed = table(
        _("{title}: {flops:.3g} operations").format(title=translated(work.title), flops=work.flops),
        (L_("Card"), *formats),
        formats,
    )
    listed.add_row(_("Memory"), *("–" if size is None else mib(size) for size in memory.values()))
    for name, own in bounds.items():
        listed.add_row(name, *(translated(time_text(each)) for each in own))
    console().print(listed)
    console().print(translated(NOTE), markup=False, highlight=False)
    return 0


def _row(each: Bound) -> dict[str, Any]:
    return {**asdict(each), "why": each.why or None}
