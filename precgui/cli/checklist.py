"""`precgui checklist`: the check list of guides on mixed precision, each line measured from a run's file."""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError
from precgui.words import L_, _, error_text, translated

if TYPE_CHECKING:
    from precgui.config import RunConfig
    from precgui.runs.check_list import CheckLine
    from precgui.sweeps.folder import SweepFolder

_MARKS = {
    L_("met"): ("✓", "green"),
    L_("missed"): ("✗", "red"),
    L_("not needed"): ("-", "dim"),
    L_("not measured"): ("?", "yellow"),
}
_SEEDS, _STEPS = 5, 200
Effects = Mapping[str, Sequence[tuple[str, str]]]  # rows of the study of a setting, by its path


def add_parsers(subparsers: Any) -> None:
    """Add `checklist` to the command line."""
    parser = subparsers.add_parser(
        "checklist",
        help=_("what guides on mixed precision ask of a run, each line measured from its file"),
        description=_(
            "With --pairs, the run is trained again with and without each change that a line proposes, by the "
            "same seeds, and the line says what the change did."
        ),
        epilog=_("Exit code: 0 all lines met that were measured, 1 lines missed, 2 the command is not understood."),
    )
    parser.add_argument("file", type=Path, metavar="RUN.h5", help=_("a run file"))
    parser.add_argument("--pairs", type=Path, metavar="DIR", help=_("measure each change, in a study below DIR"))
    parser.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help=_("with --pairs: pairs of a change (default {seeds})").format(seeds=_SEEDS),
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help=_("with --pairs: the most steps of a run (default {steps}; 0: those of the run)").format(steps=_STEPS),
    )
    parser.add_argument(
        "--own-code", action="store_true", help=_("run the code of a task of your own that the run names")
    )
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the lines. Returns 1 where one is missed. Raises SentenceError for a file that cannot be read."""
    from precgui.runs.check_list import check_list
    from precgui.runs.errors import RunFileError
    from precgui.runs.open import open_run_or_events

    if args.pairs is None and (args.seeds is not None or args.steps is not None):
        raise UserError(_("--seeds and --steps are those of --pairs DIR, which is missing"))
    try:
        with open_run_or_events(args.file) as saved:
            lines, trained = check_list(saved), saved.config
    except RunFileError as error:
        raise UserError(error_text(error)) from None
    effects = {} if args.pairs is None else _measure(args, lines, trained)
    if args.json:
        rows = [asdict(line) | ({"effects": _of_line(line, effects)} if effects else {}) for line in lines]
        print(json.dumps({"run": str(args.file), "lines": rows}, ensure_ascii=False, allow_nan=False))
    else:
        _print(lines, effects)
    return 1 if any(line.state == "missed" for line in lines) else 0


def _print(lines: Sequence[CheckLine], effects: Effects) -> None:
    from precgui.runs.check_list import lines_met

    console = HarmlessConsole(highlight=False, soft_wrap=True)
    for line in lines:
        mark, colour = _MARKS[line.state]
        console.print(Text(f"{mark} {translated(line.title)}: {translated(line.state)}", style=colour))
        console.print(Text(f"  {translated(line.measured)}"))
        for path, value in line.change.items():
            text = str(value).lower() if isinstance(value, bool) else value
            console.print(Text("  " + _("try: --set {path}={value}").format(path=path, value=text)))
            for title, cell in effects.get(path, ()):
                console.print(Text(f"    {translated(title)}: {translated(cell)}", style="cyan"))
    console.print(Text(translated(lines_met(lines))))
    if not effects and any(line.change for line in lines):
        console.print(Text(_("--pairs DIR measures what each change does, in pairs"), style="dim"))


def _of_line(line: CheckLine, effects: Effects) -> dict[str, dict[str, str]]:
    return {path: dict(effects[path]) for path in line.change if path in effects}


def _measure(args: argparse.Namespace, lines: Sequence[CheckLine], trained: RunConfig) -> Effects:
    """Run what is left of a study for each proposed change. Raises SentenceError."""
    from precgui.cli.compare_groups import sweep_study
    from precgui.cli.sweep_progress import SweepProgress, run_or_watch
    from precgui.config import is_own_task
    from precgui.events import Metric
    from precgui.runs.report.group_table import effect_rows

    changes = {path: value for line in lines for path, value in line.change.items()}
    if changes and is_own_task(trained.task) and not args.own_code:
        raise UserError(
            _("{file} was trained on a task of your own; --own-code runs the code that it names").format(file=args.file)
        )
    effects: dict[str, list[tuple[str, str]]] = {}
    for path, value in changes.items():
        folder = _study(args, trained, path, value)
        with SweepProgress(folder, quiet=args.json) as progress:
            if run_or_watch(folder, progress):
                break
        study = sweep_study(folder.path, "", None).study
        changed = [group for group in study.groups if group.baseline != group.group]
        rows = [row for group in changed for row in effect_rows(group, Metric(**study.metric))]
        effects[path] = [*rows, (L_("the study"), str(folder.path))]
    return effects


def _study(args: argparse.Namespace, trained: RunConfig, path: str, value: Any) -> SweepFolder:
    """The study of a change: a new one, or the one that was begun at the same place."""
    from precgui.config import change
    from precgui.sweeps.folder import SweepFolder, create_sweep, is_sweep
    from precgui.sweeps.spec import make_spec

    place = args.pairs / path
    if is_sweep(place):
        return SweepFolder(place)
    most, own = _STEPS if args.steps is None else args.steps, trained.train.max_steps
    shorter = [f"train.max_steps={most}"] if most > 0 and not (own and own <= most) else []
    base = change(trained, shorter)
    spec = make_spec(
        base, [base.precision], _SEEDS if args.seeds is None else args.seeds,
        vary={path: [attrgetter(path)(base), value]}, order_seed=secrets.randbelow(2**31), title=base.title,
    )  # fmt: skip
    return create_sweep(place, spec)
