"""Compare > Groups > Figures: one figure of every group beside its baseline, and all verdicts with their rules."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QComboBox, QVBoxLayout, QWidget

from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.parts import named, row
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.kit.table import TextTable
from precgui.gui.panels.compare.group_rows import COLUMNS, group_row
from precgui.runs.figures import Figure, study_figures
from precgui.runs.report.content import ReportContent, VerdictLine

_VERDICT_COLUMNS = ("Group", "Target", "Verdict", "Figures and reason")
_VERDICT = COLUMNS.index("Verdict")


class FiguresView(QWidget):
    """The table of groups follows the figure that is chosen."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._content: ReportContent | None = None
        self.figure = QComboBox(self)
        self.figure.setAccessibleName("Figure that is compared")
        self.figure.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        ignore_wheel(self.figure)
        self.table = TextTable(COLUMNS, "Groups of the study", self)
        self.verdicts = TextTable(_VERDICT_COLUMNS, "Verdicts of the study", self)
        self.notes = PlainLabel(self)
        self.notes.setProperty("kind", "muted")
        self.notes.setWordWrap(True)
        self.notes.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(8)
        column.addLayout(row(named("&Figure", self.figure), self.figure, 1))
        column.addWidget(self.table, 2)
        column.addWidget(self.verdicts, 3)
        column.addWidget(self.notes)
        self.figure.activated.connect(lambda _: self._fill_table())

    def show_content(self, content: ReportContent | None) -> None:
        """Show the groups of a study; without one the tables are empty."""
        self._content = content
        self.table.fill([])
        lines = content.verdicts if content is not None else ()
        rows = [(line.group, line.target, _in_words(line), line.detail) for line in lines]
        self.verdicts.fill(rows, 2, [line.word for line in lines])
        self.notes.setText("\n".join(content.notes) if content is not None else "")
        self.notes.setVisible(bool(self.notes.text()))
        if content is not None:
            self._offer(study_figures(content.study.metric))
            self._fill_table()

    def _offer(self, known: tuple[Figure, ...]) -> None:
        if [self.figure.itemData(place) for place in range(self.figure.count())] == list(known):
            return
        chosen = self.figure.currentText()
        self.figure.clear()
        for each in known:
            self.figure.addItem(each.title, each)
        self.figure.setCurrentIndex(max(0, self.figure.findText(chosen)))

    def _fill_table(self) -> None:
        figure = self.figure.currentData()
        if self._content is None or not isinstance(figure, Figure):
            return
        study = self._content.study
        words = [v.verdict if (v := group.verdicts.get(figure.target)) else "" for group in study.groups]
        self.table.fill([group_row(group, figure, study) for group in study.groups], _VERDICT, words)
        self.table.fit_rows(len(study.groups))


def _in_words(line: VerdictLine) -> str:
    """The verdict; the reason why it is not measurable stands beside it."""
    return line.word if line.word == "not measurable" else line.verdict
