"""The list of open runs with one sentence of diagnosis for each."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableWidget, QTableWidgetItem, QWidget

from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.filled_cells import OwnColours
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.open_run import OpenRun
from precgui.gui.plots.export import swatch_icon
from precgui.gui.verdicts import short_verdict, urgency, verdict_colour
from precgui.runs.diagnosis.findings import Diagnosis
from precgui.words import _, translated

_MOST_ROWS = 6


class VerdictTable(QTableWidget):
    """A row a run; one or two rows can be chosen."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(0, 2, parent)
        self.keys: list[str] = []
        self.setHorizontalHeaderLabels([_("Run"), _("Diagnosis")])
        self.setAccessibleName(_("Diagnosis of each open run"))
        self.verticalHeader().setVisible(False)
        self.horizontalHeader().setSectionResizeMode(0, QHeaderView.ResizeMode.Interactive)
        self.horizontalHeader().setStretchLastSection(True)
        self.horizontalHeader().setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self.horizontalHeader().resizeSection(0, 230)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setShowGrid(False)
        let_copy(self)
        self.setItemDelegateForColumn(1, OwnColours(self))

    def show_runs(self, runs: list[OpenRun], diagnosis: dict[str, Diagnosis], current: str | None) -> None:
        """Show these runs, those with problems first; what was chosen stays so, at first the current run."""
        runs = sorted(runs, key=lambda opened: urgency(diagnosis.get(opened.key)))
        keys = [opened.key for opened in runs]
        if keys != self.keys:
            chosen = self.chosen() or [current or ""]
            self.blockSignals(True)
            self.keys = keys
            self.setRowCount(len(keys))
            self.clearSelection()
            for row, key in enumerate(keys):
                for column in (0, 1):
                    self.setItem(row, column, QTableWidgetItem())
                    if key in chosen:
                        self.item(row, column).setSelected(True)  # type: ignore[union-attr]
            self.blockSignals(False)
            self._scroll_to_chosen()
        for row, opened in enumerate(runs):
            self._fill(row, opened, diagnosis.get(opened.key))
        height = (
            self.horizontalHeader().height() + min(len(keys), _MOST_ROWS) * self.verticalHeader().defaultSectionSize()
        )
        self.setFixedHeight(height + 6)

    def _fill(self, row: int, opened: OpenRun, diagnosis: Diagnosis | None) -> None:
        name, verdict = self.item(row, 0), self.item(row, 1)
        if name is None or verdict is None:
            return
        name.setText(opened.name)
        name.setIcon(swatch_icon(opened))
        name.setToolTip(plain_tip(opened.name))
        waits = _("Reading...")
        verdict.setText(short_verdict(diagnosis) if diagnosis is not None else waits)  # all of it stands below
        verdict.setToolTip(plain_tip(translated(diagnosis.sentence) if diagnosis is not None else waits))
        verdict.setForeground(QColor(verdict_colour(diagnosis)))

    def chosen(self) -> list[str]:
        """The keys of the chosen runs, in the order of the rows."""
        rows = sorted({index.row() for index in self.selectedIndexes()})
        return [self.keys[row] for row in rows if row < len(self.keys)]

    def choose(self, key: str) -> None:
        """Choose one run and scroll to it."""
        if key in self.keys:
            self.clearSelection()
            self.selectRow(self.keys.index(key))
            self._scroll_to_chosen()

    def _scroll_to_chosen(self) -> None:
        for index in self.selectedIndexes()[:1]:
            self.scrollTo(index)
