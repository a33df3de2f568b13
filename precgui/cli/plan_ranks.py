"""The part of `precgui plan` that is about several ranks: bytes and time on a link, and the memory of each rank."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from precgui.cli.parser import UserError
from precgui.planner.communication import (
    COLUMNS,
    NOTE,
    TIMED_COLUMNS,
    Forecast,
    Link,
    Traffic,
    batch_note,
    forecasts,
    link_rate,
)
from precgui.planner.ledger import mib
from precgui.words import L_, _, error_text, translated

STAGES = range(4)
NO_TIME = L_("Give --step-ms, the time of a step of one rank, for the time of a step of several.")


def add_arguments(group: Any) -> None:
    """Add the options of several ranks to `plan`."""
    group.add_argument("--link", metavar="10Gb/s", help=_("rate of the link of one rank; foretells 1 to 1024 ranks"))
    group.add_argument("--latency-us", type=float, default=20.0, metavar="N", help=_("of a message (default 20)"))
    group.add_argument("--step-ms", type=float, metavar="N", help=_("time of a step of one rank, milliseconds"))
    group.add_argument(
        "--batch-per-rank", action="store_true", help=_("each rank has the batch of the config for itself")
    )


def link_of(args: argparse.Namespace) -> Link | None:
    """The link that is asked about. Raises SentenceError for a value that cannot be."""
    if args.link is None:
        return None
    if not 0 <= args.latency_us < 1e9 or (args.step_ms is not None and not 0 < args.step_ms < 1e12):
        raise UserError(_("--latency-us is at least 0, --step-ms more than 0"))
    try:
        return Link(link_rate(args.link), args.latency_us / 1e6)
    except ValueError as error:
        raise UserError(f"--link {error_text(error)}") from None


def of_ranks(
    traffic: Traffic,
    link: Link,
    args: argparse.Namespace,
    memory_bytes: Callable[[int, int], int],
    shared_batch_size: int | None,
) -> dict[str, Any]:
    """The document under the key `several_ranks`. `memory_bytes` takes a ZeRO stage and a number of ranks."""
    step_s = None if args.step_ms is None else args.step_ms / 1e3
    rows = [
        {**asdict(row), "memory_bytes": {f"zero{stage}": memory_bytes(stage, row.ranks) for stage in STAGES}}
        for row in forecasts(traffic, link, step_s, shared_batch_size=shared_batch_size)
    ]
    batch = batch_note(shared_batch_size)
    return {
        "traffic": asdict(traffic), "link": asdict(link), "one_rank_step_s": step_s, "ranks": rows,
        "notes": [batch, *([NO_TIME] if step_s is None else []), NOTE],
    }  # fmt: skip


def print_ranks(console: Console, plain: dict[str, Any]) -> None:
    """Print what is sent and how long it takes, the memory of a rank, and the notes."""
    timed = plain["one_rank_step_s"] is not None
    sending = _table((*COLUMNS, *TIMED_COLUMNS) if timed else COLUMNS)
    memory = _table([_("Ranks"), *(_("Peak, ZeRO {stage}").format(stage=stage) for stage in STAGES)])
    for row in plain["ranks"]:
        forecast = Forecast(**{name: value for name, value in row.items() if name != "memory_bytes"})
        sending.add_row(*forecast.texts())
        memory.add_row(str(forecast.ranks), *(mib(size) for size in row["memory_bytes"].values()))
    for table in (sending, memory):
        console.print(table)
    for note in plain["notes"]:
        console.print(f"[dim]{translated(note)}", highlight=False)


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(translated(column), justify="right")
    return table
