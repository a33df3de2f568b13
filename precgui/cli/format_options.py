"""Options that the commands on number formats share, and the formats and numbers parsed from them."""

from __future__ import annotations

import argparse
import re

from precgui.cli.parser import UserError
from precgui.formats.conventions import BY_NAME
from precgui.formats.model import Format
from precgui.formats.registry import formats, get
from precgui.formats.rounding import OVERFLOWS, ROUNDINGS, CastPolicy
from precgui.words import _

MINUS_IS_NO_OPTION = re.compile(r"-(?!-|h$).")


def take_negative_values(parser: argparse.ArgumentParser) -> None:
    """Let -inf, -1e5 and -1/3 be values, not options."""
    parser._negative_number_matcher = MINUS_IS_NO_OPTION


def add_switches(parser: argparse.ArgumentParser) -> None:
    """--format, --rounding, --overflow, --stack, --seed and --json."""
    parser.add_argument(
        "--format", default="all", metavar="F", help=_("a format, several with commas, or all (default)")
    )
    parser.add_argument("--rounding", choices=ROUNDINGS, default="nearest_even", metavar="R", help=", ".join(ROUNDINGS))
    parser.add_argument(
        "--overflow",
        choices=OVERFLOWS,
        metavar="O",
        help=_("{overflows} (default ieee)").format(overflows=", ".join(OVERFLOWS)),
    )
    parser.add_argument(
        "--stack",
        metavar="S",
        help=_("overflow and NaN as in: {by_name}").format(by_name="; ".join(BY_NAME)).replace("%", "%%"),
    )
    parser.add_argument("--seed", type=int, default=0, help=_("of stochastic rounding"))
    parser.add_argument("--json", action="store_true", help=_("print one JSON document"))


def chosen_formats(names: str) -> list[Format]:
    return list(formats().values()) if names == "all" else [get(name) for name in names.split(",")]


def convention_of(args: argparse.Namespace, fmt: Format) -> CastPolicy:
    """The cast policy that --rounding, --overflow and --stack give for a format. Raises SentenceError."""
    if args.stack is not None and args.stack not in BY_NAME:
        raise UserError(_("{name!r} is no stack; there are {names}").format(name=args.stack, names="; ".join(BY_NAME)))
    base = BY_NAME[args.stack].cast_policy(fmt) if args.stack else CastPolicy()
    return CastPolicy(args.rounding, args.overflow or base.overflow, base.nan)
