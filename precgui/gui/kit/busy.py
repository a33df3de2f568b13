"""A thin bar that shows how far a work is that takes a while."""

from __future__ import annotations

from typing import Any, Protocol

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QProgressBar, QWidget

from precgui.words import _

APPEAR_DELAY_MS = 150
POLL_MS = 60


class Asked(Protocol):
    """Work that goes on elsewhere; `changed` is a signal that comes when it becomes busy or idle."""

    changed: Any

    @property
    def busy(self) -> bool: ...

    @property
    def share(self) -> float:
        """How far it is, 0 to 1."""
        ...


class Busy(QProgressBar):
    """A thin progress bar that appears when a work takes longer than APPEAR_DELAY_MS."""

    def __init__(self, *works: Asked, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._works = works
        self.setRange(0, 1000)
        self.setTextVisible(False)
        self.setFixedHeight(6)
        self.setAccessibleName(_("Computing"))
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
