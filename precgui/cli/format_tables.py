"""Numbers in formats as tables and lists for a terminal."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from fractions import Fraction

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from precgui.cli.console import HarmlessConsole
from precgui.cli.terminal import say
from precgui.formats import text
from precgui.formats.model import FloatFormat, IntFormat
from precgui.formats.report import Report
from precgui.words import L_, _, translated

PIPE_WIDTH = 200
LONGEST_ULP = 60
WIDE = 130  # columns of a terminal from which on everything is shown
FREE = (L_("What"), L_("Tensor"), L_("Remark"), L_("Convention"), L_("Operands"))  # columns whose text may wrap
FOLDED = (L_("Tensor"),)  # columns of names that differ only at their ends: none is cut
Line = tuple[str, str | Text]


def json_number(value: float) -> float | str | None:
    """A number as JSON takes it: NaN as null, infinities as text."""
    return value if math.isfinite(value) else None if math.isnan(value) else str(value)


def print_json(document: object) -> None:
    json.dump(document, sys.stdout, indent=1, allow_nan=False)
    say()


def console() -> Console:
    return HarmlessConsole() if sys.stdout.isatty() else HarmlessConsole(width=PIPE_WIDTH)


def table(title: str, headings: Sequence[str], right: Sequence[str]) -> Table:
    """An empty table of marked headings; the columns named in `right` are aligned there."""
    created = Table(title=Text(title), header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        free = heading in FREE
        created.add_column(
            translated(heading), no_wrap=not free, justify="right" if heading in right else "left",
            overflow="fold" if heading in FOLDED else "ellipsis",
        )  # fmt: skip
    return created


def print_lines(lines: Sequence[Line]) -> None:
    """Labels at the left, what belongs to them at the right."""
    grid = Table.grid(padding=(0, 2))
    for label, content in lines:
        grid.add_row(Text(label, style="bold"), content if isinstance(content, Text) else Text(content))
    console().print(grid)


def progress_text(share: float, numbers: int) -> str:
    """The share that is done, for a line of the terminal that is written over and over."""
    return "\r" + _("{share:.0%} of {numbers} numbers").format(share=share, numbers=text.grouped(numbers))


def approximate(value: Fraction | None, digits: int = 4) -> str:
    return "" if value is None else text.approximate(value, digits)


def clipped(value: str, limit: int = 60) -> str:
    return value if len(value) <= limit else f"{value[: limit - 3]}..."


def fields(each: Report) -> Text:
    """Sign, exponent and mantissa apart, in their colours."""
    fmt, digits = each.format, each.binary
    if not isinstance(fmt, FloatFormat):
        return Text(digits)
    cut = fmt.sign_bits + fmt.exponent_bits
    parts = ((digits[: fmt.sign_bits], "red"), (digits[fmt.sign_bits : cut], "green"), (digits[cut:], "cyan"))
    return Text(" ").join(Text(part, style=style) for part, style in parts if part)


def stored_lines(each: Report) -> list[Line]:
    """Everything about a stored value: bits, exact value, error, neighbours and the interval that rounds to it."""
    fmt, stored = each.format, each.stored
    lines: list[Line] = [
        (_("Format"), f"{fmt.name}: {translated(fmt.title)}"), (_("Bits"), each.bits), (_("Fields"), fields(each)),
        (_("Class"), translated(stored.category)), (_("Exact value"), text.exact(stored.real)),
    ]  # fmt: skip
    if stored.real.payload or stored.real.signalling:
        lines.append(("NaN", text.nan_text(stored.real)))
    if stored.real.is_finite:
        lines += [
            (_("As n*2^k"), text.times_power_of_two(stored.real.value)),
            (_("As hex float"), text.hex_float(stored.real.value)),
        ]
    lines += _error_lines(each)
    for label, steps in ((_("Next below"), -1), (_("Next above"), 1)):
        neighbour = each.neighbour(steps)
        if neighbour is not None:
            lines.append((label, f"{text.short(neighbour.real, each.digits)}  ({neighbour.code:#x})"))
    if each.note:
        lines.append((_("Remark"), translated(each.note)))
    return lines


def _error_lines(each: Report) -> list[Line]:
    lines: list[Line] = []
    if each.ulp is not None:
        plain = text.exact_fraction(each.ulp)
        short = _("{exact}, about {value}").format(
            exact=text.times_power_of_two(each.ulp), value=text.approximate(each.ulp)
        )
        lines.append((_("One ulp"), plain if len(plain) <= LONGEST_ULP else short))
    if each.error:
        relative, ulps = each.relative_error, each.error_ulp
        displayed = _("{error} ({relative} relative, {ulps} ulp)").format(
            error=text.approximate(each.error, 17), relative=approximate(relative), ulps=approximate(ulps)
        )
        lines.append((_("Error"), displayed))
    if each.interval_text and not isinstance(each.format, IntFormat):
        lines.append((_("Rounds here"), each.interval_text))
    return lines
