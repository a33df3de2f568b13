"""A tab of Inspect that shows one run, and follows it while it goes on."""

from __future__ import annotations

from PySide6.QtCore import QTimer
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QWidget

from precgui.gui.session import Session


class RunTab(QWidget):
    """Calls `refresh` when the tab is shown, when its run has changed, and after new data once in `refresh_ms`."""

    def __init__(self, session: Session, refresh_ms: int, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._key: str | None = None
        self._timer = QTimer(self, singleShot=True, interval=refresh_ms)
        self._timer.timeout.connect(self.refresh)
        session.runs.data_arrived.connect(self._on_data)
        session.runs.changed.connect(self._on_changed)

    def show_run(self, key: str | None) -> None:
        """Show another run; None shows none."""
        self._key = key
        self.refresh()

    def refresh(self) -> None:
        """Read the run again; to be overridden. Nothing is to be done while the tab is hidden."""

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def _on_data(self, key: str) -> None:
        if key == self._key and self.isVisible() and not self._timer.isActive():
            self._timer.start()

    def _on_changed(self, key: str) -> None:
        if key == self._key:
            self.refresh()
