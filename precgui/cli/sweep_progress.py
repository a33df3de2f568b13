"""The progress of a sweep on the terminal, and Ctrl-C: the present run ends first, a second one stops it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from precgui.cli.console import HarmlessConsole
from precgui.events import RunStarted, StepDone
from precgui.sweeps.events import MemberBegan, MemberEnded, MemberEvent, SweepEvent, SweepWaits
from precgui.sweeps.runner import SweepBusy, run_sweep
from precgui.words import _, error_text, translated

if TYPE_CHECKING:
    from precgui.sweeps.folder import SweepFolder

_POLL_S = 2.0


class SweepProgress:
    """A bar for the sweep and one for the present run, on stderr; nothing when quiet."""

    def __init__(self, folder: SweepFolder, *, quiet: bool) -> None:
        console = HarmlessConsole(stderr=True, quiet=quiet)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._console = console
        self._progress = Progress(*columns, console=console, transient=True, disable=quiet)
        states = folder.states()
        self._sweep = self._progress.add_task(_("sweep"), total=len(states))
        self._done = sum(state.status in ("completed", "failed", "skipped", "given up") for state in states)
        self._progress.update(self._sweep, completed=self._done)
        self._run = self._progress.add_task("", total=None, visible=False)

    def __enter__(self) -> SweepProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: SweepEvent) -> None:
        match event:
            case MemberBegan(name=name):
                self._progress.reset(self._run, total=None, description=escape(name), visible=True)
            case MemberEvent(event=RunStarted(total_steps=total)):
                self._progress.update(self._run, total=total)
            case MemberEvent(event=StepDone(step=step)):
                self._progress.update(self._run, completed=step)
            case MemberEnded():
                self._done += 1
                self._progress.update(self._sweep, completed=self._done)
                self._end(event)
            case SweepWaits(why=why):
                self.say(why)
            case _:
                pass

    def say(self, sentence: str) -> None:
        self._console.print(f"[dim]{escape(translated(sentence))}[/]", highlight=False)

    def _end(self, ended: MemberEnded) -> None:

        colour = {"completed": "dim", "failed": "red"}.get(ended.status, "yellow")
        text = _("{name}: {status} after {seconds:.0f} s")
        if ended.message:
            text = _("{name}: {status} after {seconds:.0f} s: {message}")
        status, message = translated(ended.status), translated(ended.message)
        text = text.format(name=ended.name, status=status, seconds=ended.wall_s, message=message)
        self._console.print(f"[{colour}]{escape(text)}[/]", highlight=False)


def run_or_watch(folder: SweepFolder, progress: SweepProgress, *, take_over: bool = False) -> bool:
    """Run what is left; while another process does so, wait, then go on. Returns whether it was stopped.

    `take_over`: ask it to leave the runs after its present one to this process.
    """
    stop, abort = threading.Event(), threading.Event()
    with two_signals(stop, abort, progress):
        reported = False
        while not stop.is_set():
            try:
                run_sweep(folder, progress.show, stop.is_set, abort.is_set, take_over=take_over)
                break
            except SweepBusy as busy:
                take_over = False  # another one has asked; from now on wait
                if not reported:
                    progress.say(_("{busy}; waiting for it, and going on where it stops").format(busy=error_text(busy)))
                    reported = True
                _sleep(stop)
    return stop.is_set()


def _sleep(stop: threading.Event) -> None:
    deadline = time.monotonic() + _POLL_S
    while time.monotonic() < deadline and not stop.wait(0.1):
        pass


@contextmanager
def two_signals(stop: threading.Event, abort: threading.Event, progress: SweepProgress) -> Iterator[None]:
    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            abort.set()
            return
        stop.set()
        progress.say(_("the present run ends first; once more to stop it now: it then runs again next time"))

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
