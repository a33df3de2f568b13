"""Work for a widget that is hidden waits until the widget is visible again."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QObject
from PySide6.QtWidgets import QWidget


def is_covered(part: QWidget) -> bool:
    """Whether a widget is hidden in a window that is on the screen, as the panels are that were not chosen."""
    return not part.isVisible() and part.window().isVisible()


class WhenVisible(QObject):
    """Calls `work` at each request; requests that come while `part` is covered become one call at its next show."""

    def __init__(self, part: QWidget, work: Callable[[], object]) -> None:
        super().__init__(part)
        self._part, self._work = part, work
        self.is_due = False
        part.installEventFilter(self)

    def request(self) -> None:
        """Do the work now, or when the widget is shown."""
        if is_covered(self._part):
            self.is_due = True
        else:
            self.is_due = False
            self._work()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if self.is_due and event.type() == QEvent.Type.Show:
            self.is_due = False
            self._work()
        return False
