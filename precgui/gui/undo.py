"""The last things that can be undone, each with its words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal

MOST = 20


@dataclass(frozen=True, eq=False)
class Undoable:
    """`done` says in a sentence what was done, `act` takes it back."""

    done: str
    act: Callable[[], object]


class Undo(QObject):
    """`offered` comes with each new one, `changed` when there is another last one."""

    offered = Signal(object)
    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._done: list[Undoable] = []

    @property
    def last(self) -> Undoable | None:
        return self._done[-1] if self._done else None

    def offer(self, done: str, act: Callable[[], object]) -> None:
        """Offer to take something back that was done just now."""
        self._done = [*self._done, Undoable(done, act)][-MOST:]
        self.changed.emit()
        self.offered.emit(self._done[-1])

    def is_open(self, each: Undoable) -> bool:
        """Whether it can still be taken back."""
        return each in self._done

    def undo(self, each: Undoable | None = None) -> None:
        """Take the last one back, or this one."""
        each = each or self.last
        if each is not None and each in self._done:
            self._done.remove(each)
            each.act()
            self.changed.emit()
