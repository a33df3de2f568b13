"""Run files on their way into the window: the dialog, the recent ones, what is dropped, the folder of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QMimeData, QObject, QUrl
from PySide6.QtGui import QAction, QDesktopServices
from PySide6.QtWidgets import QMenu, QWidget

from precgui.examples import example
from precgui.formats.checkpoints.suffixes import is_checkpoint
from precgui.gui.answer import Answer, thread
from precgui.gui.kit.file_dialogs import ask_for_files, ask_for_folder
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.notices import Notice, Notices
from precgui.gui.settings import Settings
from precgui.paths import is_example, runs_dir
from precgui.runs.tensorboard.event_file import holds_events
from precgui.words import L_, _, error_text, translated

if TYPE_CHECKING:
    from precgui.gui.session import Session
    from precgui.runs.tensorboard.imported_run import ImportedRun
    from precgui.runs.tensorboard.imports import EventScalars


RUN_FILES = L_(
    "Runs (*.h5 *.hdf5 *tfevents*);;precgui run files (*.h5 *.hdf5);;TensorBoard events (*tfevents*);;All files (*)"
)


class Files(QObject):
    """Opens run files in the session, which reports files that cannot be opened."""

    def __init__(self, window: QWidget, settings: Settings, notices: Notices) -> None:
        super().__init__(window)
        self._reading = Answer(self, answered=self._on_read)
        self._reading_again = Answer(self, answered=self._on_read_again)
        self._window, self._settings, self._notices = window, settings, notices
        self._session: Session | None = None
        self._restored: set[Path] = set()  # event files of the last session that are still read

    def attach(self, session: Session) -> None:
        self._session = session
        session.runs.added.connect(self._remember)
        session.folder_changed.connect(self._remember_folder)

    def open(self, paths: Sequence[Path], *, show: bool = True) -> None:
        """Open the files, and show the runs if any could be opened, or stay at the present place.

        TensorBoard's are long: they come later.
        """
        if (session := self._session) is None:
            return
        for folder in [path for path in paths if path.is_dir() and (path / "sweep.toml").is_file()]:
            session.open_study(folder)
            paths = [path for path in paths if path != folder]
        for script in [path for path in paths if path.suffix.lower() in (".py", ".ipynb")]:
            session.requests.go(f"diagnose/script:{script}")
            paths = [path for path in paths if path != script]
        for model in [path for path in paths if is_checkpoint(path) and not holds_events(path)]:
            session.models.scan(model)
            session.requests.go("library")
            paths = [path for path in paths if path != model]
        foreign = [path for path in paths if holds_events(path) and not session.runs.key_of(path)]
        ordinary = [path for path in paths if path not in foreign]
        if show:
            session.runs.opener.open(ordinary, lambda key: self._show(session, key, by_hand=len(ordinary) == 1))
        else:
            session.runs.opener.open(ordinary, lambda _: None)
        for path in foreign:
            self._reading.ask(thread(_read, path))
        self._restored |= set() if show else set(foreign)

    def _show(self, session: Session, key: str, *, by_hand: bool) -> None:
        session.runs.choose(key, by_hand=by_hand)
        session.requests.go("live")

    def choose_scalars(self) -> None:
        """Ask which scalar is which of an event file that is open: of the last one that came."""
        if self._session is not None and (run := self._imported()) is not None:
            self._reading_again.ask(thread(_read, run.path))

    def has_scalars(self) -> bool:
        return self._imported() is not None

    def _imported(self) -> ImportedRun | None:
        if self._session is None or not self._session.runs:
            return None
        from precgui.runs.tensorboard.imported_run import ImportedRun

        runs = [opened.run for opened in self._session.runs.values()]
        return next((run for run in reversed(runs) if isinstance(run, ImportedRun)), None)

    def _on_read(self, events: EventScalars | str) -> None:
        """Show the signals that names identify; ask for the others."""
        if isinstance(events, str):
            self._notices.post(Notice("error", events))
        elif self._session is not None and not self._session.runs.key_of(events.path):
            from precgui.runs.tensorboard.tags import shows_training

            now = events.choose({})
            if shows_training(now):
                self._take_in(events, now)
            else:
                self._ask_scalars(events, now)

    def _on_read_again(self, events: EventScalars | str) -> None:
        if isinstance(events, str):
            self._notices.post(Notice("error", events))
        elif (run := self._imported()) is not None and run.path == events.path:
            self._ask_scalars(events, run.tags)

    def _ask_scalars(self, events: EventScalars, now: Mapping[str, str]) -> None:
        from precgui.gui.shell.scalar_dialog import ScalarsDialog

        dialog = ScalarsDialog(events, now, self._window)
        dialog.chosen.connect(lambda requested: self._take_in(events, requested))
        dialog.open()

    def _take_in(self, events: EventScalars, requested: Mapping[str, str]) -> None:
        """Show the scalars as a run, in the place of what they were shown as before."""
        if self._session is None:
            return
        run = events.run(requested)
        if key := self._session.runs.key_of(events.path):
            self._session.runs.close(key)
        self._session.runs.take_in(run)
        for note in run.notes:
            remedies = ((_("Choose scalars..."), self.choose_scalars),) if note == run.guesses else ()
            self._notices.post(Notice("info", f"{run.path.name}: {translated(note)}", remedies=remedies))
        if events.path not in self._restored:
            self._session.requests.go("live")
        self._restored.discard(events.path)

    def ask(self) -> None:
        folder = self._settings["files/last_folder"] or str(self._folder())
        ask_for_files(self._window, _("Open runs"), folder, translated(RUN_FILES), self.open)

    def open_example(self, name: str) -> None:
        """Show a bundled example."""
        from precgui.gui.examples import open_example

        if self._session is not None and (each := example(name)) is not None:
            open_example(self._session, each)

    def ask_study(self) -> None:
        """Ask for the folder of a study."""
        if self._session is not None:
            ask_for_folder(self._window, _("Open the folder of a study"), self._folder(), self._session.open_study)

    def fill_recent(self, menu: QMenu) -> None:
        """One entry a recent file; one that is gone is shown, but cannot be chosen."""
        menu.clear()
        for entry in self._settings["files/recent"]:
            path = Path(entry)
            action = QAction(path.name.replace("&", "&&"), menu)
            action.setToolTip(plain_tip(entry))
            action.setEnabled(path.exists())
            action.triggered.connect(lambda _=False, path=path: self.open([path]))
            menu.addAction(action)
        if menu.isEmpty():
            menu.addAction(_("No run has been opened yet")).setEnabled(False)

    def _remember(self, key: str) -> None:
        path = self._session.runs[key].run.path if self._session is not None else None
        if path is not None and not is_example(path):
            self._settings.remember_file(path)

    def _remember_folder(self) -> None:
        """The chosen folder; nothing while it is the usual one, which may move."""
        folder = self._folder()
        self._settings["files/runs_folder"] = "" if folder == runs_dir() else str(folder)

    def show_folder(self) -> None:
        folder = self._folder()
        if not folder.is_dir():
            self._notices.post(
                Notice("info", _("There are no runs yet; they will be kept in {folder}").format(folder=folder))
            )
        elif not QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder))):
            self._notices.post(
                Notice("info", _("No file manager could be started; the runs are in {folder}").format(folder=folder))
            )

    def _folder(self) -> Path:
        return self._session.folder if self._session is not None else runs_dir()


def _read(path: Path) -> EventScalars | str:
    """The scalars of event files, or the sentence that says why not."""
    from precgui.runs.errors import RunFileError
    from precgui.runs.tensorboard.imports import read_events

    try:
        return read_events(path)
    except RunFileError as error:
        return error_text(error)


def dropped(data: QMimeData) -> list[Path]:
    """The local files among what is dragged."""
    return [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()]
