"""Answers from elsewhere: work in a thread or in a child process, answered in the thread of the window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from PySide6.QtCore import QCoreApplication, QObject, QTimer, Signal
from shiboken6 import isValid

from precgui.errors import SentenceError
from precgui.gui.going_on import going_on
from precgui.gui.workers.kept_thread import ManagedThread
from precgui.words import L_, error_text, translated

if TYPE_CHECKING:
    from precgui.gui.workers.child_work import ChildWork
    from precgui.places.placed_task import TaskPlace

PARTLY_MS = 200
NO_MEMORY = L_("There is not enough memory for this; choose a smaller tensor.")
LINK = "link"  # the kind of an event that says in `text` how the link to a place is


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
Work: TypeAlias = "ThreadWork | ChildWork"


class _Thread(ManagedThread):
    """`outcome` is what the computation returned, in a tuple of its own; None where it raised."""

    def __init__(self, compute: Computation, progress: ProgressCallback) -> None:
        super().__init__()
        self._compute: Computation | None = compute
        self._progress = progress
        self.outcome: tuple[Any] | None = None
        self.fault = ""

    def run(self) -> None:
        compute, self._compute = self._compute, None  # what it holds is freed with the work
        assert compute is not None
        try:
            self.outcome = (compute(self._progress),)
        except CancelledError:
            pass
        except MemoryError:
            self.fault = translated(NO_MEMORY)
        except (SentenceError, ValueError) as error:
            self.fault = error_text(error)


class ThreadWork(QObject):
    """One computation in a thread. `said` carries intermediate results, `ended` comes when the thread has ended."""

    said = Signal(object)
    ended = Signal(str)  # always empty: `fault` says what went wrong
    goes_on_at = ""  # it has no place

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
        """The sentence of the error that ended it, or that the memory was too small; else empty."""
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
        self.ended.emit("")
        self._thread.outcome = None


def thread(act: Callable[..., Any], *arguments: Any) -> ThreadWork:
    """The call of a function that may take long (disk, network folders), in a thread."""
    return ThreadWork(lambda _: act(*arguments))


def computation(compute: Computation) -> ThreadWork:
    """A computation in a thread that says how far it is and can be cancelled by its ProgressCallback."""
    return ThreadWork(compute)


def child(task: str, arguments: Mapping[str, Any] | None = None, there: TaskPlace | None = None) -> ChildWork:
    """A task "module:function" of precgui in a child process, the only way to torch; with `there`, at a place."""
    from precgui.gui.workers.child_work import ChildWork  # not before the first paint

    return ChildWork(task, arguments, there)


class Answer(QObject):
    """Work that a part of the window asks for. All is called in the thread of the window, nothing once `owner` is gone.

    Of a thread `answered` takes the result, `failed` the sentence of a SentenceError or ValueError and `progress` each
    intermediate result. Of a child process `progress` takes each event and `failed` the message of one of the kind
    "fault". `ended` comes last: with "", or with how the process died.
    Work asked for while other work runs runs beside it, or in its place with `latest_only`: a thread that was replaced
    or cancelled has no answer, a process that was cancelled may still send what it has. When `answered`, `ended` or the
    `failed` of a thread is called, that work is over, so that the next can be asked for. Work with a `title` is shown
    in the status bar while it goes on, with the state of the link where it is done at a place.
    """

    changed = Signal()  # busy or idle

    def __init__(
        self,
        owner: QObject,
        *,
        answered: Callable[[Any], object] | None = None,
        failed: Callable[[str], object] | None = None,
        progress: Callable[[Any], object] | None = None,
        ended: Callable[[str], object] | None = None,
        title: str = "",
    ) -> None:
        super().__init__(owner)
        self.title = title
        self._answered, self._failed, self._progress, self._ended = answered, failed, progress, ended
        self._running: list[Work] = []
        self._waiting: Work | None = None
        self.destroyed.connect(partial(_stop, self._running))

    @property
    def busy(self) -> bool:
        return bool(self._running)

    @property
    def share(self) -> float:
        """How far the running work is, 0 to 1."""
        return max((work.share for work in self._running), default=0.0)

    def ask(self, work: Work, *, latest_only: bool = False) -> None:
        """Begin a work made by `thread`, `computation` or `child`."""
        if latest_only and self._running:
            self._waiting = work
            _stop(self._running)
        else:
            self._begin(work)

    def cancel(self) -> None:
        """Cancel all work; `ended` follows within a second where it is a process."""
        self._waiting = None
        _stop(self._running)

    def forget(self) -> None:
        """Wait no longer for what runs, and leave it alone."""
        self._running.clear()

    def _begin(self, work: Work) -> None:
        self._running.append(work)
        work.said.connect(lambda event: self._on_progress(work, event) if isValid(self) else None)
        work.ended.connect(lambda death: self._end(work, death) if isValid(self) else _forget(work))
        work.start()
        if self.title:
            going_on().tell(work, self.title)
        self.changed.emit()

    def _on_progress(self, work: Work, event: Any) -> None:
        kind = event.get("kind") if isinstance(event, dict) else ""
        if self.title and work in self._running and kind in ("progress", LINK):
            going_on().tell(work, self.title, translated(event.get("text", "")))
        if kind == LINK:
            return
        if self._failed is not None and kind == "fault":
            self._failed(translated(event["message"]))
        elif self._progress is not None:
            self._progress(event)

    def _end(self, work: Work, death: str) -> None:
        work.deleteLater()  # its connections hold it, and with it the result
        if self.title:
            going_on().end(work, work.goes_on_at)
        if work not in self._running:
            return
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
        if self._ended is not None:
            self._ended(death)


def _forget(work: Work) -> None:
    """End the title of a work whose owner is gone."""
    work.deleteLater()
    if QCoreApplication.instance() is not None:
        going_on().end(work, work.goes_on_at)


def _stop(works: list[Work]) -> None:
    for work in list(works):
        if isValid(work):  # the application may be at its end
            work.stop()
