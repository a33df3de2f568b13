"""The diagnosis of a run in a thread, which reads what the run was when it was asked for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import SavedRun, open_run
from precgui.runs.live import LiveRun
from precgui.runs.run import Run

if TYPE_CHECKING:
    from precgui.runs.diagnosis.findings import Diagnosis

Reader = Callable[[], AbstractContextManager[Run]]


@dataclass(frozen=True)
class JudgedRun:
    """A run with its diagnosis and the seconds of clock that it took; None where its file could not be opened again."""

    key: str
    run: Run
    result: Diagnosis | None
    taken_s: float

    @property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis; of a file that has been moved since, and is still open here, made now."""
        return self.result or examined(self.run)


def judgement(key: str, run: Run) -> Callable[[], JudgedRun]:
    """A function to be called in a thread, which judges a run as it is now.

    It reads a copy of a live run, or opens the file of a saved one for itself, so that the run may go on, be closed or
    be removed meanwhile.
    """
    return partial(_judged, key, run, reader_of(run))


def reader_of(run: Run) -> Reader:
    """Open the run as it is now, for use in another thread."""
    if isinstance(run, LiveRun) and not run.is_in_file:
        copied = run.snapshot()
        return lambda: contextlib.nullcontext(copied)
    if isinstance(run, LiveRun | SavedRun) and run.path is not None:
        return partial(open_run, run.path)
    return lambda: contextlib.nullcontext(run)


def _judged(key: str, run: Run, reader: Reader) -> JudgedRun:
    begin = time.perf_counter()
    try:
        with reader() as copied:
            result = examined(copied)
    except RunFileError:
        return JudgedRun(key, run, None, 0.0)
    return JudgedRun(key, run, result, time.perf_counter() - begin)


def examined(run: Run) -> Diagnosis:
    """The diagnosis of a run by all rules."""
    from precgui.runs.diagnosis import examine  # not before a run is judged

    return examine(run)
