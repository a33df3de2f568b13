"""Choosing a tensor from a file: a button, and a list where the file holds several."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QFileDialog, QHBoxLayout, QPushButton, QWidget

from precgui.formats.tensorfile import TensorFileError, load_tensor, tensor_names


class TensorSource(QWidget):
    """`loaded` brings the values and their name, `failed` one sentence."""

    loaded = Signal(object, str)
    failed = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._path: Path | None = None
        self.button = QPushButton("Open tensor…")
        self.button.setToolTip("A tensor from a .npy, .safetensors or .pt file; nothing in the file is run")
        self.button.clicked.connect(self._ask)
        self.names = QComboBox()
        self.names.setAccessibleName("Tensor in the file")
        self.names.hide()
        self.names.textActivated.connect(self._load)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.addWidget(self.button)
        row.addWidget(self.names)

    def _ask(self) -> None:
        dialog = QFileDialog(self, "Open a tensor", "", "Tensors (*.npy *.safetensors *.pt *.pth);;All files (*)")
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.fileSelected.connect(lambda name: self.open_file(Path(name)))
        dialog.open()

    def open_file(self, path: Path) -> None:
        """Show the first tensor of a file and offer the others."""
        try:
            names = tensor_names(path)
        except TensorFileError as error:
            self.failed.emit(str(error))
            return
        self._path = path
        self.names.clear()
        self.names.addItems(names)
        self.names.setVisible(len(names) > 1)
        if names:
            self._load(names[0])
        else:
            self.failed.emit(f"{path.name} holds no tensor")

    def _load(self, name: str) -> None:
        if self._path is None:
            return
        try:
            self.loaded.emit(load_tensor(self._path, name), name)
        except TensorFileError as error:
            self.failed.emit(str(error))
