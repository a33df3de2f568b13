"""A view that asks the engine about the run that is set up and answers in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtWidgets import QWidget

from precgui.config import RunConfig, is_own_task
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.workers.engine_task import TaskSlot


class EngineAnswer(QWidget):
    """One task of the engine at a time, in a child process; faults become the answer.

    Subclasses define `receive`. The user's own code is not run for a plan: `own_code` says what to call instead.
    """

    own_code = ""

    def __init__(self, config: RunConfig, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._config = config
        self._slot = TaskSlot(self)
        self._slot.said.connect(self.take)
        self._slot.ended.connect(self.task_ended)
        self.answer = PlainLabel(self)
        self.answer.setWordWrap(True)

    @property
    def is_allowed(self) -> bool:
        """Whether the engine may be asked; otherwise the answer says why not."""
        if is_own_task(self._config.task):
            self.answer.setText(self.own_code)
            return False
        return True

    def start_task(self, task: str, waiting: str, arguments: Mapping[str, Any] | None = None) -> None:
        """Ask "module:function" about the config; `waiting` is the answer until the first event comes."""
        self.answer.setText(waiting)
        self._slot.start(task, {"config": self._config.model_dump(), **(arguments or {})})

    def stop(self) -> None:
        """End the task, if one is going on."""
        self._slot.stop()

    def take(self, event: dict[str, Any]) -> None:
        """Show an event of the task, or the sentence of what is wrong."""
        if event["kind"] == "fault":
            self.answer.setText(str(event["message"]))
        else:
            self.receive(event)

    def receive(self, event: dict[str, Any]) -> None:
        """Show an event that is no fault."""
        raise NotImplementedError

    def task_ended(self, fault: str) -> None:
        """Say how the task failed; "" if it did not."""
        if fault:
            self.answer.setText(fault)
