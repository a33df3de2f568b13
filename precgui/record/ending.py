"""The end of a recording: closed, at exit of Python, or deleted; only in the process that began it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback

from precgui.engine.telemetry.guard import LoopGuard, guarded
from precgui.events import Event, Incident, RunEnded, Status, StepDone
from precgui.runs.file.writer import RunWriter
from precgui.sentences import L_, Sentence, filled


class EventSink:
    """Passes events to the writer, which only the first of several processes has.

    Hooks and sensors refer to the outlet, not to their recorder, so that a recorder without references is collected.
    """

    def __init__(self, guard: LoopGuard, begin: float) -> None:
        """`begin` is the value of `time.perf_counter()`, in seconds, at which the time of the run is 0."""
        self.guard, self._begin, self._step = guard, begin, 0
        self.writer: RunWriter | None = None
        guard.on_fault = self.break_off

    @guarded
    def __call__(self, event: Event) -> None:
        if isinstance(event, StepDone):
            self._step = event.step
        if self.writer is not None:
            self.writer(event)

    def now_s(self) -> float:
        return time.perf_counter() - self._begin

    def break_off(self, reason: str) -> None:
        """End the file because of a fault of the recording, with a sentence that says so, as far as it can be written.

        The file of a forked process is its parent's.
        """
        writer, now_s, values = self.writer, self.now_s(), {"step": self._step, "reason": reason}
        if writer is None:
            return
        text = Sentence(
            "Recording stopped after step {step}: {reason}; the training went on without a record.", **values
        )
        incident = Incident(now_s, self._step, "recording_stopped", "error", text)
        end = Sentence("Recording stopped after step {step}: {reason}.", **values)
        for event in (incident, RunEnded(now_s, "stopped", end)):
            with contextlib.suppress(Exception):  # the writer may be what has failed; the other event is worth a try
                writer(event)
        with contextlib.suppress(Exception):  # as above: what is on the disk stays, and is mended when it is opened
            writer.close()


class OpenRecord:
    """The open resources of a recorded loop: the file, and in `parts` the hooks and the sensors."""

    def __init__(self, outlet: EventSink, parts: contextlib.ExitStack) -> None:
        self._outlet, self._parts = outlet, parts
        self._process, self._ended = os.getpid(), False

    @property
    def is_open(self) -> bool:
        """Whether events may be recorded: not after the end or a fault, nor in a forked child, which has no file."""
        return not (self._ended or self._outlet.guard.is_shut) and self._process == os.getpid()

    def now_s(self) -> float:
        """Seconds since the run began."""
        return self._outlet.now_s()

    def release(self) -> None:
        """Take the hooks from the model and stop the sensors after a fault; not to be called inside a hook."""
        with contextlib.suppress(Exception):  # of a recorder that has failed: its hooks do nothing, removed or not
            self._parts.close()

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
        left = isinstance(error, SystemExit)
        text = L_("left inside step {step}") if left else L_("interrupted inside step {step}")
        return "stopped", filled(text, step=step), ""
    values, why = {"error": type(error).__name__, "step": step}, str(error).strip().partition("\n")[0]
    if why:
        message = Sentence("{error} at step {step}: {reason}", reason=why, **values)
    else:
        message = Sentence("{error} at step {step}", **values)
    return "failed", message, "".join(traceback.format_exception(error))
