"""The diagnosis of a run in a thread, which reads what the run was when it was asked for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from precgui.gui.theme import severity_colour, themes
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import SavedRun, open_run
from precgui.runs.live import LiveRun
from precgui.runs.run import Run
from precgui.words import L_, translated

if TYPE_CHECKING:
    from precgui.runs.diagnosis import Diagnosis

VERDICTS = {"healthy": L_("Healthy"), "cannot be told": L_("Cannot be told"), "problems": L_("Problems")}
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


def short_verdict(diagnosis: Diagnosis) -> str:
    """The diagnosis for a narrow cell: healthy, or the title of the gravest problem."""
    if diagnosis.problems:
        return translated(diagnosis.problems[0].title)
    return translated(VERDICTS.get(diagnosis.verdict, diagnosis.verdict))


def verdict_colour(diagnosis: Diagnosis | None) -> str:
    """The colour of a verdict; muted while there is none."""
    theme = themes().theme
    if diagnosis is None or diagnosis.verdict == "cannot be told":
        return theme.muted
    return theme.ok if diagnosis.verdict == "healthy" else severity_colour(diagnosis.problems[0].severity)


def has_error(diagnosis: Diagnosis) -> bool:
    """Whether the gravest problem is an error."""
    return bool(diagnosis.problems) and diagnosis.problems[0].severity == "error"


def urgency(diagnosis: Diagnosis | None) -> int:
    """0 for a run with an error, 1 for one with warnings, 2 for the others."""
    if diagnosis is None or not diagnosis.problems:
        return 2
    return int(not has_error(diagnosis))


def examined(run: Run) -> Diagnosis:
    """The diagnosis of a run by all rules."""
    from precgui.runs.diagnosis import examine  # not before a run is judged

    return examine(run)
