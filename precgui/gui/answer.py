"""Answers from elsewhere: work in a thread for a part of the window, answered in the thread of the window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal
from shiboken6 import isValid

from precgui.gui.workers.kept_thread import KeptThread

PARTLY_MS = 200
NO_MEMORY = "There is not enough memory for this; choose a smaller tensor."


class CancelledError(Exception):
    """The result is no longer needed."""


class ProgressCallback:
    """Handed to a computation, which calls it with the share that is done (0 to 1)."""

    def __init__(self) -> None:
        self.share = 0.0
        self.partial: Any = None
        self.let_go = False

    def __call__(self, share: float) -> None:
        """Raises CancelledError once the work was cancelled."""
        self.share = share
        if self.let_go:
            raise CancelledError

    def partly(self, result: Any) -> None:
        """Show this until the work is done."""
        self.partial = result


Computation = Callable[[ProgressCallback], Any]


class _Thread(KeptThread):
    """`outcome` is what the computation returned, in a tuple of its own; None where it raised."""

    def __init__(self, compute: Computation, progress: ProgressCallback) -> None:
        super().__init__()
        self._compute, self._progress = compute, progress
        self.outcome: tuple[Any] | None = None
        self.fault = ""

    def run(self) -> None:
        try:
            self.outcome = (self._compute(self._progress),)
        except CancelledError:
            pass
        except MemoryError:
            self.fault = NO_MEMORY
        except ValueError as error:
            self.fault = str(error)


class ThreadWork(QObject):
    """One computation in a thread. `said` carries intermediate results, `ended` comes when the thread has ended."""

    said = Signal(object)
    ended = Signal()

    def __init__(self, compute: Computation) -> None:
        super().__init__()
        self._progress = ProgressCallback()
        self._thread = _Thread(compute, self._progress)
        self._thread.finished.connect(self._finish)
        self._poll = QTimer(self, interval=PARTLY_MS)
        self._poll.timeout.connect(self._say)

    @property
    def share(self) -> float:
        """How far it is, 0 to 1."""
        return self._progress.share

    @property
    def outcome(self) -> tuple[Any] | None:
        """The result in a tuple of its own; None without one, or when nobody waits for it any more."""
        return None if self._progress.let_go else self._thread.outcome

    @property
    def fault(self) -> str:
        """The sentence of the ValueError that ended it, or that the memory was too small; else empty."""
        return "" if self._progress.let_go else self._thread.fault

    def start(self) -> None:
        self._thread.launch(owner=self)
        self._poll.start()

    def stop(self) -> None:
        """Ask the computation to end; it has no outcome then."""
        self._progress.let_go = True

    def _say(self) -> None:
        if self._progress.partial is not None and not self._progress.let_go:
            result, self._progress.partial = self._progress.partial, None
            self.said.emit(result)

    def _finish(self) -> None:
        self._poll.stop()
        self.ended.emit()


def thread(act: Callable[..., Any], *arguments: Any) -> ThreadWork:
    """The call of a function that may take long (disk, network folders), in a thread."""
    return ThreadWork(lambda _: act(*arguments))


def computation(compute: Computation) -> ThreadWork:
    """A computation in a thread that says how far it is and can be cancelled by its ProgressCallback."""
    return ThreadWork(compute)


class Answer(QObject):
    """Work that a part of the window asks for. All is called in the thread of the window, nothing once `owner` is gone.

    `answered` takes the result; `failed` the sentence of a ValueError; `progress` each intermediate result. Work
    asked for while other work runs runs beside it, or in its place with `latest_only`: what was replaced or cancelled
    has no answer. When `answered` or `failed` is called, that work is over, so that the next can be asked for.
    """

    changed = Signal()  # busy or idle

    def __init__(
        self,
        owner: QObject,
        *,
        answered: Callable[[Any], object] | None = None,
        failed: Callable[[str], object] | None = None,
        progress: Callable[[Any], object] | None = None,
    ) -> None:
        super().__init__(owner)
        self._answered, self._failed, self._progress = answered, failed, progress
        self._running: list[ThreadWork] = []
        self._waiting: ThreadWork | None = None

    @property
    def busy(self) -> bool:
        return bool(self._running)

    @property
    def share(self) -> float:
        """How far the running work is, 0 to 1."""
        return max((work.share for work in self._running), default=0.0)

    def ask(self, work: ThreadWork, *, latest_only: bool = False) -> None:
        """Begin a work made by `thread` or `computation`."""
        if latest_only and self._running:
            self._waiting = work
            self._stop()
        else:
            self._begin(work)

    def cancel(self) -> None:
        """Cancel all work; no answer follows."""
        self._waiting = None
        self._stop()

    def _stop(self) -> None:
        for work in self._running:
            work.stop()

    def _begin(self, work: ThreadWork) -> None:
        self._running.append(work)
        work.said.connect(self._on_progress)
        work.ended.connect(lambda: self._end(work) if isValid(self) else None)
        work.start()
        self.changed.emit()

    def _on_progress(self, result: object) -> None:
        if self._progress is not None:
            self._progress(result)

    def _end(self, work: ThreadWork) -> None:
        self._running.remove(work)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._begin(waiting)
        else:
            self.changed.emit()
        if work.fault:
            if self._failed is None:
                raise RuntimeError(work.fault)
            self._failed(work.fault)
        elif work.outcome is not None and self._answered is not None:
            self._answered(*work.outcome)
