"""Dialogs that ask for files or a folder; each is dressed as the window, and goes when it is closed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QWidget

from precgui.gui.theme import themes

Then = Callable[[Path], object]
_Mode = QFileDialog.FileMode


def ask_for_file(parent: QWidget, title: str, start: Path | str, kinds: str, then: Then) -> QFileDialog:
    """Ask for one that exists. `kinds` are filters of names, such as "Tensors (*.npy)", between ";;"."""
    return _opened(_dialog(parent, title, start, kinds, _Mode.ExistingFile), then)


def ask_for_files(
    parent: QWidget, title: str, start: Path | str, kinds: str, then: Callable[[list[Path]], object]
) -> None:
    """Ask for some that exist."""
    dialog = _dialog(parent, title, start, kinds, _Mode.ExistingFiles)
    dialog.filesSelected.connect(lambda names: then([Path(name) for name in names]))
    dialog.open()


def ask_for_folder(parent: QWidget, title: str, start: Path | str, then: Then) -> QFileDialog:
    return _opened(_dialog(parent, title, start, "", _Mode.Directory), then)


def ask_for_new_file(
    parent: QWidget, title: str, start: Path | str, kinds: str, then: Then, *, suffix: str = "", name: str = "",
    replaces: bool = True,
) -> QFileDialog:  # fmt: skip
    """Ask for a place to write to.

    Args:
        suffix: Added to a name without one.
        name: The one that is proposed, in the folder `start`.
        replaces: A file that exists is replaced, after a question; where it never is, the writer says why.
    """
    dialog = _dialog(parent, title, start, kinds, _Mode.AnyFile)
    dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
    dialog.setDefaultSuffix(suffix)
    dialog.setOption(QFileDialog.Option.DontConfirmOverwrite, not replaces)
    if name:
        dialog.selectFile(name)
    return _opened(dialog, then)


def _dialog(parent: QWidget, title: str, start: Path | str, kinds: str, mode: QFileDialog.FileMode) -> QFileDialog:
    dialog = QFileDialog(parent, title, str(start), kinds)
    dialog.setFileMode(mode)
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    themes().dress(dialog)
    return dialog


def _opened(dialog: QFileDialog, then: Then) -> QFileDialog:
    dialog.fileSelected.connect(lambda name: then(Path(name)))
    dialog.open()
    return dialog
