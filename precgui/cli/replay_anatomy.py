"""`precgui replay --anatomy`: the moments of a step and its casts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from precgui.cli.console import HarmlessConsole
from precgui.words import _, p_, translated

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
        console.print(Text(translated(sentence)))
    table = Table(box=SIMPLE_HEAD)
    for title in (_("casts asked for by"), p_("a cast", "from"), p_("a cast", "to"), p_("a cast", "of")):
        table.add_column(title, overflow="fold")
    for title in (_("count"), _("bytes"), _("reused")):
        table.add_column(title, justify="right")
    for casts in anatomy.casts:
        numbers = (str(casts.count), f"{casts.bytes:,}".replace(",", " "), str(casts.reused))
        table.add_row(translated(casts.asked_by), casts.source, casts.target, translated(casts.of), *numbers)
    console.print(table)
