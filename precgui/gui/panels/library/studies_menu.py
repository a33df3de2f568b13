"""The studies beside the runs: a menu of the folders in the folder of runs that hold one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QFileDialog, QMenu, QPushButton, QWidget

from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.session import Session
from precgui.sweeps.folder import is_sweep
from precgui.words import _

MOST = 20  # the newest ones; others are found by the dialog


class StudiesMenu(QPushButton):
    """Filled anew each time it opens, the newest study first."""

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
        dialog = QFileDialog(self, _("Open the folder of a study"), str(self._session.folder))
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(self._session.open_study)
        dialog.open()


def studies_in(folder: Path) -> list[Path]:
    """The folders of studies in a folder of runs, newest first; none where it cannot be read."""
    try:
        results = [path for path in folder.iterdir() if is_sweep(path)]
        return sorted(results, key=lambda path: path.stat().st_mtime, reverse=True)[:MOST]
    except OSError:
        return []
