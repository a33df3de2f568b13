"""Compare > Groups > Figures: one figure of every group beside its baseline, and all verdicts with their rules."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from precgui.gui.kit.choice import Choice
from precgui.gui.kit.folded_text import FoldedText
from precgui.gui.kit.parts import column, named, row
from precgui.gui.kit.table import TextTable
from precgui.gui.panels.compare.group_rows import COLUMNS, group_row
from precgui.runs.figures import Figure, study_figures
from precgui.runs.report.content import ReportContent
from precgui.words import L_, _, p_, translated

_VERDICT_COLUMNS = (L_("Group"), L_("Target"), L_("Verdict"), L_("Figures and reason"))
_VERDICT = COLUMNS.index("Verdict")
_DISPENSABLE = [COLUMNS.index(title) for title in ("Reason", "95 % interval", "Runs", "Mean")]


class FiguresView(QWidget):
    """The table of groups follows the figure that is chosen."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._content: ReportContent | None = None
        self.figure = Choice(_("Figure that is compared"), self._fill_table)
        self.figure.setSizeAdjustPolicy(Choice.SizeAdjustPolicy.AdjustToContents)
        self.table = TextTable([_title(title) for title in COLUMNS], _("Groups of the study"))
        self.verdicts = TextTable([translated(title) for title in _VERDICT_COLUMNS], _("Verdicts of the study"))
        self.table.give_up(_DISPENSABLE)
        self.fold = FoldedText(self)
        head = row(named(_("&Figure"), self.figure), self.figure, 1, self.fold)
        column(head, self.fold.note, (self.table, 2), (self.verdicts, 1), on=self)

    def show_content(self, content: ReportContent | None) -> None:
        """Show the groups of a study; without one the tables are empty."""
        self._content = content
        self.table.fill([])
        lines = content.verdicts if content is not None else ()
        cells = [(line.group, line.target, line.short, line.detail) for line in lines]
        rows = [[translated(cell) for cell in row] for row in cells]
        self.verdicts.fill(rows, 2, [line.word for line in lines])
        self.fold.set_remarks([translated(note) for note in content.notes] if content is not None else ())
        if content is not None:
            self.figure.offer([(translated(each.title), each) for each in study_figures(content.study.metric)])
            self._fill_table()

    def _fill_table(self) -> None:
        figure = self.figure.currentData()
        if self._content is None or not isinstance(figure, Figure):
            return
        study = self._content.study
        words = [v.verdict if (v := group.verdicts.get(figure.target)) else "" for group in study.groups]
        rows = [[translated(cell) for cell in group_row(group, figure, study)] for group in study.groups]
        self.table.fill(rows, _VERDICT, words)
        self.table.fit_rows(len(study.groups))


def _title(column: str) -> str:
    return p_("how many", "Runs") if column == "Runs" else translated(column)
