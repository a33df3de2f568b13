"""Code that a configuration names runs only after the user has seen its whole place and has agreed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QMessageBox, QPushButton, QWidget

from precgui.config import is_own_task
from precgui.gui.widgets.plain_text import PlainMessageBox

_LINE_MAY_BREAK = "\u200b"  # a space without width
_SEPARATOR = re.escape(os.sep)
_PIECE = re.compile(f"[^{_SEPARATOR}]{{1,40}}{_SEPARATOR}*")


class Consent(QObject):
    """Remembers until the window is closed to which code the user has agreed."""

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
        function = task.rpartition(":")[2]
        more = (
            f"It calls {function}, which may do whatever you may do: read and change your files, use the network. "
            "Agree only if you wrote it or know who did."
        )
        text = f"This run executes the code in\n{place_of(task)}"
        box = PlainMessageBox(self._window, "Run code of your own", text, more)
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


def place_of(task: str) -> str:
    """The file or the module that a task of the user's own names.

    Of a file the whole real path, without links and `..`, with places to break the line; a character that cannot be
    seen is written as its code.
    """
    place = task.rpartition(":")[0]
    if not place.endswith(".py"):
        return f"the module {place} of the Python that precgui runs in"
    real = str(Path(place).expanduser().resolve())
    visible = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in real)
    return _PIECE.sub(lambda piece: piece[0] + _LINE_MAY_BREAK, visible)
