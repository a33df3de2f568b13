"""A run at a place: the thread that follows it, as it would follow a child process."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject

from precgui.events import RunEnded
from precgui.gui.workers.child_process import RunThread
from precgui.places.channel import PlaceChannel
from precgui.places.placed_job import PlacedRun
from precgui.places.settings import NamedPlace
from precgui.places.training import KILL_AFTER_S
from precgui.process.supervised import ProcessEnd, Supervised
from precgui.words import Sentence


class PlacedRunThread(RunThread):
    """`attached` is a run to go on with; without one it takes a new run by `begin_run`.

    Nothing of the window waits for the link: the thread does. It ends without the end of the run after `detach`, and
    where the place cannot be reached any more.
    """

    def __init__(self, place: NamedPlace, attached: PlacedRun | None, parent: QObject | None = None) -> None:
        self._channel = PlaceChannel(place, may_send_code=True, attached=attached)  # the user was asked before
        super().__init__(parent, Supervised(self._channel, KILL_AFTER_S))
        self.place: NamedPlace = place

    @property
    def link_state(self) -> str:  # type: ignore[override]
        return self._channel.job.state

    def detach(self) -> None:
        self._channel.job.detach()

    def on_application_end(self) -> None:
        self.detach()

    def dismiss(self) -> None:
        self.detach()

    def goes_on(self, path: Path) -> PlacedRun | None:
        if not self.let_go:
            return None
        job = self._channel.job
        return PlacedRun(self.place, job.job, path, job.number, job.row_number, job.part or 0)

    def process_ended(self, end: ProcessEnd) -> None:
        if self._training.ended is not None:
            return
        why = end.not_started or self._channel.why
        if self._channel.job.has_begun or not why:
            self.let_go = why or Sentence("the run goes on at {place}", place=self.place.name)
        else:  # it never began
            self.inbox.append([RunEnded(0.0, "failed", why)])
