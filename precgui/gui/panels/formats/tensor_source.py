"""Choosing a tensor from a file: a button, and a list where the file holds several. Files are read in a thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QPushButton, QWidget

from precgui.formats.tensorfile import TensorFileError, load_tensor, tensor_names
from precgui.gui.answer import Answer, ProgressCallback, computation
from precgui.gui.kit.file_dialogs import ask_for_file
from precgui.words import _

Load = Callable[[Path, str], Any]
Loaded = tuple[list[str], str, Any]


def _read(path: Path, name: str | None, load: Load, progress: ProgressCallback) -> Loaded:
    """The names of a file and one tensor, the first if none is named. Raises TensorFileError."""
    names = tensor_names(path)
    if not names:
        raise TensorFileError(_("{name} holds no tensor").format(name=path.name))
    progress(0.1)
    chosen = names[0] if name is None else name
    return names, chosen, load(path, chosen)


class TensorSource(QWidget):
    """`loaded` brings what `load` made of the tensor, and its name; `failed` one sentence."""

    loaded = Signal(object, str)
    failed = Signal(str)

    def __init__(self, load: Load = load_tensor, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._load_one = load
        self._path: Path | None = None
        self.work = Answer(self, answered=self._show, failed=self.failed.emit)
        self.button = QPushButton(_("Open tensor…"))
        self.button.setToolTip(_("A tensor from a .npy, .safetensors or .pt file; nothing in the file is run"))
        self.button.clicked.connect(self._ask)
        self.names = QComboBox()
        self.names.setAccessibleName(_("Tensor in the file"))
        self.names.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.names.setMinimumContentsLength(12)
        self.names.hide()
        self.names.textActivated.connect(self._load)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.addWidget(self.button)
        row.addWidget(self.names, 1)

    def _ask(self) -> None:
        kinds = _("Tensors (*.npy *.safetensors *.pt *.pth);;All files (*)")
        ask_for_file(self, _("Open a tensor"), "", kinds, self.open_file)

    def open_file(self, path: Path) -> None:
        """Show the first tensor of a file and offer the others."""
        self._ask_for(path, None)

    def _load(self, name: str) -> None:
        if (path := self._path) is not None:
            self._ask_for(path, name)

    def _ask_for(self, path: Path, name: str | None) -> None:
        reading = computation(lambda progress: (path, _read(path, name, self._load_one, progress)))
        self.work.ask(reading, latest_only=True)

    def _show(self, answer: tuple[Path, Loaded]) -> None:
        path, (names, chosen, values) = answer
        self._path = path
        if [self.names.itemText(n) for n in range(self.names.count())] != names:
            self.names.clear()
            self.names.addItems(names)
        self.names.setVisible(len(names) > 1)
        self.names.setCurrentText(chosen)
        self.loaded.emit(values, chosen)
