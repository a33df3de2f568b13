"""A table of the facts in which runs or groups differ: machines first, then libraries, then settings."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtWidgets import QWidget

from precgui.gui.kit.parts import column, label
from precgui.gui.kit.table import TextTable
from precgui.runs.differences import DifferenceRow
from precgui.words import L_, _, translated

_SAME = L_("They are of the same machine, libraries and settings; only seeds may differ.")


class DifferencesView(QWidget):
    """One column for each run or group."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.note = label(kind="muted")
        self.table = TextTable((_("Part"), _("Fact")), _("Differences of machines and settings"))
        self.column = column(self.note, (self.table, 1), on=self, spacing=-1)

    def show_rows(self, names: Sequence[str], rows: Sequence[DifferenceRow]) -> None:
        """`names` are the columns of the values."""
        self.table.set_columns((_("Part"), _("Fact"), *names))
        self.table.fill([[translated(cell) for cell in (row.part, row.fact, *row.values)] for row in rows])
        same_machine = not any(row.part == "machine" for row in rows)
        only_machine = _("The machine is the same everywhere.") if same_machine else ""
        self.note.setText(only_machine if rows else translated(_SAME))
        self.note.setVisible(bool(self.note.text()))
