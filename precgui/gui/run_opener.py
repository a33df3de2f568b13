"""Opens run files one after the other, so that the window stays quick however many were chosen at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PySide6.QtCore import QObject, QTimer

from precgui.gui.open_run import Problem
from precgui.runs.errors import RunFileError
from precgui.words import _, error_text


@dataclass
class _Batch:
    """Files that were chosen together."""

    left: deque[Path]
    then: Callable[[str], object] | None  # until a file could be opened
    total: int
    faults: list[str] = field(default_factory=list)


class RunOpener(QObject):
    """Opens files, the first at once and each other in a turn of the event loop.

    `open_run` opens one file and returns the key of its run, or raises RunFileError; files that cannot be read become
    one problem, reported after the last file.
    """

    def __init__(self, open_run: Callable[[Path], str], report: Callable[[Problem], object], parent: QObject) -> None:
        super().__init__(parent)
        self._open_run, self._report_problem = open_run, report
        self._batches: list[_Batch] = []
        self._turns = QTimer(self, interval=0)
        self._turns.timeout.connect(lambda: self._open_one(self._batches[0]))

    def open(self, paths: Sequence[Path], then: Callable[[str], object]) -> None:
        """Open these files, also while others wait; `then` takes the key of the first that could be opened."""
        if paths:
            batch = _Batch(deque(paths), then, len(paths))
            self._batches.append(batch)
            self._turns.start()
            self._open_one(batch)

    @property
    def is_busy(self) -> bool:
        """Whether more files wait to be opened."""
        return bool(self._batches)

    def _open_one(self, batch: _Batch) -> None:
        path = batch.left.popleft()
        if not batch.left:
            self._batches.remove(batch)
        if not self._batches:
            self._turns.stop()
        try:
            key = self._open_run(path)
        except RunFileError as error:
            batch.faults.append(error_text(error))
        else:
            then, batch.then = batch.then, None
            if then is not None:
                then(key)
        if not batch.left:
            self._report(batch)

    def _report(self, batch: _Batch) -> None:
        """Name the files that could not be read."""
        faults = batch.faults
        if len(faults) == 1:
            self._report_problem(Problem(faults[0]))
        elif faults:
            text = _("{count} of {total} files could not be opened. The details name each of them.")
            text = text.format(count=len(faults), total=batch.total)
            self._report_problem(Problem(text, "\n".join(faults)))
