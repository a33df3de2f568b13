"""Engine work other than runs (facts of torch, measured rates): one child process per task, its events as signals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, QTimer, Signal

from precgui.gui.workers.child_process import WORDS, ChildThread
from precgui.process.supervised import ProcessEnd, Supervised
from precgui.words import translated

if TYPE_CHECKING:
    from precgui.places.placed_task import TaskChannel, TaskPlace

DRAIN_MS = 50


class _Child(ChildThread):
    """A process that ends with the application. `fault` says why it ended badly, '' otherwise."""

    fault = ""
    goes_on_at = ""

    def on_application_end(self) -> None:
        self.stop()

    def process_ended(self, end: ProcessEnd) -> None:
        if not end.is_clean:
            self.fault = "\n".join([translated(end.in_words(WORDS)), *end.last_words.splitlines()[-1:]])


class _PlacedChild(_Child):
    """A task that is worked on at a place."""

    def __init__(self, channel: TaskChannel, place_name: str, grace_s: float, parent: QObject) -> None:
        super().__init__(parent, Supervised(channel, grace_s))
        self._channel, self._place_name = channel, place_name

    def process_ended(self, end: ProcessEnd) -> None:
        self.fault = translated(end.not_started or self._channel.why)

    @property
    def goes_on_at(self) -> str:  # type: ignore[override]
        return self._place_name if self._channel.goes_on else ""


def _placed_child(there: TaskPlace, parent: QObject) -> _PlacedChild:
    from precgui.places.placed_task import KILL_AFTER_S, TaskChannel  # not before it is wanted

    return _PlacedChild(TaskChannel(there), there.place.name, KILL_AFTER_S, parent)


class ChildWork(QObject):
    """One task "module:function" of precgui in a child process, or at a place, where its events come from in the same
    way; needs no reference until the process has ended.

    `said` carries each event in order; `ended` comes last, with "" or with the fault.
    """

    said = Signal(object)
    ended = Signal(str)
    share = 0.0  # it says by its events how far it is
    outcome: tuple[Any] | None = None  # it answers by its events, too
    fault = ""

    def __init__(self, task: str, arguments: Mapping[str, Any] | None = None, there: TaskPlace | None = None) -> None:
        super().__init__()
        self._task, self._arguments = task, dict(arguments or {})
        self._child = _placed_child(there, self) if there is not None else _Child(self)
        self._child.finished.connect(self._finish)
        self._timer = QTimer(self, interval=DRAIN_MS)
        self._timer.timeout.connect(self._drain)

    @property
    def goes_on_at(self) -> str:
        """The name of the place where it goes on after a stop, since the link was lost; else empty."""
        return self._child.goes_on_at

    def start(self) -> None:
        self._child.launch(owner=self)
        self._child.begin_task(self._task, self._arguments)
        self._timer.start()

    def stop(self) -> None:
        """Ask the task to end; `ended` follows within a second, within ten from a place."""
        self._child.stop()

    def _drain(self) -> None:
        while self._child.inbox:
            for event in self._child.inbox.popleft():
                self.said.emit(event)

    def _finish(self) -> None:
        self._timer.stop()
        self._drain()
        self.ended.emit("" if self._child.stopping else self._child.fault)
