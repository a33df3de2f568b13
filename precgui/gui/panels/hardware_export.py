"""Export of a bench result: to the clipboard as JSON, to a file as JSON or CSV."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog, QMenu, QToolButton

from precgui.gui.icons import icon
from precgui.gui.theme import themes
from precgui.hardware.figures import csv_text


def as_json(result: Mapping[str, Any]) -> str:
    """The result as it is kept."""
    return json.dumps(result, indent=1)


class ExportButton(QToolButton):
    """Offers what to do with the result that `shown` returns; `told` takes a sentence about how it went."""

    def __init__(self, shown: Callable[[], Mapping[str, Any] | None], told: Callable[[str], None]) -> None:
        super().__init__()
        self._shown, self._told = shown, told
        self.dialog: QFileDialog | None = None
        menu = QMenu(self)
        menu.addAction("Copy as JSON", self.copy)
        menu.addAction("Save as JSON…", lambda: self.ask("json", as_json))
        menu.addAction("Save as CSV…", lambda: self.ask("csv", csv_text))
        self.setText("Export")
        self.setIcon(icon("save"))
        self.setToolTip("Copy or save the result that is shown")
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.setMenu(menu)
        themes().changed.connect(self._recolour)

    def _recolour(self) -> None:
        self.setIcon(icon("save"))

    def copy(self) -> None:
        if (result := self._shown()) is not None:
            QGuiApplication.clipboard().setText(as_json(result))

    def ask(self, suffix: str, write: Callable[[Mapping[str, Any]], str]) -> None:
        """Ask for a file, then save the result that is shown now."""
        result = self._shown()
        if result is None:
            return
        text = write(result)
        self.dialog = dialog = QFileDialog(self, "Save the result", f"precgui-bench.{suffix}")
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(suffix)
        dialog.fileSelected.connect(lambda path: self.save(Path(path), text))
        dialog.open()

    def save(self, path: Path, text: str) -> None:
        """Write the text and tell how it went."""
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            self._told(f"{path} cannot be written: {error}")
        else:
            self._told(f"Saved {path}")
