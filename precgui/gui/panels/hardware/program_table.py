"""The programs that use a device, one a row."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtWidgets import QSizePolicy, QWidget

from precgui.gui.kit.table import TextTable


class ProgramTable(TextTable):
    """As high as its rows need; the first column names what is listed."""

    def __init__(self, columns: Sequence[str], parent: QWidget | None = None) -> None:
        super().__init__(columns, columns[0], parent)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def show_rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Show these programs in the place of those before."""
        self.fill(rows)
        self.horizontalHeader().ensurePolished()  # else its height is that of another style
        self.setFixedHeight(self.height_px(len(rows)))
