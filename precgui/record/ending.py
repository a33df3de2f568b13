"""The end of a recording: closed, at exit of Python, or deleted; only in the process that began it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback

from precgui.events import Event, RunEnded, Status
from precgui.runs.file.writer import RunWriter


class Outlet:
    """Passes events to the writer, which only the first of several processes has.

    Hooks and sensors refer to the outlet, not to their recorder, so that a recorder without references is collected.
    """

    def __init__(self) -> None:
        self.writer: RunWriter | None = None

    def __call__(self, event: Event) -> None:
        if self.writer is not None:
            self.writer(event)


class OpenRecord:
    """The open resources of a recorded loop: the file, and in `parts` the hooks and the sensors."""

    def __init__(self, outlet: Outlet, parts: contextlib.ExitStack, begin: float) -> None:
        """`begin` is the value of `time.perf_counter()`, in seconds, at which the time of the run is 0."""
        self._outlet, self._parts, self._begin = outlet, parts, begin
        self._process, self._ended = os.getpid(), False

    @property
    def is_open(self) -> bool:
        """Whether events may be recorded: not after the end, nor in a forked child, since the file is the parent's."""
        return not self._ended and self._process == os.getpid()

    def now_s(self) -> float:
        return time.perf_counter() - self._begin

    def end(self, status: Status, message: str = "", details: str = "") -> None:
        if not self.is_open:
            return
        self._ended = True
        self._parts.close()  # the sensors give a last reading
        self._outlet(RunEnded(self.now_s(), status, message, details))
        if self._outlet.writer is not None:
            self._outlet.writer.close()


def uncaught() -> BaseException | None:
    """The exception that ends this script; None in an interactive session, which goes on after an exception."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # until Python 3.11
    return error if isinstance(error, BaseException) and not hasattr(sys, "ps1") else None


def outcome_of(error: BaseException, step: int) -> tuple[Status, str, str]:
    """Status, message and details of a run that an exception ended in this step; an intended end is not a failure."""
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and not error.code):
        word = "left" if isinstance(error, SystemExit) else "interrupted"
        return "stopped", f"{word} inside step {step}", ""
    what, why = f"{type(error).__name__} at step {step}", str(error).strip().partition("\n")[0]
    return "failed", f"{what}: {why}" if why else what, "".join(traceback.format_exception(error))
