"""Work that would block the window: only the latest request is computed, in a thread; older ones are cancelled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtWidgets import QProgressBar, QWidget

from precgui.gui.workers.background import Background

APPEAR_DELAY_MS = 150
POLL_MS = 60
PARTLY_MS = 200


class CancelledError(Exception):
    """The result is no longer needed."""


class ProgressCallback:
    """Handed to the work, which calls it with the share that is done (0 to 1)."""

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


Work = Callable[[ProgressCallback], Any]


@dataclass(frozen=True)
class _Outcome:
    progress: ProgressCallback
    result: Any = None
    fault: str = ""


def _attempt(work: Work, progress: ProgressCallback) -> _Outcome:
    try:
        return _Outcome(progress, work(progress))
    except CancelledError:
        return _Outcome(progress)
    except MemoryError:
        return _Outcome(progress, fault="There is not enough memory for this; choose a smaller tensor.")
    except ValueError as error:
        return _Outcome(progress, fault=str(error))


class LatestOnly(QObject):
    """One thread at a time. `answered` carries the result of the newest work, `failed` the sentence of its ValueError.

    Neither comes for work that was replaced before it had ended. `partly` carries intermediate results.
    """

    changed = Signal()  # busy or idle
    answered = Signal(object)
    partly = Signal(object)
    failed = Signal(str)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._running: ProgressCallback | None = None
        self._waiting: Work | None = None
        self._poll = QTimer(self, interval=PARTLY_MS)
        self._poll.timeout.connect(self._show_partly)

    @property
    def busy(self) -> bool:
        return self._running is not None

    @property
    def share(self) -> float:
        """How far the running work is, 0 to 1."""
        return self._running.share if self._running else 0.0

    def ask(self, work: Work) -> None:
        """Compute this instead of whatever was asked for before."""
        self._waiting = work
        if self._running is None:
            self._begin()
        else:
            self._running.let_go = True

    def cancel(self) -> None:
        """Cancel the work; no answer follows."""
        self._waiting = None
        if self._running is not None:
            self._running.let_go = True

    def _begin(self) -> None:
        work, self._waiting = self._waiting, None
        assert work is not None
        progress = self._running = ProgressCallback()
        thread = Background(lambda: _attempt(work, progress))
        thread.answered.connect(self._take)
        thread.finished.connect(self._end)
        thread.launch()
        self._poll.start()
        self.changed.emit()

    def _show_partly(self) -> None:
        progress = self._running
        if progress is not None and progress.partial is not None and not progress.let_go:
            displayed, progress.partial = progress.partial, None
            self.partly.emit(displayed)

    def _take(self, outcome: _Outcome) -> None:
        if outcome.progress.let_go:
            return
        if outcome.fault:
            self.failed.emit(outcome.fault)
        else:
            self.answered.emit(outcome.result)

    def _end(self) -> None:
        self._running = None
        self._poll.stop()
        if self._waiting is not None:
            self._begin()
        else:
            self.changed.emit()


class Busy(QProgressBar):
    """A thin progress bar that appears when a work takes longer than APPEAR_DELAY_MS."""

    def __init__(self, *works: LatestOnly, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._works = works
        self.setRange(0, 1000)
        self.setTextVisible(False)
        self.setFixedHeight(6)
        self.setAccessibleName("Computing")
        policy = self.sizePolicy()
        policy.setRetainSizeWhenHidden(True)
        self.setSizePolicy(policy)
        self.hide()
        self._appear = QTimer(self, singleShot=True, interval=APPEAR_DELAY_MS)
        self._appear.timeout.connect(self.show)
        self._poll = QTimer(self, interval=POLL_MS)
        self._poll.timeout.connect(self._show_share)
        for work in works:
            work.changed.connect(self._follow)

    def _follow(self) -> None:
        if any(work.busy for work in self._works):
            if not self._poll.isActive():
                self.setValue(0)
                self._poll.start()
                self._appear.start()
        else:
            self._appear.stop()
            self._poll.stop()
            self.hide()

    def _show_share(self) -> None:
        self.setValue(round(1000 * max(work.share for work in self._works)))
