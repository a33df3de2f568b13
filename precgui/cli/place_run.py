"""`precgui run --place NAME`: train at a place, shown as a run here; the file comes home at the end."""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from precgui import config, paths
from precgui.cli.parser import UserError
from precgui.cli.place_option import LinkWords
from precgui.cli.run_view import RunView, interrupt, report, stop_on_signals, tell
from precgui.cli.terminal import say
from precgui.harmless_text import one_line
from precgui.places.channel import PlaceChannel
from precgui.places.messages import JobLine
from precgui.places.orders import run_order
from precgui.places.settings import Place, place_called
from precgui.process.supervised import DeathWords, Supervised
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.runs.library import new_run_path
from precgui.runs.training_process import TrainingProcess

KILL_AFTER_S = 10.0  # after a stop: a round trip more than here
_DETACHED = 3


def run_there(args: argparse.Namespace, words: Sequence[str] = ()) -> int:
    """Train and report. Returns as `precgui run`, 3 where the run goes on without this end."""
    place = place_called(args.place)
    if args.keys or args.resume:
        raise UserError(f"--{'keys' if args.keys else 'resume'} is for this machine; leave --place out")
    if config.is_precision_auto(args.config, args.settings):
        raise UserError("precision=auto searches on this machine; choose a precision for a run at a place")
    requested = config.load(args.config, args.settings)
    path = _new_path(args.output, requested)
    run_id = uuid.uuid4().hex
    run_order(requested, run_id, place.name, may_send_code=args.own_code)  # its faults, before anything
    channel = PlaceChannel(place, may_send_code=args.own_code)
    training = _Training(channel, path, run_id)
    training.process.begin(requested, path, run_id)
    return training.follow(None if args.json else RunView(), args.detach)


def attach(place: Place, line: JobLine, args: argparse.Namespace) -> int:
    """Follow a run that is at a place already, bring its file home and report. Returns as `run_there`."""
    path = _new_path(args.output, config.RunConfig(title=one_line(line.title)))
    channel = PlaceChannel(place, attached=(line.job, path))
    training = _Training(channel, path, line.job)
    if args.stop:
        channel.job.stop()
    return training.follow(None if args.json else RunView(), detach=False)


def _new_path(output: Path | None, requested: config.RunConfig) -> Path:
    path = output or new_run_path(paths.runs_dir(), requested)
    if path.exists():
        raise UserError(f"{path} exists already; choose another name")
    return path


class _Training:
    """One run at a place, supervised as one in a child process."""

    def __init__(self, channel: PlaceChannel, path: Path, run_id: str) -> None:
        self._channel, self._path, self._run_id = channel, path, run_id
        self._supervised = Supervised(channel, KILL_AFTER_S)
        self.process = TrainingProcess(self._supervised, DeathWords("the run", "the run", "it was ended there"))
        self._words = LinkWords()

    def follow(self, view: RunView | None, detach: bool) -> int:
        """Relay the run until its end, or with `detach` until it has begun. Returns the exit code."""

        def take(batch: list[Any]) -> None:
            self.process.watch(batch)
            if view is not None:
                for event in batch:
                    view.show(event)
            if detach:
                self._channel.job.detach()

        def stopped() -> bool:
            self._words.show(self._channel.job.state)
            return False

        with stop_on_signals(self._supervised.stop, interrupt), view or nullcontext():
            end = self._supervised.run(take, stopped)
        if end.not_started:
            raise UserError(end.not_started)
        if (ended := self.process.ended) is None:
            return self._without_end(detach)
        fault = "" if self._path.exists() or ended.status == "failed" else ended.message
        return tell(ended, fault, report(self._path, _precision(self._path)), view)

    def _without_end(self, detach: bool) -> int:
        place = self._channel.job.place.name
        attach = f"`precgui places attach {place} {self._run_id} -o {self._path}` brings it home"
        if detach and self._channel.job.is_detached:
            say(f"precgui: the run goes on at {place}; {attach}", file=sys.stderr)
            return 0
        say(f"precgui: {self._channel.why}; {attach}", file=sys.stderr)
        return _DETACHED


def _precision(path: Path) -> str:
    with suppress(RunFileError), open_run(path) as saved:
        return saved.config.precision
    return ""
