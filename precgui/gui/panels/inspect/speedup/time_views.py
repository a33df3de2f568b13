"""Time: the account of one step, and the ranks of a run on several processes."""

from __future__ import annotations

from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from precgui.gui.kit.pages import PageStack
from precgui.gui.kit.segmented import SegmentedChoice
from precgui.gui.panels.inspect.speedup.ranks_view import RanksView
from precgui.gui.panels.inspect.speedup.time_tab import TimeTab
from precgui.gui.session import Session
from precgui.words import L_, _

_STEP, _RANKS = L_("One step"), L_("Several ranks")


class TimeViews(QWidget):
    """Two views of the same run."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.choice = SegmentedChoice((_STEP, _RANKS), _("View of the time"), self)
        self.step, self.ranks = TimeTab(session, self), RanksView(session, self)
        self._stack = PageStack(self)
        for view in (self.step, self.ranks):
            self._stack.addWidget(view)
        head = QHBoxLayout()
        head.addWidget(self.choice)
        head.addStretch(1)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 8, 0, 0)
        column.setSpacing(0)
        column.addLayout(head)
        column.addWidget(self._stack, 1)
        self.choice.chosen.connect(self._choose)

    def show_run(self, key: str | None) -> None:
        self.step.show_run(key)
        self.ranks.show_run(key)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.ranks.refresh()

    def _choose(self, name: str) -> None:
        self._stack.setCurrentWidget(self.ranks if name == _RANKS else self.step)
        self.ranks.refresh()
