"""The diagnosis of runs in a thread, one run at a time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from precgui.gui.workers.background import Background
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import SavedRun, open_run
from precgui.runs.live import LiveRun
from precgui.runs.run import Run

if TYPE_CHECKING:
    from precgui.runs.diagnosis import Diagnosis

Reader = Callable[[], AbstractContextManager[Run]]


@dataclass(frozen=True)
class _Answer:
    """`diagnosis` is None where the file could not be opened once more."""

    diagnosis: Diagnosis | None
    taken_s: float


class Diagnoser(QObject):
    """Judges one run at a time; `judged` carries its key, its Diagnosis and the seconds of clock that it took.

    The thread reads a copy of a live run, or opens the file of a saved one for itself, so that the run may go on, be
    closed or be removed meanwhile.
    """

    judged = Signal(str, object, float)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._judging: tuple[str, Run] | None = None
        self._answer: _Answer | None = None

    @property
    def busy(self) -> bool:
        return self._judging is not None

    def judge(self, key: str, run: Run) -> None:
        """Begin with a run. Raises RuntimeError while another one is judged."""
        if self._judging is not None:
            raise RuntimeError(f"The run {self._judging[0]} is still being judged.")
        self._judging, self._answer = (key, run), None
        thread = Background(partial(_judged, reader_of(run)))
        thread.answered.connect(self._take)
        thread.finished.connect(self._end)
        thread.launch()

    def _take(self, answer: _Answer) -> None:
        self._answer = answer

    def _end(self) -> None:
        """Emit the answer. Not before the thread has ended: `finished` would then end the judging of the next run."""
        judging, answer, self._judging = self._judging, self._answer, None
        if judging is None or answer is None:
            return
        key, run = judging
        result = answer.diagnosis or _examined(run)  # a file that has been moved is still open here
        self.judged.emit(key, result, answer.taken_s)


def reader_of(run: Run) -> Reader:
    """Open the run as it is now, for use in another thread."""
    if isinstance(run, LiveRun) and not run.is_in_file:
        copied = run.snapshot()
        return lambda: contextlib.nullcontext(copied)
    if isinstance(run, LiveRun | SavedRun) and run.path is not None:
        return partial(open_run, run.path)
    return lambda: contextlib.nullcontext(run)


def _judged(reader: Reader) -> _Answer:
    begin = time.perf_counter()
    try:
        with reader() as run:
            result = _examined(run)
    except RunFileError:
        return _Answer(None, 0.0)
    return _Answer(result, time.perf_counter() - begin)


def _examined(run: Run) -> Diagnosis:
    from precgui.runs.diagnosis import examine  # not before a run is judged

    return examine(run)
