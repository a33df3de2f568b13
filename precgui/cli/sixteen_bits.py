"""`precgui fp16-or-bf16`: which of the two to use for one training on this machine, by short runs in pairs."""

from __future__ import annotations

import argparse
import json
import math
import secrets
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from precgui import config
from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError, add_settings
from precgui.cli.terminal import say
from precgui.words import _, translated, wording

if TYPE_CHECKING:
    from precgui.runs.report.content import ReportContent
    from precgui.runs.report.sixteen_bits import SixteenBits
    from precgui.sweeps.folder import SweepFolder

_SEEDS, _STEPS = 5, 200  # as `runs.report.sixteen_bits.SEEDS`, which is slow to import


def add_parsers(subparsers: Any) -> None:
    """Add `fp16-or-bf16` to the command line."""
    parser = subparsers.add_parser(
        "fp16-or-bf16",
        help=_("which of the two to use for a training here: gradients, loss scale, stability, speed, memory"),
        description=_(
            "With a config or recipe: short runs in fp32, fp16-amp and bf16-amp with the same seeds, kept as "
            "a study, and the verdict. With the folder of a study that has them: the verdict on what has ended."
        ),
        epilog=_("Exit code: 0 decided, 1 not decided, 2 the command is not understood."),
    )
    parser.add_argument("source", metavar="CONFIG.toml|RECIPE|DIR", help=_("what to train, or the folder of a study"))
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help=_("the folder of a new study"))
    parser.add_argument(
        "--seeds", type=int, metavar="N", help=_("runs of each precision (default {seeds})").format(seeds=_SEEDS)
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help=_("the most steps of a run (default {steps}; 0: as the config has it)").format(steps=_STEPS),
    )
    add_settings(parser, _("change one value"))
    parser.add_argument("--html", type=Path, metavar="FILE", help=_("write the page as one HTML file"))
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run what is left and print the page. Returns 1 where nothing is decided. Raises SentenceError."""
    from precgui.cli.compare_groups import sweep_study
    from precgui.cli.sweep_progress import SweepProgress, run_or_watch
    from precgui.runs.report.sixteen_bits import NOT_BOTH
    from precgui.runs.report.writing import write_report

    folder = _folder(args)
    if folder is not None:
        with SweepProgress(folder, quiet=args.json) as progress:
            run_or_watch(folder, progress)
    path = folder.path if folder is not None else Path(args.source)
    content = sweep_study(path, "", None).content()
    page = content.sixteen_bits
    if page is None:
        raise UserError(f"{path}: {translated(NOT_BOTH)}")
    if args.html is not None:
        write_report(content, "sixteen bits", args.html, wording())
    if args.json:
        print(json.dumps(_document(path, content, page), allow_nan=False))
    else:
        _print(content, page)
        say(
            _("The runs are in {path}; precgui fp16-or-bf16 {path} shows this again").format(path=path), file=sys.stderr
        )
    return int(page.choice == "not decided")


def _folder(args: argparse.Namespace) -> SweepFolder | None:
    """A new study; None for the folder of one, of which nothing is run here."""
    from precgui.runs.report.sixteen_bits import BF16, FP16, FP32
    from precgui.sweeps.folder import create_sweep, is_sweep
    from precgui.sweeps.spec import make_spec

    source = Path(args.source)
    if is_sweep(source) or source.is_dir():
        for option in ("output", "seeds", "steps", "settings"):
            if getattr(args, option):
                raise UserError(
                    _("--{option} is for a new study, and {source} is one; precgui sweep goes on with it").format(
                        option=option, source=source
                    )
                )
        return None
    if args.output is None:
        raise UserError(_("-o is missing: name the folder that the runs shall have"))
    base = config.load(args.source, [*args.settings, *_shorter(args)])
    seeds = _SEEDS if args.seeds is None else args.seeds
    spec = make_spec(base, (FP32, FP16, BF16), seeds, order_seed=secrets.randbelow(2**31), title=base.title)
    return create_sweep(args.output, spec)


def _shorter(args: argparse.Namespace) -> list[str]:
    """The setting of the most steps, where the config does not already make fewer."""
    most = _STEPS if args.steps is None else args.steps
    own = config.load(args.source, args.settings).train.max_steps
    if most <= 0 or (own and own <= most):
        return []
    return [f"train.max_steps={most}"]


def _document(path: Path, content: ReportContent, page: SixteenBits) -> dict[str, Any]:
    """The page as plain values: numbers that there are none of as null."""
    document: dict[str, Any] = _plain(asdict(page))
    return {"folder": str(path), "baseline": content.columns[0], "answer": content.answer, **document}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print(content: ReportContent, page: SixteenBits) -> None:
    from precgui.runs.report.sixteen_bits import TENSOR_COLUMNS

    console = HarmlessConsole(highlight=False)
    console.print(Text(translated(page.sentence), style="bold"))
    for line in page.caveats:
        console.print(Text(f"- {translated(line)}"))
    console.print(_table(("", "FP16", "BF16"), [(label, *cells) for label, cells in page.rows]))
    console.print(_table((_("BF16 beside FP16"), ""), page.beside))
    if page.tensors:
        console.print(_table(TENSOR_COLUMNS, page.tensors))
    elif page.no_gradients:
        console.print(Text(translated(page.no_gradients)))
    console.print(Text(translated(content.answer)))


def _table(head: tuple[str, ...], rows: Any) -> Table:
    table = Table(*(escape(translated(title)) for title in head))
    for row in rows:
        table.add_row(*(Text(translated(cell)) for cell in row))
    return table
