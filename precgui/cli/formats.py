"""`precgui formats`, `encode` and `decode`: what the bits mean, as tables for people or JSON for programs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from rich.text import Text

from precgui.cli.errors import UserError
from precgui.cli.format_options import (
    add_switches,
    chosen_formats,
    convention_of,
    named_format,
    read_number,
    take_negative_values,
)
from precgui.cli.format_tables import (
    WIDE,
    approximate,
    clipped,
    console,
    fields,
    print_json,
    print_lines,
    stored_lines,
    table,
)
from precgui.formats import text
from precgui.formats.catalogue import catalogue
from precgui.formats.conventions import library_table
from precgui.formats.model import FloatFormat, Format
from precgui.formats.real import Real
from precgui.formats.registry import formats
from precgui.formats.report import Report, report, report_code
from precgui.formats.rounding import draw

COLUMNS = ("Name", "Bits", "Layout", "Largest", "Smallest normal", "Smallest", "Epsilon", "Digits", "What")
NARROW_COLUMNS = ("Name", "Bits", "Layout", "Largest", "Smallest", "Digits")


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
    take_negative_values(parser)
    parser.add_argument("value", metavar="VALUE", help="the number")
    add_switches(parser)
    parser.add_argument("--from", dest="bits_of", metavar="F", help="read 0x... and 0b... as the bits of this format")
    parser.add_argument("--index", type=int, default=0, help="place of the number, for stochastic rounding")
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
        print_json({"formats": rows})
        return 0
    screen = console()
    wanted = COLUMNS if screen.width >= WIDE else NARROW_COLUMNS
    made = table("Number formats", wanted, right=COLUMNS[1:8])
    for fmt in formats().values():
        made.add_row(*(_format_cells(fmt)[heading] for heading in wanted))
    for row in rows[len(formats()) :]:
        shape = f"{row['block']} x {row['element']} + {row['scale']}"
        what = f"{row['title']} ({shape})"
        cells = {"Name": str(row["name"]), "Bits": f"{row['bits']:g}", "Layout": "block", "What": what}
        made.add_row(*(cells.get(heading, "") for heading in wanted))
    screen.print(made)
    return 0


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
    chosen = chosen_formats(args.format)
    real = read_number(args.value, None if args.bits_of is None else named_format(args.bits_of))
    reports = [report(real, fmt, convention_of(args, fmt), draw(args.seed, args.index)) for fmt in chosen]
    if args.json:
        print_json({"input": args.value, "results": [each.row() for each in reports]})
    elif len(reports) == 1:
        print_lines([("Input", clipped(args.value)), *stored_lines(reports[0])])
        _print_stacks(reports[0], real)
    else:
        _print_encodings(reports, args.value)
    return 0


def run_decode(args: argparse.Namespace) -> int:
    fmt = named_format(args.format)
    if not re.fullmatch(r"0[xX][0-9a-fA-F_]+|0[bB][01_]+", args.bits):
        raise UserError(f"{clipped(args.bits)!r} is not a bit pattern; write 0x... or 0b...")
    try:
        result = report_code(int(args.bits, 0), fmt)
    except ValueError as error:
        raise UserError(str(error)) from None
    if args.json:
        print_json({"input": args.bits, "format": fmt.name, "results": [result.row()]})
    else:
        print_lines([("Input", clipped(args.bits)), *stored_lines(result)])
    return 0


def _print_encodings(reports: Sequence[Report], value: str) -> None:
    screen = console()
    headings = ("Format", "Bits", "Fields", "Stored", "Error", "In ulps", "Remark")
    wanted = headings if screen.width >= WIDE else ("Format", "Bits", "Stored", "In ulps", "Remark")
    made = table(f"{clipped(value)} in {len(reports)} formats", wanted, right=("Error", "In ulps"))
    for each in reports:
        parts = fields(each) if each.format.bits <= 19 else Text("")
        cells: tuple[str | Text, ...] = (
            each.format.name, each.bits, parts, each.shown, approximate(each.error),
            approximate(each.error_ulp, 3), each.note or each.stored.category,
        )  # fmt: skip
        made.add_row(*(cell for heading, cell in zip(headings, cells, strict=True) if heading in wanted))
    screen.print(made)


def _print_stacks(each: Report, real: Real) -> None:
    """Which stack stores what, where they disagree."""
    rows = library_table(real, each.format, each.convention.rounding)
    if not any(row.differs for row in rows):
        return
    made = table("What each stack stores", ("Stack", "Value", "Bits", "Convention"), right=())
    for row in rows:
        made.add_row(row.stack, text.short(row.report.stored.real), row.report.bits, row.about)
    console().print(made)
