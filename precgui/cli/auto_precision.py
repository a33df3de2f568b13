"""`precision = auto` of `precgui run`: formats of layers are searched for and verified before the run begins."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from precgui import config
from precgui.cli.assign import metric_sentence, verified_plan
from precgui.cli.terminal import say
from precgui.words import _

if TYPE_CHECKING:
    from precgui.config import RunConfig

_FORMATS, _BUDGET, _SEEDS = "e4m3fn,bf16", "bits=12", 5


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the search."""
    group = parser.add_argument_group(_("with precision=auto"))
    group.add_argument(
        "--formats",
        default=_FORMATS,
        metavar="F,F,...",
        help=_("of the layers, default {formats}").format(formats=_FORMATS),
    )
    group.add_argument(
        "--budget",
        default=_BUDGET,
        metavar="bits=B|loss=X",
        help=_("as precgui assign, default {budget}").format(budget=_BUDGET),
    )
    group.add_argument(
        "--seeds", type=int, default=_SEEDS, metavar="N", help=_("that verify it, default {seeds}").format(seeds=_SEEDS)
    )


def searched_config(args: argparse.Namespace) -> RunConfig | None:
    """The config with formats that were verified beside FP32; None, with a sentence, where they were not.

    Raises SentenceError for faults that the user can correct.
    """
    base = config.load(args.config, [*args.settings, "precision=fp32"])
    args.sweep = None
    assignment, planned, folder, verdict = verified_plan(base, args)
    metric = metric_sentence(verdict, folder)
    if verdict.verdict != "met":
        text = _(
            "precision=auto found no formats that it could verify, so nothing is trained; {metric}; allow more bits "
            "(--budget), more seeds (--seeds), or choose a precision"
        )
        say(f"precgui: {text.format(metric=metric)}", file=sys.stderr)
        return None
    layers = ", ".join(f"{layer}={name}" for layer, name in assignment.best.layers.items())
    if not args.json:
        text = _("precision=auto: {bits:.3g} bits a weight, {layers}; {metric}")
        say(text.format(bits=assignment.best.bits, layers=layers, metric=metric), file=sys.stderr)
    return planned
