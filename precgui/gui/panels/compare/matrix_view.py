"""Compare > Groups > Matrix: varied settings, such as models, down and precisions across."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from precgui.gui.kit.parts import column, label
from precgui.gui.kit.table import TextTable
from precgui.runs.report.group_table import MATRIX_COLUMNS, SettingsMatrix
from precgui.words import L_, _, recased, translated

_NONE = L_(
    "This study varies no setting beside the precision. Vary one in Run > Study, such as model.name or model.size: "
    "every value is then compared with its own baseline."
)


class MatrixView(QWidget):
    """A row for each figure of each combination of settings."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.note = label(translated(_NONE), "muted")
        self.table = TextTable([translated(name) for name in MATRIX_COLUMNS], _("Settings by precision"))
        column(self.note, (self.table, 1), on=self, spacing=-1)

    def show_matrix(self, matrix: SettingsMatrix | None) -> None:
        """Show the matrix of a study; without one the table is empty."""
        self.note.setVisible(matrix is None)
        columns = [translated(recased(name, "upper")) for name in MATRIX_COLUMNS]
        self.table.set_columns((*columns, *(matrix.precisions if matrix is not None else ())))
        rows = matrix.rows if matrix is not None else ()
        self.table.fill([[of, *map(translated, (figure, *cells))] for of, figure, cells in rows])
