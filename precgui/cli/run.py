"""`precgui run`: train as a config or a recipe says, with progress on the terminal and a run file at the end."""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from precgui import config, paths
from precgui.cli.auto_precision import add_options, searched_config
from precgui.cli.console import HarmlessConsole
from precgui.cli.parser import UserError
from precgui.cli.terminal import say
from precgui.events import NO_METRIC, Evaluated, Event, Incident, RunEnded, RunStarted, StepDone
from precgui.runs.figures import FIGURES
from precgui.runs.metric import ACCURACY, in_text, metric_of, value_text

if TYPE_CHECKING:
    from precgui.job import Job

_STYLE = {"info": "dim", "warning": "yellow", "error": "red"}
_NOTHING_KEPT = {
    "status": "failed",
    "steps": 0,
    "final": {"train_loss": None, "val_loss": None, "val_accuracy": None},
    **dict.fromkeys(
        ("time_s", "before_first_step_s", "step_s_median", "samples_per_s", "memory_peak_bytes", "energy_j")
    ),
    "skipped_steps": 0,
    "nonfinite_events": 0,
}
_MENTIONED = 0.05  # share of the time that passes before the first step
_MAX_PER_KIND = 3  # a run that is NaN for 10 000 steps says so three times


def add_parsers(subparsers: Any) -> None:
    """Add `run` to the command line."""
    parser = subparsers.add_parser("run", help="train as a config says and keep the run in a file")
    parser.add_argument(
        "config",
        nargs="?",
        default=config.DEFAULT_RECIPE,
        metavar="CONFIG.toml|RECIPE|RUN.h5",
        help=f"a TOML file or one of: {', '.join(config.RECIPES)} (default {config.DEFAULT_RECIPE})",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in the file RUN.h5, which ended before its last step, from its newest checkpoint",
    )
    parser.add_argument(
        "--own-code",
        action="store_true",
        help="with --resume: allow the code of one's own that the file names as its task to run",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="RUN.h5", help="the run file; must not exist yet")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="change one value, e.g. --set precision=bf16-amp --set optimizer.lr=0.01",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    add_options(parser)
    parser.add_argument("--keys", action="store_true", help="list every key of the config with its default")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train and report. Returns 0 when the run completed or was stopped, 1 when it failed."""
    if args.keys:
        return _print_keys(as_json=args.json)
    if args.resume:
        return _go_on(args)
    is_auto = config.is_precision_auto(args.config, args.settings)
    requested = searched_config(args) if is_auto else config.load(args.config, args.settings)
    if requested is None:
        return 1
    if _is_follower(requested):
        return _follow(requested)
    from precgui.job import Job  # the run file's and the sensors' libraries, once the config is known to be good
    from precgui.runs.library import new_run_path

    path = args.output or new_run_path(paths.runs_dir(), requested)
    view = None if args.json else _Terminal()
    job = Job(requested, path, [view.show] if view else [])
    ended = _run_job(job, view)
    if job.was_refused:
        path.unlink(missing_ok=True)  # nothing of a run is in it
        raise UserError(ended.message)
    return _tell(ended, job.fault, _report(path, requested.precision), view)


def _go_on(args: argparse.Namespace) -> int:
    """Go on with a run that has ended before its last step. Returns as `run`."""
    from precgui.job import Job

    if args.output or args.settings:
        raise UserError("--resume goes on with the settings and the file of the run; leave out -o and --set")
    view = None if args.json else _Terminal()
    job = Job.going_on(Path(args.config), [view.show] if view else [])
    if config.is_own_task(job.config.task) and not args.own_code:
        raise UserError(f"{job.path} was trained on a task of your own; --own-code runs the code that it names")
    ended = _run_job(job, view)
    if job.was_refused:
        raise UserError(ended.message)
    return _tell(ended, job.fault, _report(job.path, job.config.precision), view)


def _run_job(job: Job, view: _Terminal | None) -> RunEnded:
    with _stop_on_signals(job.stop, job.interrupt), view or nullcontext():
        return job.run()


def _tell(ended: RunEnded, fault: str, report: dict[str, Any], view: _Terminal | None) -> int:
    """Print the report of a run and how it ended; `fault` says why its file is not whole. Returns the exit code."""
    status, message = ("failed", fault) if fault else (ended.status, ended.message)
    report |= {"status": status}
    if view is None:
        print(json.dumps(report, allow_nan=False))
    else:
        view.print_report(report)
    if status == "completed":
        return 0
    say(f"precgui: {status}: {message}", file=sys.stderr)
    if ended.details:
        say(ended.details, file=sys.stderr)
    return 1 if status == "failed" else 0


def _interrupt() -> None:
    raise KeyboardInterrupt


def _is_follower(requested: config.RunConfig) -> bool:
    """Whether another process of the same torchrun keeps the record. Raises UserError where each would train alone."""
    from precgui.engine.parallel.allocation import allocated_rank, allocated_ranks, in_allocation

    if in_allocation() and requested.parallel.strategy == "none":
        raise UserError(
            f"this is one of {allocated_ranks()} processes, but parallel.strategy is none; add --set "
            "parallel.strategy=ddp"
        )
    return allocated_rank() > 0


def _follow(requested: config.RunConfig) -> int:
    """Train as a rank other than the first, which keeps the record. Returns the exit code."""
    from precgui.job import follow

    stop = threading.Event()
    with _stop_on_signals(stop.set, _interrupt):
        fault = follow(requested, stop.is_set)
    if fault:
        say(f"precgui: failed: {fault}", file=sys.stderr)
    return int(bool(fault))


def _report(path: Path, precision: str) -> dict[str, Any]:
    """The summary read back from the file, so that the report matches the file. Empty when the file does not exist.

    The time of its step is kept, too, for estimates of later runs.
    """
    from precgui.runs.errors import RunFileError
    from precgui.runs.file.reader import open_run
    from precgui.runs.recorded_facts import saved_weights
    from precgui.runs.step_times import keep_step_time

    kept: dict[str, Any] = {}
    with suppress(RunFileError), open_run(path) as saved:
        kept = dict(saved.summary)
        if weights := saved_weights(saved):
            kept["weights"] = weights
        with suppress(OSError):
            keep_step_time(saved)
    return {"run": str(path), "precision": precision, **_NOTHING_KEPT, **kept}


class _Terminal:
    """A progress bar, incidents as they come, a table at the end; all on stderr."""

    def __init__(self) -> None:
        self._console = HarmlessConsole(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("starting the engine", total=None)
        self._printed: dict[str, int] = {}
        self._metric = ACCURACY

    def __enter__(self) -> _Terminal:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: Event) -> None:
        match event:
            case RunStarted(total_steps=total, engine=engine):
                self._progress.update(self._task, total=total, description=f"training on {engine.get('device_name')}")
                self._metric = metric_of(engine)
            case StepDone(step=step, loss=loss):
                self._progress.update(self._task, completed=step, description=f"loss {loss:.4g}")
            case Evaluated(epoch=epoch, loss=loss, accuracy=accuracy):
                self._console.print(f"epoch {epoch}: validation {self._validation(loss, accuracy)}", highlight=False)
            case Incident(kind="note", message=message) if not self._progress.tasks[0].total:
                self._progress.update(self._task, description=escape(message))  # before the first step
            case Incident():
                self._show_incident(event)
            case _:
                pass

    def _validation(self, loss: float | None, value: float | None) -> str:
        if self._metric.name == NO_METRIC:
            return f"loss {_number(loss)}"
        return f"loss {_number(loss)}, {in_text(self._metric.title)} {value_text(self._metric, value, '-')}"

    def _show_incident(self, incident: Incident) -> None:
        count = self._printed[incident.kind] = self._printed.get(incident.kind, 0) + 1
        if count > _MAX_PER_KIND:
            return
        text = f"step {incident.step}: {incident.message}" if incident.step else incident.message
        self._console.print(f"[{_STYLE[incident.severity]}]{escape(text)}[/]", highlight=False)
        if count == _MAX_PER_KIND:
            self._console.print("Further incidents of this kind are in the file only.", highlight=False)

    def print_report(self, report: dict[str, Any]) -> None:
        table = Table(show_header=False, box=None)
        final = report["final"]
        rows = {
            "run": report["run"],
            "status": report["status"],
            "steps": report["steps"],
            FIGURES["train_loss"].in_words: _number(final["train_loss"]),
            "validation": self._validation(final["val_loss"], final["val_accuracy"]),
            FIGURES["time_s"].in_words: _time(report),
            "speed": f"{_number(report['samples_per_s'], '.0f')} samples/s",
            "skipped steps": report["skipped_steps"],
            "non-finite events": report["nonfinite_events"],
            FIGURES["memory_bytes"].in_words: _unit(report["memory_peak_bytes"], 2**20, "MiB"),
            "energy": _unit(report["energy_j"], 1, "J"),
            **({"weights": report["weights"]} if "weights" in report else {}),
        }
        for name, value in rows.items():
            table.add_row(name, escape(str(value)))
        self._console.print(table)


def _number(value: float | None, form: str = ".4g") -> str:
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def _time(report: Mapping[str, Any]) -> str:
    """The whole time; where much of it passed before the first step, that part by itself."""
    whole_s, before_s = report["time_s"], report["before_first_step_s"]
    text = f"{_number(whole_s, '.1f')} s"
    if whole_s is None or before_s is None or before_s < max(1.0, _MENTIONED * whole_s):
        return text
    return f"{text}, {before_s:.1f} s of it before the first step (loading; on first use compiling, too)"


def _unit(value: float | None, size: float, unit: str) -> str:
    return "not measured" if value is None else f"{value / size:.1f} {unit}"


@contextmanager
def _stop_on_signals(stop: Callable[[], None], interrupt: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and a polite kill end the run after the present step; a second Ctrl-C ends it at once."""

    def on_signal(number: int, _: FrameType | None) -> None:
        stop()
        signal.signal(number, lambda *_: interrupt())

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_keys(*, as_json: bool) -> int:
    if as_json:
        from precgui.runs.file.json_text import dump

        keys = [{"key": path, "default": repr(default), "meaning": text} for path, text, default in config.key_table()]
        print(dump({"keys": keys}))
        return 0
    longest = max(len(path) for path, _, _ in config.key_table())  # a key that is cut could not be given to --set
    table = Table(Column("key", no_wrap=True, min_width=longest), "default", "meaning", box=None)
    for path, description, default in config.key_table():
        table.add_row(path, escape(repr(default)), escape(description))
    HarmlessConsole().print(table)
    return 0
