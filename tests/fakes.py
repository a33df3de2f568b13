"""Stand-ins that several tests share: the work of a child process, without the process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from precgui.config import RunConfig
from precgui.gui.assigned_formats import AssignedFormats
from precgui.gui.session import Session
from precgui.gui.training_queue import TrainingQueue
from precgui.gui.workers.child_work import ChildWork
from precgui.places.placed_task import TaskPlace
from precgui.places.settings import NamedPlace


class FakeChild(ChildWork):
    """A task whose process is never started: the test emits what it would say, and its end.

    `begun` holds those that were started since the fixture `children` was made, the newest last.
    """

    begun: ClassVar[list[FakeChild]] = []

    def __init__(self, task: str, arguments: Mapping[str, Any] | None = None, there: TaskPlace | None = None) -> None:
        super().__init__(task, arguments)
        self.task, self.arguments, self.there = task, dict(arguments or {}), there
        self.is_stopped = False

    def start(self) -> None:
        self.begun.append(self)

    def stop(self) -> None:
        """It ends at once."""
        self.is_stopped = True
        self.ended.emit("")


class Orders(Session):
    """A session that keeps the runs that it is to start in `ordered` and trains nothing; it says `is_training`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_training: bool = False) -> None:
        super().__init__()
        self.ordered: list[RunConfig] = []
        self.is_training = is_training
        monkeypatch.setattr(TrainingQueue, "is_training", property(lambda _: self.is_training))
        self.wheres: list[NamedPlace | None] = []
        monkeypatch.setattr(self.training, "start", self._order)

    def _order(self, config: RunConfig, place: NamedPlace | None = None) -> None:
        self.ordered.append(config)
        self.wheres.append(place)


def formats_of_layers(session: Session) -> AssignedFormats:
    """What a search for formats of layers keeps, as the panel of a session makes it."""
    busy, folder = lambda: session.is_busy, lambda: session.folder
    return AssignedFormats(session.study, busy, session.notice.emit, folder, session)
