"""The button of Runs that scans a model, or stops the scan that goes on."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QMenu, QPushButton, QWidget

from precgui.formats.checkpoints.contents import SUFFIXES
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.session import Session

_TIP = "Every tensor of a trained model in twelve formats; a folder or a file can be dropped on the window, too"


class ModelButton(QPushButton):
    """A menu for a folder or a file while nothing is scanned."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self.menu_of_kinds = QMenu(self)
        self.menu_of_kinds.addAction("Folder...", lambda: self.ask(folder=True))
        self.menu_of_kinds.addAction("File...", lambda: self.ask(folder=False))
        self.clicked.connect(self._act)
        session.models.changed.connect(self._follow)
        self._follow()

    def ask(self, *, folder: bool) -> QFileDialog:
        """Ask for a model and scan it."""
        kinds = " ".join(f"*{suffix}" for suffix in SUFFIXES)
        dialog = QFileDialog(self, "Scan a model", str(Path.home()), f"Models ({kinds})")
        dialog.setFileMode(QFileDialog.FileMode.Directory if folder else QFileDialog.FileMode.ExistingFile)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(lambda name: self._session.models.scan(Path(name)))
        dialog.open()
        return dialog

    def _act(self) -> None:
        if self._session.models.is_scanning:
            self._session.models.stop()
        else:
            self.menu_of_kinds.popup(self.mapToGlobal(self.rect().bottomLeft()))

    def _follow(self) -> None:
        models = self._session.models
        self.setText(f"Stop the scan ({models.share:.0%})" if models.is_scanning else "Scan a model...")
        self.setToolTip(plain_tip(_TIP if models.source is None else f"Scanning {models.source}"))
