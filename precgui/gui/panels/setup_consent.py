"""Asks before a run executes code that a configuration names."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QMessageBox, QPushButton, QWidget

from precgui.config import is_own_task


class Consent(QObject):
    """Remembers, for as long as the window lives, to which code the user has agreed."""

    def __init__(self, window: QWidget) -> None:
        super().__init__(window)
        self._window = window
        self._agreed: set[str] = set()
        self.question: QMessageBox | None = None

    def before(self, task: str, act: Callable[[], None]) -> None:
        """Do `act` at once when precgui brings the task itself or was allowed to run it before; otherwise ask."""
        if not is_own_task(task) or task in self._agreed:
            act()
        elif self.question is None:
            self._ask(task, act)

    def _ask(self, task: str, act: Callable[[], None]) -> None:
        place, _, function = task.rpartition(":")
        box = QMessageBox(self._window)
        box.setWindowTitle("Run code of your own")
        box.setText(f"This run executes the code in {place}.")
        box.setInformativeText(
            f"It calls {function}, which may do whatever you may do: read and change your files, use the network. "
            "Agree only if you wrote it or know who did."
        )
        agree = QPushButton("Run this code", box)
        agree.setProperty("kind", "danger")
        agree.clicked.connect(lambda: self._agree(task, act))
        refuse = QPushButton("Cancel", box)
        box.addButton(agree, QMessageBox.ButtonRole.AcceptRole)
        box.addButton(refuse, QMessageBox.ButtonRole.RejectRole)
        box.setDefaultButton(refuse)
        box.setEscapeButton(refuse)
        box.finished.connect(self._on_answered)
        self.question = box
        box.open()

    def _agree(self, task: str, act: Callable[[], None]) -> None:
        self._agreed.add(task)
        act()

    def _on_answered(self) -> None:
        if self.question is not None:
            self.question.deleteLater()
            self.question = None
