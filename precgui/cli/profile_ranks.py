"""`precgui profile RUN.h5 --ranks`: what each process of a run on several did."""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table

from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError
from precgui.planner.ledger import mib
from precgui.words import L_, _, translated

_COLUMNS = (
    L_("rank"),
    L_("step, ms"),
    L_("waited, ms"),
    L_("CPU, ms"),
    L_("memory"),
    L_("sent"),
    L_("interface, all ranks"),
)


def show_ranks(path: Path | None, *, as_json: bool) -> int:
    """Print the figures of each rank. Returns 0. Raises SentenceError where the run has none."""
    from precgui.runs.file.reader import open_run
    from precgui.runs.ranks import memory_sentence, rank_figures, waiting_sentence

    if path is None:
        raise UserError(_("--ranks shows what a run recorded; name a run file that ends in .h5"))
    with open_run(path) as run:
        figures, of_memory = rank_figures(run), memory_sentence(run)
    if not figures:
        raise UserError(
            _("{name} trained in one process, so it has no ranks; see parallel.strategy").format(name=path.name)
        )
    if as_json:
        print(json.dumps({"ranks": [row.as_json() for row in figures]}, indent=1))
        return 0
    table = Table(*map(translated, _COLUMNS), title=_("Medians of each rank"))
    for row in figures:
        times = (_milliseconds(time_s) for time_s in (row.step_s, row.wait_s, row.cpu_s))
        table.add_row(str(row.rank), *times, *map(_size, (row.memory_bytes, row.sent_bytes, row.interface_bytes)))
    console = HarmlessConsole()
    console.print(table)
    console.print(translated(waiting_sentence(figures)))
    console.print(translated(of_memory))
    return 0


def _milliseconds(time_s: float) -> str:
    return "-" if time_s != time_s else f"{1e3 * time_s:.3g}"


def _size(size_bytes: float) -> str:
    return "-" if size_bytes != size_bytes else mib(size_bytes)
