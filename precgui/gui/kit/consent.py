"""Code that a configuration names runs only after the user has seen its whole place and has agreed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from pathlib import Path

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QMessageBox, QPushButton, QWidget

from precgui.config import is_own_task
from precgui.gui.kit.plain_text import PlainMessageBox
from precgui.words import _

_LINE_MAY_BREAK = "\u200b"  # a space without width
_SEPARATOR = re.escape(os.sep)
_PIECE = re.compile(f"[^{_SEPARATOR}]{{1,40}}{_SEPARATOR}*")


class Consent(QObject):
    """Asks once for each code; `agreed` holds the tasks that the user has agreed to, until the window is closed."""

    def __init__(self, window: QWidget, agreed: set[str]) -> None:
        super().__init__(window)
        self._window = window
        self._agreed = agreed
        self.question: QMessageBox | None = None

    def before(self, tasks: Collection[str], act: Callable[[], None], where: str = "") -> None:
        """Do `act` at once when precgui brings the tasks itself or was allowed to run them; otherwise ask for each.

        `where` is the place to which the code is sent; empty for this machine.
        """
        unknown = [task for task in tasks if is_own_task(task) and _agreement(task, where) not in self._agreed]
        if not unknown:
            act()
        elif self.question is None:
            self._ask(unknown[0], lambda: self.before(tasks, act, where), where)

    def _ask(self, task: str, act: Callable[[], None], where: str) -> None:
        function = task.rpartition(":")[2]
        more = _(
            "It calls {function}, which may do whatever you may do: read and change your files, use the "
            "network. Agree only if you wrote it or know who did."
        ).format(function=function)
        text = _("This run executes the code in\n{place_of}").format(place_of=place_of(task))
        if where and task.rpartition(":")[0].endswith(".py"):
            text = _("This run sends to {where}, and executes there, the code in\n{place_of}").format(
                where=where, place_of=place_of(task)
            )
        box = PlainMessageBox(self._window, _("Run code of your own"), text, more)
        agree = QPushButton(_("Run this code"), box)
        agree.setProperty("kind", "danger")
        refuse = QPushButton(_("Cancel"), box)
        box.addButton(agree, QMessageBox.ButtonRole.AcceptRole)
        box.addButton(refuse, QMessageBox.ButtonRole.RejectRole)
        box.setDefaultButton(refuse)
        box.setEscapeButton(refuse)
        agreement = _agreement(task, where)
        box.finished.connect(
            lambda _: self._on_answered(box, agreed=box.clickedButton() is agree, task=agreement, act=act)
        )
        self.question = box
        box.open()

    def _on_answered(self, box: QMessageBox, *, agreed: bool, task: str, act: Callable[[], None]) -> None:
        box.deleteLater()
        self.question = None
        if agreed:
            self._agreed.add(task)
            act()


def _agreement(task: str, where: str) -> str:
    return f"{task} at {where}" if where else task


def place_of(task: str) -> str:
    """The file or the module that a task of the user's own names.

    Of a file the whole real path, without links and `..`, with places to break the line; a character that cannot be
    seen is written as its code.
    """
    place = task.rpartition(":")[0]
    if not place.endswith(".py"):
        return _("the module {place} of the Python that precgui runs in").format(place=place)
    real = str(Path(place).expanduser().resolve())
    visible = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in real)
    return _PIECE.sub(lambda piece: piece[0] + _LINE_MAY_BREAK, visible)
