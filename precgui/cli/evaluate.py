"""`precgui evaluate`: a converted integer model once more on the validation set of its task."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precgui.cli.terminal import say
from precgui.words import L_, _, translated

_NOW = L_("{title} {now} on {samples} samples")
_NOW_AND_SAVED = L_("{title} {now} on {samples} samples, {saved} when it was saved")


def add_parsers(subparsers: Any) -> None:
    """Add `evaluate` to the command line."""
    parser = subparsers.add_parser("evaluate", help=_("evaluate an integer model that qat.save_to has written"))
    parser.add_argument("file", type=Path, metavar="MODEL.pt", help=_("a converted model, such as RUN.int8.pt"))
    parser.add_argument("--own-code", action="store_true", help=_("run the code of a task of your own that it names"))
    parser.add_argument("--json", action="store_true", help=_("print one JSON document"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Evaluate and print. Raises SentenceError for a file that is no integer model."""
    from precgui.engine.qat.saved_model import evaluate_file
    from precgui.runs.file import json_text

    reported = evaluate_file(args.file, own_code=args.own_code)
    if args.json:
        print(json.dumps(json_text.plain({"model": str(args.file), **reported}), indent=2, allow_nan=False))
    else:
        say("\n".join(_lines(reported)))
    return 0


def _lines(reported: Mapping[str, Any]) -> list[str]:
    text = _("{title}: {precision}, weights of {weights:.0f} KiB in a file of {file:.0f} KiB")
    sizes = {"weights": reported["weights_bytes"] / 1024, "file": reported["bytes"] / 1024}
    lines = [text.format(title=reported["title"], precision=reported["precision"], **sizes)]
    form = ".2%" if reported["unit"] == "%" else ".4g"
    for name, title, shape in (("metric", translated(reported["metric"]).lower(), form), ("loss", _("loss"), ".4f")):
        if name in reported["now"]:
            sentence = _NOW_AND_SAVED if name in reported["saved"] else _NOW
            now, saved = format(reported["now"][name], shape), format(reported["saved"].get(name, 0.0), shape)
            lines.append(translated(sentence).format(title=title, now=now, saved=saved, samples=reported["samples"]))
    return lines
