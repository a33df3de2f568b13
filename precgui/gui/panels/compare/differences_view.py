"""A table of the facts in which runs or groups differ: machines first, then libraries, then settings."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtWidgets import QWidget

from precgui.gui.kit.parts import column, label
from precgui.gui.kit.table import TextTable
from precgui.runs.differences import DifferenceRow

_SAME = "They are of the same machine, libraries and settings; only seeds may differ."


class DifferencesView(QWidget):
    """One column for each run or group."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.note = label(kind="muted")
        self.table = TextTable(("Part", "Fact"), "Differences of machines and settings")
        self.column = column(self.note, (self.table, 1), on=self, spacing=-1)

    def show_rows(self, names: Sequence[str], rows: Sequence[DifferenceRow]) -> None:
        """`names` are the columns of the values."""
        self.table.set_columns(("Part", "Fact", *names))
        self.table.fill([(row.part, row.fact, *row.values) for row in rows])
        same_machine = not any(row.part == "machine" for row in rows)
        self.note.setText(_SAME if not rows else "The machine is the same everywhere." if same_machine else "")
        self.note.setVisible(bool(self.note.text()))
