"""`precgui arithmetic`: an operation as a format computes it, beside the exact result."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from precgui.cli.format_options import (
    add_switches,
    chosen_formats,
    convention_of,
    take_negative_values,
)
from precgui.cli.format_tables import (
    WIDE,
    Line,
    approximate,
    clipped,
    console,
    print_json,
    print_lines,
    stored_lines,
    table,
)
from precgui.cli.parser import UserError
from precgui.formats import text
from precgui.formats.arithmetic import (
    OPERATIONS,
    ORDERS,
    ArithmeticSettings,
    Operation,
    Result,
    operate,
    operation,
)
from precgui.formats.lists import brief_list, parse_list
from precgui.formats.model import Format
from precgui.formats.parse import parse
from precgui.formats.real import ExtendedReal
from precgui.formats.registry import get
from precgui.formats.report import Report
from precgui.words import L_, _, translated

FROM_INPUT = L_("Error from input")


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command; it sets `run`."""
    parser = subparsers.add_parser(
        "arithmetic", help=_("add, multiply, fma, sum, dot ... as a format computes them, beside the exact result"),
        description=_(
            "Round the operands to a format, compute, and round as the format does. A VALUE is written as "
            "for "

        "encode; sum takes any number of them, dot two lists with commas. repeat(0.1, 1000) stands for many of one."),
    )  # fmt: skip
    take_negative_values(parser)
    parser.add_argument(
        "operation",
        metavar="OPERATION",
        help=_("{operations}, or a sign such as + or x").format(operations=", ".join(OPERATIONS)),
    )
    parser.add_argument("values", metavar="VALUE", nargs="+", help=_("the operands"))
    add_switches(parser)
    parser.add_argument(
        "--accumulator", metavar="F", help=_("format in which sums are kept (default: the format itself)")
    )
    parser.add_argument("--product", metavar="F", help=_("round the products of dot to this format (default: exact)"))
    parser.add_argument(
        "--output", metavar="F", help=_("round what was added up to this format (default: accumulator)")
    )
    parser.add_argument("--order", choices=ORDERS, default=ORDERS[0], help=_("how a sum is added up: %(choices)s"))
    parser.set_defaults(run=run_arithmetic)


def run_arithmetic(args: argparse.Namespace) -> int:
    chosen = operation(args.operation)
    operands = _operands(chosen, args.values)
    settings = _settings(args, chosen)
    results = [(fmt, operate(chosen.name, operands, fmt, settings)) for fmt in chosen_formats(args.format)]
    meant, typed = _exact(results[0][1].meant), " ".join(args.values)
    if args.json:
        rows = [_row(fmt, result, settings) for fmt, result in results]
        print_json({"operation": chosen.name, "input": args.values, "exact": meant, "results": rows})
    elif len(results) == 1:
        head: list[Line] = [
            (_("Operation"), f"{chosen.name}: {translated(chosen.formula)}"),
            (_("Input"), clipped(" ".join(args.values))),
        ]
        print_lines([*head, (_("Exact result"), meant), *_result_lines(results[0][1])])
    else:
        companion = f" = {text.approximate(results[0][1].meant.value, 17)}…" if "/" in meant else ""
        print_lines([(_("Exact {operation}").format(operation=chosen.name), clipped(meant, 120) + companion)])
        title = _("{value} in {count} formats").format(value=f"{chosen.name} {clipped(typed)}", count=len(results))
        _print_results(title, results)
    return 0


def _operands(chosen: Operation, values: Sequence[str]) -> list[list[ExtendedReal]]:
    if chosen.operands:
        return [[parse(value)] for value in values]
    if chosen.lists == 1:
        return [[real for value in values for real in parse_list(value)]]
    return [parse_list(value) for value in values]


def _settings(args: argparse.Namespace, chosen: Operation) -> ArithmeticSettings:
    named = {key: None if getattr(args, key) is None else get(getattr(args, key))
             for key in ("accumulator", "product", "output")}  # fmt: skip
    for key, fmt in named.items():
        if fmt is not None and (not chosen.lists or (key == "product" and chosen.lists < 2)):
            sentence = _("--{option} has no meaning for {operation}; leave it out")
            raise UserError(sentence.format(option=key, operation=chosen.name))
    return ArithmeticSettings(**named, order=args.order, cast_policy=partial(convention_of, args), seed=args.seed)


def _exact(real: ExtendedReal) -> str:
    return text.exact(real) if real.exact or not real.is_finite else text.approximate(real.value, 40)


def _row(fmt: Format, result: Result, settings: ArithmeticSettings) -> dict[str, object]:
    """The keys of a row of `encode --json` for the result, and what belongs to the operation."""
    gathered = None if not settings.accumulator else settings.accumulator.name
    overall = result.overall.row()
    return {
        "format": fmt.name,
        "result_format": result.stored.format.name,
        "accumulator": gathered,
        "operands": [[_operand(each) for each in part] for part in result.operands],
        **{key: value for key, value in result.report.row().items() if key != "format"},
        "exact_of_operands": _exact(result.exact),
        "error_from_input": overall["error"],
        "error_from_input_relative": overall["error_relative"],
    }


def _operand(each: Report) -> dict[str, str]:
    return {"bits": each.bits, "exact": text.exact(each.stored.real)}


def _held(result: Result) -> str:
    """The operands as the format holds them, the first few of a list."""
    return "; ".join(brief_list([each.stored.real for each in part]) for part in result.operands)


def _result_lines(result: Result) -> list[Line]:
    overall = result.overall
    lines: list[Line] = [(_("Operands held"), _held(result)), (_("Exact of these"), clipped(_exact(result.exact), 200))]
    lines += stored_lines(result.report)
    if overall.error is not None:
        relative, ulps = approximate(overall.relative_error), approximate(overall.error_ulp)
        companion = _("{relative} relative, {ulps} ulp").format(relative=relative, ulps=ulps)
        if not relative:
            companion = f"{ulps} ulp"
        words = f"{text.approximate(overall.error, 17)} ({companion})"
        lines.append((_("Error from input"), words if overall.error else _("none")))
    return lines


def _print_results(title: str, results: Sequence[tuple[Format, Result]]) -> None:
    screen = console()
    headings = (
        L_("Format"),
        L_("Operands"),
        L_("Exact of these"),
        L_("Result"),
        L_("Bits"),
        L_("In ulps"),
        FROM_INPUT,
        L_("Remark"),
    )
    requested = (
        headings if screen.width >= WIDE else (L_("Format"), L_("Result"), L_("Bits"), L_("In ulps"), FROM_INPUT)
    )
    created = table(title, requested, right=(L_("In ulps"), FROM_INPUT))
    for fmt, result in results:
        each, overall = result.report, result.overall
        cells = (fmt.name, _held(result), text.short(result.exact, 10), each.value_text, each.bits,
                 approximate(each.error_ulp, 3), approximate(overall.error, 3), each.note)  # fmt: skip
        created.add_row(*(cell for heading, cell in zip(headings, cells, strict=True) if heading in requested))
    screen.print(created)
