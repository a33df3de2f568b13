"""`precgui run`: train as a config or a recipe says, with progress on the terminal and a run file at the end."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Column, Table

from precgui import config, paths
from precgui.cli.assign import metric_sentence, verified_plan
from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError, add_settings
from precgui.cli.place_option import add_place_option
from precgui.cli.run_display import RunDisplay, interrupt, report, stop_on_signals, tell
from precgui.cli.terminal import say
from precgui.events import RunEnded
from precgui.words import _, translated

if TYPE_CHECKING:
    from precgui.job import Job

_FORMATS, _BUDGET, _SEEDS = "e4m3fn,bf16", "bits=12", 5


def add_parsers(subparsers: Any) -> None:
    """Add `run` to the command line."""
    parser = subparsers.add_parser("run", help=_("train as a config says and keep the run in a file"))
    parser.add_argument(
        "config",
        nargs="?",
        default=config.DEFAULT_RECIPE,
        metavar="CONFIG.toml|RECIPE|RUN.h5",
        help=_("a TOML file or one of: {recipes} (default {default})").format(
            recipes=", ".join(config.RECIPES), default=config.DEFAULT_RECIPE
        ),
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help=_("go on with the run in the file RUN.h5, which ended before its last step, from its newest checkpoint"),
    )
    parser.add_argument(
        "--own-code",
        action="store_true",
        help=_(
            "with --resume: allow the code of one's own that the file names as its task to run; "
            "with --place: allow the code of one's own that the config names to be sent, and to run there"
        ),
    )
    parser.add_argument("-o", "--output", type=Path, metavar="RUN.h5", help=_("the run file; must not exist yet"))
    add_settings(parser, _("change one value, e.g. --set precision=bf16-amp --set optimizer.lr=0.01"))
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    _add_auto_options(parser)
    parser.add_argument("--keys", action="store_true", help=_("list every key of the config with its default"))
    parser.set_defaults(run=run)
    add_place_option(parser, _run_there)
    parser.add_argument("--detach", action="store_true", help=_("with --place: return when the run has begun there"))


def _run_there(args: argparse.Namespace, words: Sequence[str]) -> int:
    from precgui.cli.place_run import run_there

    return run_there(args, words)


def run(args: argparse.Namespace) -> int:
    """Train and report. Returns 0 when the run completed or was stopped, 1 when it failed."""
    if args.keys:
        return _print_keys(as_json=args.json)
    if args.resume:
        return _go_on(args)
    is_auto = config.is_precision_auto(args.config, args.settings)
    requested = _searched_config(args) if is_auto else config.load(args.config, args.settings)
    if requested is None:
        return 1
    if is_secondary_rank(requested):
        return _follow(requested)
    from precgui.job import Job  # the run file's and the sensors' libraries, once the config is known to be good
    from precgui.runs.library import new_run_path

    path = args.output or new_run_path(paths.runs_dir(), requested)
    view = None if args.json else RunDisplay()
    job = Job(requested, path, [view.show] if view else [])
    ended = _run_job(job, view)
    if job.was_refused:
        path.unlink(missing_ok=True)  # nothing of a run is in it
        raise UserError(ended.message)
    return tell(ended, job.fault, report(path, requested.precision), view)


def _go_on(args: argparse.Namespace) -> int:
    """Go on with a run that has ended before its last step. Returns as `run`."""
    from precgui.engine.parallel.allocation import allocated_rank
    from precgui.job import Job
    from precgui.runs.broken_off import broken_off

    if args.output or args.settings:
        raise UserError(_("--resume goes on with the settings and the file of the run; leave out -o and --set"))
    path = Path(args.config)
    broken = broken_off(path)
    if config.is_own_task(broken.config.task) and not args.own_code:
        raise UserError(
            _("{path} was trained on a task of your own; --own-code runs the code that it names").format(path=path)
        )
    if allocated_rank() > 0:  # another process of the same torchrun keeps the record
        return _follow(broken.trained_as, path)
    view = None if args.json else RunDisplay()
    job = Job.going_on(path, [view.show] if view else [])
    ended = _run_job(job, view)
    if job.was_refused:
        raise UserError(ended.message)
    return tell(ended, job.fault, report(job.path, job.config.precision), view)


def _run_job(job: Job, view: RunDisplay | None) -> RunEnded:
    with stop_on_signals(job.stop, job.interrupt), view or nullcontext():
        return job.run()


def is_secondary_rank(requested: config.RunConfig) -> bool:
    """Whether another process of the same torchrun keeps the record. Raises UserError where each would train alone."""
    from precgui.engine.parallel.allocation import allocated_rank, allocated_ranks, in_allocation

    if in_allocation() and requested.parallel.strategy == "none":
        raise UserError(
            _(
                "this is one of {count} processes, but parallel.strategy is none; add --set parallel.strategy=ddp"
            ).format(count=allocated_ranks())
        )
    return allocated_rank() > 0


def _follow(requested: config.RunConfig, broken: Path | None = None) -> int:
    """Train as a rank other than the first, which keeps the record. Returns the exit code."""
    from precgui.job import follow

    stop = threading.Event()
    with stop_on_signals(stop.set, interrupt):
        fault = follow(requested, stop.is_set, broken)
    if fault:
        say("precgui: " + _("failed: {why}").format(why=translated(fault)), file=sys.stderr)
    return int(bool(fault))


def _print_keys(*, as_json: bool) -> int:
    if as_json:
        from precgui.runs.file.json_text import dump

        keys = [{"key": path, "default": repr(default), "meaning": text} for path, text, default in config.key_table()]
        print(dump({"keys": keys}))
        return 0
    longest = max(len(path) for path, *rest in config.key_table())  # a key that is cut could not be given to --set
    table = Table(Column(_("key"), no_wrap=True, min_width=longest), _("default"), _("meaning"), box=None)
    for path, description, default in config.key_table():
        table.add_row(path, escape(repr(default)), escape(translated(description)))
    HarmlessConsole().print(table)
    return 0


def _add_auto_options(parser: argparse.ArgumentParser) -> None:
    """The options of the search for `precision = auto`."""
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


def _searched_config(args: argparse.Namespace) -> config.RunConfig | None:
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
