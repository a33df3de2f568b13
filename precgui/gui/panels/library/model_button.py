"""The button of Runs that scans a model, or stops the scan that goes on."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QMenu, QPushButton, QWidget

from precgui.formats.checkpoints.suffixes import SUFFIXES
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.session import Session
from precgui.words import L_, _, translated

_TIP = L_("Every tensor of a trained model in twelve formats; a folder or a file can be dropped on the window, too")


class ModelButton(QPushButton):
    """A menu for a folder or a file while nothing is scanned."""

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
        dialog = QFileDialog(self, _("Scan a model"), str(Path.home()), _("Models ({kinds})").format(kinds=kinds))
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
        stop = _("Stop the scan ({share:.0%})").format(share=models.share)
        self.setText(stop if models.is_scanning else _("Scan a model..."))
        scanning = _("Scanning {source}").format(source=models.source)
        self.setToolTip(plain_tip(translated(_TIP) if models.source is None else scanning))
