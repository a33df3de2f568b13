"""The buttons above the runs: a menu of the studies beside them, and one that scans a model."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QFileDialog, QMenu, QPushButton, QWidget

from precgui.formats.checkpoints.suffixes import SUFFIXES
from precgui.gui.kit.file_dialogs import ask_for_file, ask_for_folder
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.session import Session
from precgui.sweeps.folder import is_sweep
from precgui.words import L_, _, translated

MOST_STUDIES = 20  # the newest ones; others are found by the dialog
_TIP = L_("Every tensor of a trained model in twelve formats; a folder or a file can be dropped on the window, too")


class StudiesMenu(QPushButton):
    """The folders in the folder of runs that hold a study, the newest first; filled anew each time it opens."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(_("Studies"), parent)
        self._session = session
        self.setToolTip(_("Open a study: its groups and verdicts in Compare, its runs in Live"))
        menu = QMenu(self)
        menu.setToolTipsVisible(True)
        menu.aboutToShow.connect(self.fill)
        self.setMenu(menu)

    def fill(self) -> None:
        menu = self.menu()
        menu.clear()
        for path in studies_in(self._session.folder):
            action = QAction(path.name.replace("&", "&&"), menu)
            action.setToolTip(plain_tip(str(path)))
            action.triggered.connect(partial(self._session.open_study, path))
            menu.addAction(action)
        if menu.isEmpty():
            menu.addAction(_("The folder of runs holds no study")).setEnabled(False)
        menu.addSeparator()
        menu.addAction(_("Open another folder...")).triggered.connect(self.ask)

    def ask(self) -> None:
        ask_for_folder(self, _("Open the folder of a study"), self._session.folder, self._session.open_study)


def studies_in(folder: Path) -> list[Path]:
    """The folders of studies in a folder of runs, newest first; none where it cannot be read."""
    try:
        results = [path for path in folder.iterdir() if is_sweep(path)]
        return sorted(results, key=lambda path: path.stat().st_mtime, reverse=True)[:MOST_STUDIES]
    except OSError:
        return []


class ModelButton(QPushButton):
    """A menu for a folder or a file while nothing is scanned; stops the scan that goes on."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self.menu_of_kinds = QMenu(self)
        self.menu_of_kinds.addAction(_("Folder..."), lambda: self.ask(folder=True))
        self.menu_of_kinds.addAction(_("File..."), lambda: self.ask(folder=False))
        self.clicked.connect(self._act)
        session.models.changed.connect(self._follow)
        self._follow()

    def ask(self, *, folder: bool) -> QFileDialog:
        """Ask for a model and scan it."""
        kinds = " ".join(f"*{suffix}" for suffix in SUFFIXES)
        if folder:
            return ask_for_folder(self, _("Scan a model"), Path.home(), self._session.models.scan)
        names = _("Models ({kinds})").format(kinds=kinds)
        return ask_for_file(self, _("Scan a model"), Path.home(), names, self._session.models.scan)

    def _act(self) -> None:
        if self._session.models.is_scanning:
            self._session.models.stop()
        else:
            self.menu_of_kinds.popup(self.mapToGlobal(self.rect().bottomLeft()))

    def _follow(self) -> None:
        models = self._session.models
        stop = _("Stop the scan ({share:.0%})").format(share=models.share)
        self.setText(stop if models.is_scanning else _("Scan a model..."))
        scanning = _("Scanning {source}").format(source=models.source)
        self.setToolTip(plain_tip(translated(_TIP) if models.source is None else scanning))
