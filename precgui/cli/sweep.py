"""`precgui sweep`: many precisions and seeds of one job, run fairly, resumable, kept as a folder of run files."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from precgui import config, paths
from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError, add_settings
from precgui.cli.place_option import add_place_option, run_source_there
from precgui.cli.terminal import say
from precgui.words import L_, _, translated

if TYPE_CHECKING:
    from precgui.sweeps.estimate import SweepEstimate
    from precgui.sweeps.folder import SweepFolder
    from precgui.sweeps.spec import SweepSpec

_DEFAULT_SEEDS = 5


def add_parsers(subparsers: Any) -> None:
    """Add `sweep` to the command line."""
    parser = subparsers.add_parser(
        "sweep",
        help=_("run a config in several precisions and seeds, fairly and resumably"),
        description=_("With a config or recipe: plan and run a new sweep. With the folder of a sweep: go on with it."),
    )
    parser.add_argument("source", metavar="CONFIG.toml|RECIPE|DIR", help=_("what to train, or the folder of a sweep"))
    new = parser.add_argument_group(_("a new sweep"))
    new.add_argument("-o", "--output", type=Path, metavar="DIR", help=_("the folder of the sweep; must not exist yet"))
    new.add_argument("--precisions", metavar="P,P,...", help=_("for example fp32,bf16-amp,int8-qat"))
    new.add_argument("--baseline", default="", metavar="P", help=_("the precision to compare with (default fp32)"))
    new.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help=_("runs of each arm (default {seeds})").format(seeds=_DEFAULT_SEEDS),
    )
    new.add_argument(
        "--vary", action="append", default=[], metavar="KEY=A,B", help=_("also vary a field of the config")
    )
    add_settings(new, _("change one value"))
    new.add_argument(
        "--timing-rounds", type=int, default=0, metavar="N", help=_("rounds of short interleaved runs for times")
    )
    new.add_argument("--title", default="", help=_("a name for the sweep"))
    _add_changes(parser.add_argument_group(_("a sweep that exists")))
    _add_cluster(parser.add_argument_group(_("a cluster")))
    parser.add_argument("--plan", action="store_true", help=_("show the plan and the time it takes, run nothing"))
    parser.add_argument("--json", action="store_true", help=_("print one JSON document and nothing else"))
    add_place_option(parser, _run_there, L_("train there; of several (a,b) each takes whole seeds (precgui places)"))
    parser.set_defaults(run=run)


def _run_there(args: argparse.Namespace, words: Sequence[str]) -> int:
    """A folder of this machine, or several places: its blocks are trained there. Else the place does all of it."""
    from precgui.cli.place_queue import ask_queue, queued_at, submit_there

    if queued_at(Path(args.source)) is not None:
        return ask_queue(args, words)
    if args.slurm and not Path(args.source).is_dir():
        return submit_there(args, words)
    return run(args) if "," in args.place or Path(args.source).is_dir() else run_source_there(args, words)


def _add_cluster(jobs: argparse._ArgumentGroup) -> None:
    jobs.add_argument(
        "--slurm", action="store_true", help=_("submit an array with a job for each block (needs precgui[slurm])")
    )
    jobs.add_argument("--slurm-account", metavar="NAME", help=_("the account that the jobs are charged to"))
    jobs.add_argument("--slurm-gpus", type=int, metavar="N", help=_("GPUs of each job"))
    jobs.add_argument("--slurm-minutes", type=int, metavar="N", help=_("time limit of each job; it is then requeued"))
    jobs.add_argument("--jobs", action="store_true", help=_("show the jobs with their states in the queue"))
    jobs.add_argument("--cancel-jobs", action="store_true", help=_("cancel the jobs that have not ended"))
    jobs.add_argument(
        "--slurm-set", action="append", default=[], metavar="KEY=VALUE", dest="slurm_settings",
        help=_("a parameter of submitit, e.g. slurm_partition=gpu or timeout_min=60"),
    )  # fmt: skip


def _add_changes(old: argparse._ArgumentGroup) -> None:
    old.add_argument("--add-seeds", type=int, metavar="N", help=_("plan so many seeds more, and run them"))
    old.add_argument("--skip", action="append", default=[], metavar="RUN", help=_("leave a waiting run out"))
    old.add_argument(
        "--take", action="append", default=[], metavar="RUN", help=_("take a run in again that was left out")
    )
    old.add_argument(
        "--again",
        action="append",
        default=[],
        metavar="RUN",
        help=_("run one again that has ended, such as a killed one, or one of a lost machine"),
    )
    old.add_argument(
        "--give-up",
        action="append",
        default=[],
        metavar="RUN",
        help=_("take a run of another machine for dead, and run it again"),
    )
    old.add_argument("--first", metavar="RUN", help=_("run this one next"))
    old.add_argument(
        "--take-over", action="store_true", help=_("let the process that runs it end its present run, and go on")
    )
    old.add_argument("--pause", action="store_true", help=_("ask the process that runs it to begin no further run"))
    old.add_argument(
        "--own-code", action="store_true", help=_("run the code of a task of your own that the folder names")
    )


def run(args: argparse.Namespace) -> int:
    """Plan, change, show or run a sweep. Returns 1 when all runs of some arm failed, else 0."""
    from precgui.sweeps.folder import SweepFolder, create_sweep, is_sweep

    source = Path(args.source)
    if not (is_sweep(source) or source.is_dir()):
        spec = _new_spec(args)
        if args.plan:
            return _show_new(spec, args.json)
        if args.output is None:
            raise UserError(_("-o is missing: name the folder that the sweep shall have"))
        folder = create_sweep(args.output, spec)
    else:
        _refuse_new_options(args)
        folder = SweepFolder(source)
        _change(folder, args)
        if args.jobs or args.cancel_jobs:
            return _show_jobs(folder, cancel=args.cancel_jobs, as_json=args.json)
        if args.plan or args.pause:
            return _show(folder, args.json)
        _refuse_own_code(folder, args)
    if args.place:
        return _run_at_places(folder, args)
    return _submit(folder, args) if args.slurm else _run(folder, args.json, args.take_over)


def _new_spec(args: argparse.Namespace) -> SweepSpec:
    from precgui.sweeps.spec import make_spec, parse_vary

    for option in ("add_seeds", "skip", "take", "again", "give_up", "first", "take_over", "pause", "own_code",
        "jobs", "cancel_jobs",
    ):  # fmt: skip
        if getattr(args, option):
            raise UserError(
                _("--{option} is for the folder of a sweep, and {source} is none").format(
                    option=option.replace("_", "-"), source=args.source
                )
            )
    if not args.precisions:
        raise UserError(_("--precisions is missing; name some, e.g. --precisions fp32,bf16-amp"))
    base = config.load(args.source, args.settings)
    return make_spec(
        base,
        [name.strip() for name in args.precisions.split(",") if name.strip()],
        _DEFAULT_SEEDS if args.seeds is None else args.seeds,
        vary=dict(parse_vary(text) for text in args.vary),
        baseline=args.baseline,
        timing_rounds=args.timing_rounds,
        order_seed=secrets.randbelow(2**31),
        title=args.title,
    )


def _refuse_new_options(args: argparse.Namespace) -> None:
    given = {
        "-o": args.output, "--precisions": args.precisions, "--seeds": args.seeds, "--vary": args.vary,
        "--set": args.settings, "--baseline": args.baseline, "--timing-rounds": args.timing_rounds,
    }  # fmt: skip
    for option, value in given.items():
        if value:
            text = _("{option} cannot be changed in the sweep {source}; begin a new sweep for it")
            if option == "--seeds":
                text = _("{option} cannot be changed in the sweep {source}; use --add-seeds")
            raise UserError(text.format(option=option, source=args.source))


def _refuse_own_code(folder: SweepFolder, args: argparse.Namespace) -> None:
    """A folder is data, also where it came from somebody else; what it names runs only when allowed."""
    if not args.own_code and any(map(config.is_own_task, folder.spec.tasks)):
        raise UserError(
            _("{source} trains a task of your own; --own-code runs the code that it names").format(source=args.source)
        )


def _change(folder: SweepFolder, args: argparse.Namespace) -> None:
    if args.add_seeds is not None:
        folder.add_seeds(args.add_seeds)
    for name in args.skip:
        folder.skip(name)
    for name in args.take:
        folder.skip(name, skipped=False)
    for name in args.give_up:
        folder.give_up(name)
    for name in args.again:
        folder.run_again(name)
    if args.first:
        folder.put_first(args.first)
    if args.pause:
        folder.pause()
    elif not args.plan:
        folder.unpause()


def _run(folder: SweepFolder, as_json: bool, take_over: bool) -> int:
    from precgui.cli.sweep_progress import SweepProgress, run_or_watch

    with SweepProgress(folder, quiet=as_json) as progress:
        run_or_watch(folder, progress, take_over=take_over)
    code = _show(folder, as_json)
    return code or int(_all_failed(folder))


def _run_at_places(folder: SweepFolder, args: argparse.Namespace) -> int:
    from precgui.cli.place_sweep import PlacesSweep
    from precgui.cli.sweep_progress import SweepProgress, two_signals
    from precgui.places.settings import place_called

    if args.slurm or args.take_over:
        option = "--slurm" if args.slurm else "--take-over"
        raise UserError(
            _("{option} is not for a sweep of this machine whose runs are trained at places; leave it out").format(
                option=option
            )
        )
    places = [place_called(name.strip()) for name in dict.fromkeys(args.place.split(","))]
    stop, abort = threading.Event(), threading.Event()
    with SweepProgress(folder, quiet=args.json) as progress, two_signals(stop, abort, progress):
        sweep = PlacesSweep(folder.path, places, progress.show, stop.is_set, abort.is_set, may_send_code=args.own_code)
        sweep.run()
    code = _show(folder, args.json)
    return code or int(_all_failed(folder))


def _submit(folder: SweepFolder, args: argparse.Namespace) -> int:
    from precgui.sweeps.slurm import job_settings, submit_blocks
    from precgui.sweeps.spec import parse_setting

    settings = job_settings(args.slurm_account, args.slurm_gpus, args.slurm_minutes)
    jobs = submit_blocks(folder, settings | dict(parse_setting(text) for text in args.slurm_settings))
    ids = ", ".join(str(job.job_id) for job in jobs)
    say(
        _("{count} jobs submitted: {ids}").format(count=len(jobs), ids=ids) if jobs else _("no block has runs left"),
        file=sys.stderr,
    )
    return _show(folder, args.json)


def _show_jobs(folder: SweepFolder, *, cancel: bool, as_json: bool) -> int:
    """The jobs of a sweep with their states, after cancelling those that have not ended where asked to."""
    from precgui.sweeps.folder import JOBS
    from precgui.sweeps.jobs import cancel_jobs, job_states, read_jobs

    jobs = read_jobs(folder.path / JOBS)
    if cancel:
        cancelled = cancel_jobs(jobs)
        say(_("{count} jobs cancelled").format(count=len(cancelled)), file=sys.stderr)
    rows = [
        {"job": state.job.job_id, "block": state.job.block, "state": state.state, "reason": state.reason}
        for state in job_states(jobs)
    ]
    if as_json:
        print(json.dumps({"folder": str(folder.path), "jobs": rows}))
        return 0
    table = Table(_("job"), _("block"), _("state"), _("reason"), box=None)
    for row in rows:
        table.add_row(*(escape(translated(str(cell))) for cell in row.values()))
    HarmlessConsole().print(table if rows else _("no jobs were submitted"))
    return 0


def _all_failed(folder: SweepFolder) -> bool:
    states = [state for state in folder.states() if state.member.kind == "run"]
    failed = {state.member.arm for state in states if state.status == "failed"}
    return bool(failed - {state.member.arm for state in states if state.came_through})


def _show_new(spec: SweepSpec, as_json: bool) -> int:
    """The plan of a sweep that does not exist yet: its runs, time and detectable difference."""
    from precgui.sweeps.estimate import estimate_sweep
    from precgui.sweeps.plan import make_plan

    estimate = estimate_sweep(spec, paths.runs_dir())
    members = [
        {"name": m.name, "precision": m.precision, "seed": m.seed, "block": m.block, "status": "waiting", "run": None}
        for m in make_plan(spec).members
    ]
    if as_json:
        document = {
            "folder": None, "members": members, "done": 0, "left": len(members), "left_s": estimate.total_s,
            "detectable": estimate.detectable, "detectable_by_arm": dict(estimate.by_arm), "looks": spec.looks,
            "sources": list(estimate.sources),
        }  # fmt: skip
        print(json.dumps(document, allow_nan=False))
        return 0
    console = HarmlessConsole()
    console.print(_members_table(members))
    for line in _estimate_lines(estimate):
        console.print(line, highlight=False)
    return 0


def _estimate_lines(estimate: SweepEstimate) -> list[str]:
    if estimate.total_s is None:
        lines = [_("{count} runs, time: not known").format(count=estimate.runs)]
    else:
        text = _("{count} runs, time: about {time}")
        lines = [text.format(count=estimate.runs, time=_duration(estimate.total_s))]
    if estimate.detectable is not None:
        parts = [f"{arm} {translated(estimate.difference_text(value))}" for arm, value in estimate.by_arm.items()]
        lines.append(_("smallest difference that can be told apart: about {parts}").format(parts=", ".join(parts)))
    return [*lines, *(f"({translated(source)})" for source in estimate.sources)]


def _show(folder: SweepFolder, as_json: bool) -> int:
    """The state of a sweep, as DESIGN's keys or as a table."""
    from precgui.sweeps.report import sweep_document

    document = sweep_document(folder)
    if as_json:
        print(json.dumps(asdict(document), allow_nan=False))
        return 0
    console = HarmlessConsole()
    console.print(_members_table([asdict(member) for member in document.members]))
    counts = _("{done} runs done, {left} left").format(done=document.done, left=document.left)
    if document.left_s is not None:
        counts = _("{done} runs done, {left} left for about {time}").format(
            done=document.done, left=document.left, time=_duration(document.left_s)
        )
    console.print(counts, highlight=False)
    if document.left == 0:
        console.print(
            _("precgui compare {path} shows what came out").format(path=escape(str(folder.path))), highlight=False
        )
    elif document.paused:
        say(
            "precgui: " + _("the sweep is paused; precgui sweep {path} goes on with it").format(path=folder.path),
            file=sys.stderr,
        )
    return 0


def _members_table(members: list[dict[str, Any]]) -> Table:
    table = Table(_("run"), _("precision"), _("seed"), _("block"), _("status"), box=None)
    for member in members:
        cells = [str(member[key]) for key in ("name", "precision", "seed", "block")]
        table.add_row(*map(escape, (*cells, translated(str(member["status"])))))
    return table


def _duration(seconds: float) -> str:
    if seconds < 90:
        return _("{seconds:.0f} s").format(seconds=seconds)
    if seconds < 5400:
        return _("{minutes:.0f} min").format(minutes=seconds / 60)
    return _("{hours:.1f} h").format(hours=seconds / 3600)
