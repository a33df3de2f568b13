"""The folder of runs as it is now: read in a thread, and read again when something in it changes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import QFileSystemWatcher, QObject, QTimer, Signal

from precgui.gui.background import Background
from precgui.runs.errors import RunFileError
from precgui.runs.library import Entry, Library

DEBOUNCE_MS = 300


class RunsFolder(QObject):
    """`changed`: something in the folder is new, a moment ago; `read(entries)`; `failed(sentence)`."""

    changed = Signal()
    read = Signal(list)
    failed = Signal(str)

    def __init__(self, folder: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._library = Library(folder)
        self._scan: Background | None = None
        self._scan_again = False
        self._watcher = QFileSystemWatcher(self)
        self._debounce = QTimer(self, singleShot=True, interval=DEBOUNCE_MS)
        self._watcher.directoryChanged.connect(lambda _: self.look_soon())
        self._debounce.timeout.connect(self.changed)

    @property
    def is_reading(self) -> bool:
        return self._scan is not None

    def use(self, folder: Path) -> None:
        """Another folder, or the same one; it is not read yet."""
        if self._library.folder != folder:
            self._library = Library(folder)
            if watched := self._watcher.directories():
                self._watcher.removePaths(watched)

    def look_soon(self) -> None:
        """Emit `changed` when nothing more has come for a moment."""
        self._debounce.start()

    def refresh(self) -> None:
        """Read the folder, in a thread; a wish that comes meanwhile is met by one more reading."""
        if self._scan is not None:
            self._scan_again = True
            return
        if self._library.folder.is_dir() and not self._watcher.directories():
            self._watcher.addPath(str(self._library.folder))
        self._scan = Background(partial(_read, self._library))
        self._scan.answered.connect(self._on_read)
        self._scan.begin()

    def _on_read(self, answer: list[Entry] | RunFileError) -> None:
        self._scan = None
        if isinstance(answer, RunFileError):
            self.failed.emit(str(answer))
        self.read.emit([] if isinstance(answer, RunFileError) else answer)
        if self._scan_again:
            self._scan_again = False
            self.refresh()


def _read(library: Library) -> list[Entry] | RunFileError:
    try:
        return library.entries()
    except RunFileError as error:
        return error
