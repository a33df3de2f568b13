"""Scans of models that the window asks for: one after the other, each in a child process, kept among the runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Signal

from precgui.gui.answer import Answer, child
from precgui.gui.open_run import Problem
from precgui.words import _

SUFFIX = ".model.h5"


class ModelScans(QObject):
    """`kept` brings the file of a scan, also of one that was stopped; what went wrong becomes a problem."""

    changed = Signal()  # another scan, or another share of it
    kept = Signal(object)  # Path

    def __init__(self, report: Callable[[Problem], object], folder: Callable[[], Path], parent: QObject) -> None:
        super().__init__(parent)
        self._report, self._folder = report, folder
        self._waiting: deque[Path] = deque()
        self.source: Path | None = None
        self.share = 0.0
        self._fault = ""
        self._work = Answer(self, progress=self._hear, failed=self._fail, ended=self._end, title="Scanning a model")

    @property
    def is_scanning(self) -> bool:
        return self.source is not None

    def scan(self, source: Path) -> None:
        """Scan a model now or after those that wait."""
        if source != self.source and source not in self._waiting:
            self._waiting.append(source)
        self._next()

    def stop(self) -> None:
        """Stop the scan that goes on and drop those that wait; what it has found so far is kept."""
        self._waiting.clear()
        self._work.cancel()

    def _next(self) -> None:
        if self.source is not None or not self._waiting:
            return
        self.source, self.share, self._fault = self._waiting.popleft(), 0.0, ""
        try:
            self._folder().mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._end(_("{folder} cannot be made: {why}").format(folder=self._folder(), why=error.strerror))
            return
        arguments = {"path": str(self.source), "output": str(self.output())}
        self._work.ask(child("precgui.model_job:serve", arguments))
        self.changed.emit()

    def output(self) -> Path:
        """The file of the scan that goes on."""
        assert self.source is not None
        source = self.source.resolve()
        name = source.name if source.is_dir() else source.stem
        return self._folder() / f"{name}{SUFFIX}"

    def _hear(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "progress":
            self.share = event["share"]
            self.changed.emit()
        elif event["kind"] == "kept":
            if not event["whole"] and self.source is not None:
                stopped = _("The scan of {name} was stopped; scan it again, and it goes on with what is left.")
                self._report(Problem(stopped.format(name=self.source.name), severity="warning"))
            self.kept.emit(self.output())

    def _fail(self, sentence: str) -> None:
        self._fault = sentence

    def _end(self, fault: str) -> None:
        self.source = None
        if self._fault or fault:
            self._report(Problem(self._fault or fault))
        self.changed.emit()
        self._next()
