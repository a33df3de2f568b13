"""`precgui run --place NAME`: train at a place, shown as a run here; the file comes home at the end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from precgui import config, paths
from precgui.cli.parser import UserError
from precgui.cli.place_option import LinkWords
from precgui.cli.run_display import RunDisplay, interrupt, report, stop_on_signals, tell
from precgui.cli.terminal import say
from precgui.events import Event
from precgui.places.messages import JobLine
from precgui.places.placed_job import PlacedRun
from precgui.places.settings import NamedPlace, place_called
from precgui.places.training import PlacedTraining
from precgui.places.trial import job_of_run
from precgui.runs.errors import RunFileError
from precgui.runs.file.event_tables import EventRows
from precgui.runs.file.reader import open_run
from precgui.runs.library import new_run_path
from precgui.sanitize import one_line
from precgui.words import _, translated

_DETACHED = 3
_INTERRUPTED = 130


def run_there(args: argparse.Namespace, words: Sequence[str] = ()) -> int:
    """Train and report. Returns as `precgui run`, 3 where the run goes on without this end."""
    place = place_called(args.place)
    if args.keys:
        raise UserError(_("--keys is for this machine; leave --place out"))
    if args.resume:
        return _resume(place, args)
    if config.is_precision_auto(args.config, args.settings):
        raise UserError(_("precision=auto searches on this machine; choose a precision for a run at a place"))
    requested = config.load(args.config, args.settings)
    path = _new_path(args.output, requested)
    training = PlacedTraining.of_config(place, requested, path, may_send_code=args.own_code)
    return _follow(place, training, None if args.json else RunDisplay(), detach=args.detach)


def attach(place: NamedPlace, line: JobLine, args: argparse.Namespace) -> int:
    """Follow a run that is at a place already, bring its file home and report. Returns as `run_there`."""
    path = _new_path(args.output, config.RunConfig(title=one_line(line.title)))
    training = PlacedTraining.attached(PlacedRun(place, line.job, path, part=line.part))
    if args.stop:
        training.stop()
    return _follow(place, training, None if args.json else RunDisplay())


def _resume(place: NamedPlace, args: argparse.Namespace) -> int:
    """Let a run go on that broke off at the place; its file at home is replaced by the whole one."""
    if args.output or args.settings:
        raise UserError(_("--resume goes on with the settings and the file of the run; leave out -o and --set"))
    path = Path(args.config)
    with open_run(path) as saved:
        run_id, requested, where = saved.run_id, saved.config, str(saved.environment.get("place") or "")
    if config.is_own_task(requested.task) and not args.own_code:
        raise UserError(
            _("{path} was trained on a task of your own; --own-code runs the code that it names").format(path=path)
        )
    line = job_of_run(place, run_id, path, where)
    training = PlacedTraining.attached(PlacedRun(place, run_id, path, part=line.part + (not line.is_running)))
    return _follow(place, training, None if args.json else RunDisplay(), detach=args.detach)


def _new_path(output: Path | None, requested: config.RunConfig) -> Path:
    path = output or new_run_path(paths.runs_dir(), requested)
    if path.exists():
        raise UserError(_("{path} exists already; choose another name").format(path=path))
    return path


def _follow(place: NamedPlace, training: PlacedTraining, view: RunDisplay | None, *, detach: bool = False) -> int:
    """Relay a run until its end, or with `detach` until it has begun. Returns the exit code."""
    words = LinkWords()

    def take(batch: list[Event | EventRows]) -> None:
        if view is not None:
            for event in batch:
                view.show(event.last() if isinstance(event, EventRows) else event)
        if detach:
            training.detach()

    try:
        with stop_on_signals(training.stop, interrupt, may_wait_at_term=False), view or nullcontext():
            training.run(take, lambda: words.show(training.link_state))
    except KeyboardInterrupt:
        say(f"precgui: {_let_go(place, training)}", file=sys.stderr)
        return _DETACHED if training.has_begun else _INTERRUPTED
    if (ended := training.ended) is None:
        is_wanted = detach and training.is_detached
        if not training.has_begun:
            say(f"precgui: {translated(training.why)}", file=sys.stderr)
            return 1
        why = _let_go(place, training) if is_wanted else f"{translated(training.why)}; {_attach_words(place, training)}"
        say(f"precgui: {why}", file=sys.stderr)
        return 0 if is_wanted else _DETACHED
    fault = "" if training.path.exists() or ended.status == "failed" else ended.message
    return tell(ended, fault, report(training.path, _precision(training.path)), view)


def _let_go(place: NamedPlace, training: PlacedTraining) -> str:
    """The sentence about a run that this end does not follow any more."""
    if not training.has_begun:
        text = _("interrupted before {name} said that the run had begun; `precgui places jobs {name}` lists it")
        return text.format(name=place.name)
    text = _("the run goes on at {name}; {attach}")
    return text.format(name=place.name, attach=_attach_words(place, training))


def _attach_words(place: NamedPlace, training: PlacedTraining) -> str:
    return _("`precgui places attach {name} {run_id} -o {path}` brings it home").format(
        name=place.name, run_id=training.run_id, path=training.path
    )


def _precision(path: Path) -> str:
    with suppress(RunFileError), open_run(path) as saved:
        return saved.config.precision
    return ""
