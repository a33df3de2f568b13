"""Work that may take long (disk, network folders), in a thread of its own; the answer comes back in the GUI thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import Signal

from precgui.gui.workers.kept_thread import KeptThread


class Background(KeptThread):
    """Runs `work` once, after `launch`.

    `answered` carries what `work` returns; connect it to a method of a QObject: a destroyed one is not called.
    """

    answered = Signal(object)

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def run(self) -> None:
        self.answered.emit(self._work())
