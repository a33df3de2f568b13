"""`precgui replay --anatomy`: the moments of a step and its casts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from precgui.cli.console import HarmlessConsole

if TYPE_CHECKING:
    from precgui.runs.anatomy import StepAnatomy


def anatomy_of(run: Path, step: int) -> StepAnatomy:
    """The anatomy that the replay of this step has just kept."""
    from precgui.runs.anatomy import ANATOMIES

    return next(anatomy for anatomy in ANATOMIES.all(run) if anatomy.step == step)


def print_anatomy(run: Path, step: int) -> None:
    """Print sentences and the table of casts."""
    console, anatomy = HarmlessConsole(highlight=False, soft_wrap=True), anatomy_of(run, step)
    for sentence in anatomy.sentences():
        console.print(Text(sentence))
    table = Table(box=SIMPLE_HEAD)
    for title in ("casts asked for by", "from", "to", "of"):
        table.add_column(title, overflow="fold")
    for title in ("count", "bytes", "reused"):
        table.add_column(title, justify="right")
    for casts in anatomy.casts:
        numbers = (str(casts.count), f"{casts.bytes:,}".replace(",", " "), str(casts.reused))
        table.add_row(casts.asked_by, casts.source, casts.target, casts.of, *numbers)
    console.print(table)
