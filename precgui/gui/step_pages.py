"""A view of the side files that replays of steps have left beside a run: one is chosen and shown, others are made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QComboBox, QWidget

from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.empty_state import EmptyState, Pages
from precgui.gui.replay_bar import ReplayBar
from precgui.gui.session import Session


class _OfStep(Protocol):
    @property
    def step(self) -> int: ...


S = TypeVar("S", bound=_OfStep)


class StepPages(Pages, Generic[S]):
    """Reads the side files again whenever it is shown; `step_choice` chooses one, which `show_step` then shows.

    `bar`, above all pages, makes another. Subclasses define `read` and `show_step`.
    """

    def __init__(
        self, session: Session, empty: EmptyState, name: str, bar: ReplayBar, parent: QWidget | None = None
    ) -> None:
        super().__init__(empty, parent)
        self._session = session
        self._key: str | None = None
        self._steps: list[S] = []
        self.step_choice = QComboBox(self)
        self.step_choice.setAccessibleName(name)
        ignore_wheel(self.step_choice)
        self.bar = bar
        self.head.addWidget(bar)
        bar.kept.connect(self._take_new)
        session.runs.changed.connect(self._follow_run)
        self.step_choice.currentIndexChanged.connect(lambda _: self.show_step())

    def read(self, path: Path) -> Sequence[S]:
        """The contents of the side files of the run at `path`, by step."""
        raise NotImplementedError

    def label(self, step: S) -> str:
        """The text of a step in the choice."""
        return str(step.step)

    def show_step(self) -> None:
        """Show the chosen step, or nothing."""
        raise NotImplementedError

    @property
    def chosen(self) -> S | None:
        """The step that is chosen; None without side files."""
        index = self.step_choice.currentIndex()
        return self._steps[index] if 0 <= index < len(self._steps) else None

    def show_run(self, key: str | None) -> None:
        """Show the steps of the run of that key."""
        self._key = key
        self.refresh()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def refresh(self) -> None:
        """Read the side files of the run again; the chosen step stays if it is still there."""
        opened = self._session.runs.get(self._key or "")
        self.bar.show_run(opened.run if opened is not None else None)
        self.empty.text.setHidden(self.bar.is_own_loop)  # it speaks of the controls above
        path = opened.run.path if opened is not None else None
        steps = list(self.read(path)) if path is not None else []
        if steps == self._steps:
            return
        before = self.step_choice.currentData()
        self._steps = steps
        self.step_choice.blockSignals(True)
        self.step_choice.clear()
        for step in steps:
            self.step_choice.addItem(self.label(step), step.step)
        self.step_choice.setCurrentIndex(max(0, self.step_choice.findData(before)) if steps else -1)
        self.step_choice.blockSignals(False)
        self.show_content(bool(steps))
        self.show_step()

    def _take_new(self) -> None:
        """Show the step that was made now."""
        self.refresh()
        self.step_choice.setCurrentIndex(self.step_choice.findData(self.bar.step.value()))

    def _follow_run(self, key: str) -> None:
        """A run that has ended can be replayed from then on."""
        if key == self._key and self.isVisible():
            self.refresh()
