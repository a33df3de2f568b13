"""`precgui formats`, `encode` and `decode`: what the bits mean, as tables for people or JSON for programs."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from precgui.cli.errors import UserError
from precgui.formats import text
from precgui.formats.catalogue import catalogue
from precgui.formats.conventions import BY_NAME, library_table
from precgui.formats.model import CodeBook, FloatFormat, Format, IntFormat
from precgui.formats.parse import InputError, parse
from precgui.formats.real import Real
from precgui.formats.registry import UnknownFormatError, formats, get
from precgui.formats.report import Report, report, report_code
from precgui.formats.rounding import OVERFLOWS, ROUNDINGS, Convention, draw

PIPE_WIDTH = 200
WIDE = 130  # columns of a terminal from which on everything is shown
COLUMNS = ("Name", "Bits", "Layout", "Largest", "Smallest normal", "Smallest", "Epsilon", "Digits", "What")
NARROW_COLUMNS = ("Name", "Bits", "Layout", "Largest", "Smallest", "Digits")
MINUS_IS_NO_OPTION = re.compile(r"-(?!-|h$).")


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the three sub-commands; each sets `run`."""
    listing = subparsers.add_parser("formats", help="the table of number formats")
    listing.add_argument("--json", action="store_true", help="print one JSON document")
    listing.set_defaults(run=run_formats)
    _add_encode(subparsers)
    _add_decode(subparsers)


def _add_encode(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "encode", help="one number in one format or in all",
        description="Round a number exactly and show its bits. VALUE is a decimal, a fraction, a hex float, an "
        "expression such as 2**-14+2**-24, 1/3, pi or nextup(1, fp16), or bits such as fp16:0x3c00.",
    )  # fmt: skip
    parser._negative_number_matcher = MINUS_IS_NO_OPTION  # so that -inf, -1e5 and -1/3 are values
    parser.add_argument("value", metavar="VALUE", help="the number")
    parser.add_argument("--format", default="all", metavar="F", help="a format, several with commas, or all (default)")
    parser.add_argument("--rounding", choices=ROUNDINGS, default="nearest_even", metavar="R", help=", ".join(ROUNDINGS))
    parser.add_argument("--overflow", choices=OVERFLOWS, metavar="O", help=f"{', '.join(OVERFLOWS)} (default ieee)")
    parser.add_argument("--stack", metavar="S", help=f"overflow and NaN as in: {'; '.join(BY_NAME)}".replace("%", "%%"))
    parser.add_argument("--from", dest="bits_of", metavar="F", help="read 0x... and 0b... as the bits of this format")
    parser.add_argument("--seed", type=int, default=0, help="of stochastic rounding")
    parser.add_argument("--index", type=int, default=0, help="place of the number, for stochastic rounding")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run_encode)


def _add_decode(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("decode", help="what the bits of a format mean")
    parser.add_argument("bits", metavar="BITS", help="0x... or 0b...")
    parser.add_argument("--format", required=True, metavar="F", help="the format")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run_decode)


def run_formats(args: argparse.Namespace) -> int:
    rows = catalogue()
    if args.json:
        _print_json({"formats": rows})
        return 0
    console = _console()
    wanted = COLUMNS if console.width >= WIDE else NARROW_COLUMNS
    table = _table("Number formats", wanted, right=COLUMNS[1:8])
    for fmt in formats().values():
        table.add_row(*(_format_cells(fmt)[heading] for heading in wanted))
    for row in rows[len(formats()) :]:
        shape = f"{row['block']} x {row['element']} + {row['scale']}"
        what = f"{row['title']} ({shape})"
        cells = {"Name": str(row["name"]), "Bits": f"{row['bits']:g}", "Layout": "block", "What": what}
        table.add_row(*(cells.get(heading, "") for heading in wanted))
    console.print(table)
    return 0


def _table(title: str, headings: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(title=Text(title), header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        free = heading in ("What", "Remark", "Convention")
        table.add_column(heading, no_wrap=not free, justify="right" if heading in right else "left")
    return table


def _format_cells(fmt: Format) -> dict[str, str]:
    def shown(value: object) -> str:
        return "" if value is None else text.brief(value)  # type: ignore[arg-type]

    layout = f"{fmt.sign_bits}/{fmt.exponent_bits}/{fmt.mantissa_bits}" if isinstance(fmt, FloatFormat) else ""
    normal = fmt.min_normal if isinstance(fmt, FloatFormat) else None
    smallest = fmt.min_positive if isinstance(fmt, FloatFormat) else None
    cells = (fmt.name, str(fmt.bits), layout, shown(fmt.max_finite), shown(normal), shown(smallest), shown(fmt.epsilon),
             f"{fmt.decimal_digits:.1f}", fmt.title)  # fmt: skip
    return dict(zip(COLUMNS, cells, strict=True))


def run_encode(args: argparse.Namespace) -> int:
    chosen = _chosen_formats(args.format)
    real = _read(args.value, None if args.bits_of is None else _format(args.bits_of))
    reports = [report(real, fmt, _convention(args, fmt), draw(args.seed, args.index)) for fmt in chosen]
    if args.json:
        _print_json({"input": args.value, "results": [each.row() for each in reports]})
    elif len(reports) == 1:
        _print_one(reports[0], args.value)
        _print_stacks(reports[0], real)
    else:
        _print_encodings(reports, args.value)
    return 0


def _chosen_formats(names: str) -> list[Format]:
    return list(formats().values()) if names == "all" else [_format(name) for name in names.split(",")]


def _format(name: str) -> Format:
    try:
        return get(name)
    except UnknownFormatError as error:
        raise UserError(str(error)) from None


def _read(value: str, bits_of: Format | None) -> Real:
    try:
        return parse(value, bits_of)
    except InputError as error:
        raise UserError(str(error)) from None


def _convention(args: argparse.Namespace, fmt: Format) -> Convention:
    if args.stack is not None and args.stack not in BY_NAME:
        raise UserError(f"{args.stack!r} is no stack; there are {'; '.join(BY_NAME)}")
    base = BY_NAME[args.stack].convention(fmt) if args.stack else Convention()
    return Convention(args.rounding, args.overflow or base.overflow, base.nan)


def run_decode(args: argparse.Namespace) -> int:
    fmt = _format(args.format)
    if not re.fullmatch(r"0[xX][0-9a-fA-F_]+|0[bB][01_]+", args.bits):
        raise UserError(f"{args.bits!r} is not a bit pattern; write 0x... or 0b...")
    try:
        result = report_code(int(args.bits, 0), fmt)
    except ValueError as error:
        raise UserError(str(error)) from None
    if args.json:
        _print_json({"input": args.bits, "format": fmt.name, "results": [result.row()]})
    else:
        _print_one(result, args.bits)
    return 0


def _print_json(document: object) -> None:
    json.dump(document, sys.stdout, indent=1, allow_nan=False)
    print()


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def _print_encodings(reports: Sequence[Report], value: str) -> None:
    console = _console()
    wide = console.width >= WIDE
    headings = ("Format", "Bits", "Fields", "Stored", "Error", "In ulps", "Remark")
    wanted = headings if wide else ("Format", "Bits", "Stored", "In ulps", "Remark")
    table = _table(f"{_clipped(value)} in {len(reports)} formats", wanted, right=("Error", "In ulps"))
    for each in reports:
        fields = _fields(each) if each.format.bits <= 19 else Text("")
        cells: tuple[str | Text, ...] = (
            each.format.name, each.bits, fields, each.shown, _approximate(each.error),
            _approximate(each.error_ulp, 3), each.note or each.stored.category,
        )  # fmt: skip
        table.add_row(*(cell for heading, cell in zip(headings, cells, strict=True) if heading in wanted))
    console.print(table)


def _approximate(value: object, digits: int = 4) -> str:
    return "" if value is None else text.approximate(value, digits)  # type: ignore[arg-type]


def _fields(each: Report) -> Text:
    """Sign, exponent and mantissa apart, in their colours."""
    fmt, digits = each.format, each.binary
    if not isinstance(fmt, FloatFormat):
        return Text(digits)
    cut = fmt.sign_bits + fmt.exponent_bits
    parts = ((digits[: fmt.sign_bits], "red"), (digits[fmt.sign_bits : cut], "green"), (digits[cut:], "cyan"))
    return Text(" ").join(Text(part, style=style) for part, style in parts if part)


def _print_one(each: Report, value: str) -> None:
    fmt, stored = each.format, each.stored
    grid = Table.grid(padding=(0, 2))
    lines: list[tuple[str, str | Text]] = [
        ("Input", _clipped(value)), ("Format", f"{fmt.name}: {fmt.title}"), ("Bits", each.bits),
        ("Fields", _fields(each)), ("Class", stored.category), ("Exact value", text.exact(stored.real)),
    ]  # fmt: skip
    if stored.real.payload or stored.real.signalling:
        lines.append(("NaN", text.nan_text(stored.real)))
    if stored.real.is_finite:
        lines += [
            ("As n*2^k", text.times_power_of_two(stored.real.value)),
            ("As hex float", text.hex_float(stored.real.value)),
        ]
    lines += _error_lines(each)
    for label, steps in (("Next below", -1), ("Next above", 1)):
        neighbour = each.neighbour(steps)
        if neighbour is not None:
            lines.append((label, f"{text.short(neighbour.real, 17)}  ({neighbour.code:#x})"))
    if each.note:
        lines.append(("Remark", each.note))
    for label, content in lines:
        grid.add_row(Text(label, style="bold"), content if isinstance(content, Text) else Text(content))
    _console().print(grid)


def _error_lines(each: Report) -> list[tuple[str, str | Text]]:
    lines: list[tuple[str, str | Text]] = []
    if each.ulp is not None:
        lines.append(("One ulp", text.exact_fraction(each.ulp)))
    if each.error:
        relative, ulps = each.relative_error, each.error_ulp
        shown = f"{text.approximate(each.error, 17)} ({_approximate(relative)} relative, {_approximate(ulps)} ulp)"
        lines.append(("Error", shown))
    interval = each.interval
    if interval is not None and not isinstance(each.format, (IntFormat, CodeBook)):
        left, right = "[" if interval.low_closed else "(", "]" if interval.high_closed else ")"
        low, high = text.approximate(interval.low, 20), text.approximate(interval.high, 20)
        lines.append(("Rounds here", f"{left}{low}, {high}{right}"))
    return lines


def _print_stacks(each: Report, real: Real) -> None:
    """Which stack stores what, where they disagree."""
    rows = library_table(real, each.format, each.convention.rounding)
    if not any(row.differs for row in rows):
        return
    table = _table("What each stack stores", ("Stack", "Value", "Bits", "Convention"), right=())
    for row in rows:
        table.add_row(row.stack, text.short(row.report.stored.real), row.report.bits, row.about)
    _console().print(table)


def _clipped(value: str, limit: int = 60) -> str:
    return value if len(value) <= limit else f"{value[: limit - 3]}..."
