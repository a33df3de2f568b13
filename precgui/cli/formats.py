"""`precgui formats`, `encode` and `decode`: what the bits mean, as tables for people or JSON for programs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from rich.text import Text

from precgui.cli.format_options import (
    add_switches,
    chosen_formats,
    convention_of,
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
from precgui.cli.parser import UserError
from precgui.formats import text
from precgui.formats.catalogue import catalogue
from precgui.formats.conventions import library_table
from precgui.formats.model import FloatFormat, Format
from precgui.formats.parse import parse
from precgui.formats.real import ExtendedReal
from precgui.formats.registry import formats, get
from precgui.formats.report import Report, report, report_code
from precgui.formats.rounding import draw
from precgui.words import L_, _, error_text, translated

COLUMNS = (
    L_("Name"),
    L_("Bits"),
    L_("Layout"),
    L_("Largest"),
    L_("Smallest normal"),
    L_("Smallest"),
    L_("Epsilon"),
    L_("Digits"),
    L_("What"),
)
NARROW_COLUMNS = (L_("Name"), L_("Bits"), L_("Layout"), L_("Largest"), L_("Smallest"), L_("Digits"))


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the three sub-commands; each sets `run`."""
    listing = subparsers.add_parser("formats", help=_("the table of number formats"))
    listing.add_argument("--json", action="store_true", help=_("print one JSON document"))
    listing.set_defaults(run=run_formats)
    _add_encode(subparsers)
    _add_decode(subparsers)


def _add_encode(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "encode", help=_("one number in one format or in all"),
        description=_("Round a number exactly and show its bits. VALUE is a decimal, a fraction, a hex float, an "
        "expression such as 2**-14+2**-24, 1/3, pi or nextup(1, fp16), or bits such as fp16:0x3c00."),
    )  # fmt: skip
    take_negative_values(parser)
    parser.add_argument("value", metavar="VALUE", help=_("the number"))
    add_switches(parser)
    parser.add_argument(
        "--from", dest="bits_of", metavar="F", help=_("read 0x... and 0b... as the bits of this format")
    )
    parser.add_argument("--index", type=int, default=0, help=_("place of the number, for stochastic rounding"))
    parser.set_defaults(run=run_encode)


def _add_decode(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("decode", help=_("what the bits of a format mean"))
    parser.add_argument("bits", metavar="BITS", help="0x... or 0b...")
    parser.add_argument(
        "--format",
        default="all",
        metavar="F",
        help=_("a format, several with commas, or all (default): those with as many digits"),
    )
    parser.add_argument("--json", action="store_true", help=_("print one JSON document"))
    parser.set_defaults(run=run_decode)


def run_formats(args: argparse.Namespace) -> int:
    rows = catalogue()
    if args.json:
        print_json({"formats": rows})
        return 0
    screen = console()
    requested = COLUMNS if screen.width >= WIDE else NARROW_COLUMNS
    created = table(_("Number formats"), requested, right=COLUMNS[1:8])
    for fmt in formats().values():
        created.add_row(*(_format_cells(fmt)[heading] for heading in requested))
    for row in rows[len(formats()) :]:
        shape = f"{row['block']} x {row['element']} + {row['scale']}"
        what = f"{translated(str(row['title']))} ({shape})"
        cells = {"Name": str(row["name"]), "Bits": f"{row['bits']:g}", "Layout": _("block"), "What": what}
        created.add_row(*(cells.get(heading, "") for heading in requested))
    screen.print(created)
    return 0


def _format_cells(fmt: Format) -> dict[str, str]:
    def displayed(value: object) -> str:
        return "" if value is None else text.brief(value)  # type: ignore[arg-type]

    layout = f"{fmt.sign_bits}/{fmt.exponent_bits}/{fmt.mantissa_bits}" if isinstance(fmt, FloatFormat) else ""
    normal = fmt.min_normal if isinstance(fmt, FloatFormat) else None
    smallest = fmt.min_positive if isinstance(fmt, FloatFormat) else None
    cells = (fmt.name, str(fmt.bits), layout, displayed(fmt.max_finite), displayed(normal),
             displayed(smallest), displayed(fmt.epsilon),
             f"{fmt.decimal_digits:.1f}", translated(fmt.title))  # fmt: skip
    return dict(zip(COLUMNS, cells, strict=True))


def run_encode(args: argparse.Namespace) -> int:
    chosen = chosen_formats(args.format)
    real = parse(args.value, None if args.bits_of is None else get(args.bits_of))
    reports = [report(real, fmt, convention_of(args, fmt), draw(args.seed, args.index)) for fmt in chosen]
    if args.json:
        print_json({"input": args.value, "results": [each.row() for each in reports]})
    elif len(reports) == 1:
        print_lines([(_("Input"), clipped(args.value)), *stored_lines(reports[0])])
        _print_stacks(reports[0], real)
    else:
        _print_encodings(reports, args.value)
    return 0


def run_decode(args: argparse.Namespace) -> int:
    if not re.fullmatch(r"0[xX][0-9a-fA-F_]+|0[bB][01_]+", args.bits):
        raise UserError(_("{bits!r} is not a bit pattern; write 0x... or 0b...").format(bits=clipped(args.bits)))
    results = _decoded(args.bits, args.format)
    if args.json:
        alone = {"format": results[0].format.name} if len(results) == 1 else {}
        print_json({"input": args.bits, **alone, "results": [each.row() for each in results]})
    elif len(results) == 1:
        print_lines([(_("Input"), clipped(args.bits)), *stored_lines(results[0])])
    else:
        _print_decodings(results, args.bits)
    return 0


def _decoded(bits: str, names: str) -> list[Report]:
    """The bits in the formats that are named, or in all whose codes have so many digits."""
    try:
        code = int(bits, 0)
        chosen = _written_so(bits, code) if names == "all" else chosen_formats(names)
        results = [report_code(code, fmt) for fmt in chosen]
    except ValueError as error:
        raise UserError(error_text(error)) from None
    if not results:
        sentence = _("{bits} does not fit into any format; the widest here has 64 bits")
        raise UserError(sentence.format(bits=clipped(bits)))
    return results


def _written_so(bits: str, code: int) -> list[Format]:
    """The formats whose codes are written with as many digits; where there are none, all that are wide enough."""
    digits, per_digit = len(bits[2:].replace("_", "")), 4 if bits[1] in "xX" else 1
    fitting = [fmt for fmt in formats().values() if code < 1 << fmt.bits]
    return [fmt for fmt in fitting if -(-fmt.bits // per_digit) == digits] or fitting


def _print_decodings(results: Sequence[Report], bits: str) -> None:
    screen = console()
    headings = (L_("Format"), L_("Fields"), L_("Value"), L_("As n*2^k"), L_("Class"))
    requested = headings if screen.width >= WIDE else (L_("Format"), L_("Value"), L_("Class"))
    created = table(
        _("{value} in {count} formats").format(value=clipped(bits), count=len(results)), requested, right=()
    )
    for each in results:
        real = each.stored.real
        product = text.times_power_of_two(real.value) if real.is_finite else ""
        parts = fields(each) if each.format.bits <= 19 else Text("")
        cells: tuple[str | Text, ...] = (
            each.format.name, parts, each.value_text, product if len(product) <= 40 else "",
            translated(each.stored.category),
        )  # fmt: skip
        created.add_row(*(cell for heading, cell in zip(headings, cells, strict=True) if heading in requested))
    screen.print(created)


def _print_encodings(reports: Sequence[Report], value: str) -> None:
    screen = console()
    headings = (L_("Format"), L_("Bits"), L_("Fields"), L_("Stored"), L_("Error"), L_("In ulps"), L_("Remark"))
    requested = (
        headings if screen.width >= WIDE else (L_("Format"), L_("Bits"), L_("Stored"), L_("In ulps"), L_("Remark"))
    )
    created = table(
        _("{value} in {count} formats").format(value=clipped(value), count=len(reports)),
        requested,
        right=(L_("Error"), L_("In ulps")),
    )
    for each in reports:
        parts = fields(each) if each.format.bits <= 19 else Text("")
        cells: tuple[str | Text, ...] = (
            each.format.name, each.bits, parts, each.value_text, approximate(each.error),
            approximate(each.error_ulp, 3), translated(each.note or each.stored.category),
        )  # fmt: skip
        created.add_row(*(cell for heading, cell in zip(headings, cells, strict=True) if heading in requested))
    screen.print(created)


def _print_stacks(each: Report, real: ExtendedReal) -> None:
    """Which stack stores what, where they disagree."""
    rows = library_table(real, each.format, each.cast_policy.rounding)
    if not any(row.differs for row in rows):
        return
    created = table(_("What each stack stores"), (L_("Stack"), L_("Value"), L_("Bits"), L_("Convention")), right=())
    for row in rows:
        created.add_row(row.stack, row.value, row.bits, row.about)
    console().print(created)
