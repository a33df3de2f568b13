"""Reads the folder of runs in a thread, and again when something in it changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QFileSystemWatcher, QObject, QTimer, Signal

from precgui.gui.answer import Answer, thread
from precgui.runs.errors import RunFileError
from precgui.runs.library import Library
from precgui.runs.library_index import LibraryEntry
from precgui.words import error_text

DEBOUNCE_MS = 300


class RunsFolder(QObject):
    """`changed`: something in the folder is new, a moment ago; `read(entries)`; `failed(sentence)`."""

    changed = Signal()
    read = Signal(object)
    read_so_far = Signal(object, int)  # and how many files there are
    failed = Signal(str)
    _part_read = Signal()

    def __init__(self, folder: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._library = Library(folder)
        self._scan = Answer(self, answered=self._on_read)
        self._scan_again = False
        self._part: tuple[list[LibraryEntry], int] | None = None  # the newest; older ones need not be shown
        self._part_read.connect(self._on_part_read)
        self._watcher = QFileSystemWatcher(self)
        self._debounce = QTimer(self, singleShot=True, interval=DEBOUNCE_MS)
        self._watcher.directoryChanged.connect(lambda _: self.announce_soon())
        self._debounce.timeout.connect(self.changed)

    @property
    def is_reading(self) -> bool:
        return self._scan.busy

    def use(self, folder: Path) -> None:
        """Another folder, or the same one; it is not read yet."""
        if self._library.folder != folder:
            self._library = Library(folder)
            if watched := self._watcher.directories():
                self._watcher.removePaths(watched)

    def announce_soon(self) -> None:
        """Emit `changed` when nothing more has come for a moment."""
        self._debounce.start()

    def refresh(self) -> None:
        """Read the folder in a thread; calls during the reading cause one more."""
        if self._scan.busy:
            self._scan_again = True
            return
        if self._library.folder.is_dir() and not self._watcher.directories():
            self._watcher.addPath(str(self._library.folder))
        self._scan.ask(thread(_read, self._library, self._keep_part))

    def _keep_part(self, entries: list[LibraryEntry], total: int) -> None:
        """Called in the thread that reads."""
        self._part = (entries, total)
        self._part_read.emit()

    def _on_part_read(self) -> None:
        part, self._part = self._part, None
        if part is not None and self._scan.busy:
            self.read_so_far.emit(*part)

    def _on_read(self, answer: list[LibraryEntry] | RunFileError) -> None:
        if isinstance(answer, RunFileError):
            self.failed.emit(error_text(answer))
        self.read.emit([] if isinstance(answer, RunFileError) else answer)
        if self._scan_again:
            self._scan_again = False
            self.refresh()


def _read(library: Library, tell: Callable[[list[LibraryEntry], int], None]) -> list[LibraryEntry] | RunFileError:
    """All runs. `tell` receives the runs read so far and the number of files, in the reading thread."""
    entries: list[LibraryEntry] = []
    try:
        for entries in library.scan():
            if len(entries) < library.total:
                tell(entries, library.total)
    except RunFileError as error:
        return error
    return entries
