"""The lines of Compare: a colour a precision, a dash or shade of its own a run, and the legend that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from precgui.gui.format_colours import place_colour
from precgui.gui.open_run import DrawnRun, OpenRun
from precgui.runs.line_styles import line_styles
from precgui.words import L_, translated

_SAME = L_("Runs of one precision have its colour and a dash or shade of their own, as in the table.")


def in_colours_of_precisions(runs: Sequence[OpenRun], precisions: Sequence[str]) -> list[OpenRun]:
    """Copies of the runs in the colours of their precisions, which stand in the same order."""
    styles = line_styles({run.key: precision for run, precision in zip(runs, precisions, strict=True)})
    return [
        replace(run, colour_index=style.colour, dash_index=style.dash, shade=style.shade)
        for run, style in zip(runs, styles.values(), strict=True)
    ]


def legend_html(drawn: Sequence[DrawnRun], precisions: Sequence[str]) -> str:
    """A square and the precisions for each colour among drawn lines; a sentence where runs share one."""
    by_colour: dict[int, list[str]] = {}
    for run, precision in zip(drawn, precisions, strict=True):
        by_colour.setdefault(run.colour_index, []).append(precision)
    squares = [
        f"<span style='color:{place_colour(place)}'>■</span>&nbsp;{escape(', '.join(dict.fromkeys(names)))}"
        for place, names in by_colour.items()
    ]
    is_shared = any(len(names) > 1 for names in by_colour.values())
    return " &nbsp; ".join([*squares, escape(translated(_SAME))] if is_shared else squares)
