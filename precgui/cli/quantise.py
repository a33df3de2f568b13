"""`precgui quantise`: numbers or a tensor of a file as codes of a format, with their scales and errors."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from precgui.cli.format_options import take_negative_values
from precgui.cli.format_tables import console, print_json, print_lines, table
from precgui.cli.parser import UserError
from precgui.formats.blocks import SCALE_RULES
from precgui.formats.checkpoints.suffixes import TORCH_SUFFIXES
from precgui.formats.comparison import FormatComparison, compare
from precgui.formats.lists import parse_list
from precgui.formats.parse import InputError, parse
from precgui.formats.pieces import TensorReader, in_memory
from precgui.formats.real import to_float
from precgui.formats.rounding import ROUNDINGS
from precgui.formats.schemes import GROUPINGS, INTEGERS, SCHEMES, Options, check_scheme, convention
from precgui.formats.tensorfile import TensorFileError, open_tensor, tensor_names
from precgui.formats.text import grouped
from precgui.words import L_, _, error_text, translated

SUFFIXES = (".npy", ".safetensors", *TORCH_SUFFIXES)
SHOWN = 32


def add_parsers(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command and set its `run`."""
    parser = subparsers.add_parser(
        "quantise", help=_("numbers or a tensor of a file as integer codes, blocks or low floats, with what is lost"),
        description=_("Quantise numbers with commas between them, such as 0.1,0.5,1/3, or a tensor of a file "
"({suffixes}): codes, scales, zero point and the error. --format uint8 --scale 2/255 "
"--zero-point 0 repeats a scale of your own.").format(suffixes=', '.join(SUFFIXES)),
        epilog=_("A trained model, with the rise of its loss on held-out data: precgui quantize."),
    )  # fmt: skip
    take_negative_values(parser)
    parser.add_argument(
        "source", metavar="VALUES|FILE", help=_("numbers with commas between them, or a file of tensors")
    )
    parser.add_argument("--tensor", metavar="NAME", default="", help=_("which tensor of the file"))
    parser.add_argument(
        "--format",
        default="int8",
        metavar="F",
        help=_("{schemes}; several with commas").format(schemes=", ".join(SCHEMES)),
    )
    _add_scale_options(parser)
    parser.add_argument("--rounding", choices=ROUNDINGS, default="nearest_even", metavar="R", help=", ".join(ROUNDINGS))
    parser.add_argument("--seed", type=int, default=0, help=_("of stochastic rounding"))
    parser.add_argument(
        "--show",
        type=int,
        default=SHOWN,
        metavar="N",
        help=_("how many values to list (default {shown})").format(shown=SHOWN),
    )
    parser.add_argument("--json", action="store_true", help=_("print one JSON document"))
    parser.set_defaults(run=run_quantise)


def _add_scale_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--affine", action="store_true", help=_("integers from the least to the largest value, not symmetric")
    )
    parser.add_argument(
        "--per",
        choices=GROUPINGS,
        default="tensor",
        metavar="G",
        help=_("{groupings}: integers that share a scale").format(groupings=", ".join(GROUPINGS)),
    )
    parser.add_argument("--scale", metavar="S", help=_("of integers, in place of the one computed from the values"))
    parser.add_argument("--zero-point", type=int, metavar="Z", help=_("of integers: the code that stands for 0"))
    parser.add_argument(
        "--rule",
        choices=SCALE_RULES,
        default="floor",
        metavar="R",
        help=_("{scale_rules}: scale of MX blocks").format(scale_rules=", ".join(SCALE_RULES)),
    )


def run_quantise(args: argparse.Namespace) -> int:
    source, schemes = _source(args.source, args.tensor), args.format.split(",")
    try:
        for scheme in schemes:
            check_scheme(scheme)
        options = _options(args, schemes)
        documents = [_document(source, scheme, options, args.show) for scheme in schemes]
    except ValueError as error:
        raise UserError(error_text(error)) from None
    if args.json:
        print_json({"input": args.source, "shape": list(source.shape), "results": documents})
        return 0
    for document in documents:
        _print(document, source.size)
    return 0


def _source(given: str, name: str) -> TensorReader:
    """The values that were typed, or a tensor of the file. Raises SentenceError."""
    path = Path(given)
    try:
        if path.suffix in SUFFIXES:
            return open_tensor(path, _tensor_name(path, name))
        return in_memory([to_float(real) for real in parse_list(given)])
    except InputError as error:
        text = _("{error}; a file of tensors ends in {suffixes}")
        raise UserError(text.format(error=error_text(error), suffixes=", ".join(SUFFIXES))) from None
    except (TensorFileError, OSError) as error:
        raise UserError(_("{path} cannot be read: {error}").format(path=path, error=error_text(error))) from None


def _tensor_name(path: Path, name: str) -> str:
    names = tensor_names(path)
    if name or len(names) == 1:
        return name or names[0]
    few = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    text = _("{file} holds {count} tensors; name one with --tensor: {names}")
    raise UserError(text.format(file=path.name, count=len(names), names=few))


def _options(args: argparse.Namespace, schemes: list[str]) -> Options:
    given = {
        "--affine": args.affine,
        "--per": args.per != "tensor",
        "--scale": args.scale is not None,
        "--zero-point": args.zero_point is not None,
    }
    others = [scheme for scheme in schemes if scheme not in INTEGERS]
    for option, used in given.items():
        if used and others:
            text = _("{option} is for integers ({integers}); {other} has scales of its own")
            raise UserError(text.format(option=option, integers=", ".join(INTEGERS), other=others[0]))
    if args.per != "tensor" and (args.scale is not None or args.zero_point is not None):
        raise UserError(_("--scale and --zero-point are for the whole tensor; leave --per out"))
    scale = None if args.scale is None else to_float(parse(args.scale))
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise UserError(_("--scale {scale} is not a number above 0").format(scale=args.scale))
    return Options(
        rounding=args.rounding, symmetric=not args.affine, grouping=args.per, rule=args.rule, scale=scale,
        zero_point=args.zero_point, seed=args.seed,
    )  # fmt: skip


def _document(source: TensorReader, scheme: str, options: Options, most: int) -> dict[str, Any]:
    """The figures of all values, and the first `most` of them one by one."""
    comparison = compare(source, scheme, options, lambda share: None)
    losses, prepared = comparison.losses, comparison.prepared
    return {
        "format": scheme, "convention": convention(scheme, options), "scale": prepared.scale,
        "zero_point": prepared.zero_point, "bits_per_value": prepared.bits_per_value,
        "sqnr_db": _finite(losses.sqnr_db), "largest_error": losses.largest_error, "clipped": losses.clipped,
        "zeroed": losses.zeroed, "values": _rows(comparison, min(max(most, 0), source.size)),
    }  # fmt: skip


def _rows(comparison: FormatComparison, count: int) -> list[dict[str, Any]]:
    if not count:
        return []
    part, codes = comparison.part(0, count), comparison.codes(0, count)
    columns = part.before, codes[1], part.after, part.clipped, part.zeroed
    return [
        {
            "value": _finite(before), "code": code, "scale": _finite(scale),
            "becomes": _finite(after), "error": _finite(after - before), "clipped": clipped, "zeroed": zeroed,
        }
        for code, before, scale, after, clipped, zeroed in zip(
            comparison.code_words(codes), *(each.tolist() for each in columns), strict=True
        )
    ]  # fmt: skip


def _finite(value: float) -> float | str:
    """JSON has no numbers that are not finite."""
    return value if math.isfinite(value) else str(value)


def _print(document: dict[str, Any], size: int) -> None:
    scale = document["scale"]
    zero = document["zero_point"]
    print_lines(
        [
            (_("Format"), document["format"]),
            (_("Convention"), translated(document["convention"])),
            *([(_("Scale"), f"{scale:.9g}")] if scale is not None else []),
            *([(_("Zero point"), str(zero))] if zero is not None else []),
            (_("Bits a value"), f"{document['bits_per_value']:.4g}"),
            (_("Signal to noise"), f"{float(document['sqnr_db']):.2f} dB"),
            (_("Largest error"), f"{document['largest_error']:.4g}"),
            (
                _("Clipped, zeroed"),
                _("{clipped}, {zeroed} of {count} values").format(
                    clipped=grouped(document["clipped"]), zeroed=grouped(document["zeroed"]), count=grouped(size)
                ),
            ),
        ]
    )
    rows = document["values"]
    if not rows:
        return
    headings = (L_("Value"), L_("Code"), L_("Scale"), L_("Becomes"), L_("Error"), L_("Remark"))
    title = (
        _("The first {count} of {size} values").format(count=len(rows), size=grouped(size))
        if len(rows) < size
        else _("{count} values").format(count=grouped(size))
    )
    listed = table(title, headings, right=headings[:-1])
    for row in rows:
        numbers = [f"{float(row[key]):.6g}" for key in ("scale", "becomes", "error")]
        remark = _("clipped") if row["clipped"] else _("became zero") if row["zeroed"] else ""
        code = "" if row["code"] is None else str(row["code"])
        listed.add_row(f"{float(row['value']):.6g}", code, *numbers, remark)
    console().print(listed)
