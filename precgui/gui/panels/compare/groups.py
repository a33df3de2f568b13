"""Compare > Groups: the answer of a study in a sentence, its groups beside their baseline, and every verdict."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QColor, QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QComboBox,
    QFileDialog,
    QHeaderView,
    QPushButton,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from precgui.gui.panels.compare.group_rows import COLUMNS, GroupFigure, figures, group_row
from precgui.gui.session import Session
from precgui.gui.theme import severity_colour, themes
from precgui.gui.widgets.editors import ignore_wheel
from precgui.gui.widgets.empty_state import EmptyState, Pages, named, panel_head
from precgui.gui.widgets.plain_text import PlainLabel, plain_tip
from precgui.runs.report.content import ReportContent, VerdictLine

_EMPTY = (
    "A study runs several precisions with several seeds, and says how sure each difference is. Set one up in Run > "
    "Study, or open the folder of one."
)
_VERDICT_COLUMNS = ("Group", "Target", "Verdict", "Figures and reason")
_WORDS = {"missed": "error", "undecided": "warning"}
_VERDICT = COLUMNS.index("Verdict")


class GroupsView(Pages):
    """Follows the open study: it is judged again when another run has ended."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(EmptyState("compare", "No study is open", _EMPTY, "Set up a study"), parent)
        self._session = session
        self._judged = -1  # runs that had ended when the groups were asked for
        self._content: ReportContent | None = None
        self.title = PlainLabel(self)
        self.answer = PlainLabel(self)
        self.notes = PlainLabel(self)
        self.figure = QComboBox(self)
        self.folder_button = QPushButton("Open study...", self)
        self.table = _table(COLUMNS, "Groups of the study", self)
        self.verdicts = _table(_VERDICT_COLUMNS, "Verdicts of the study", self)
        self._later = QTimer(self, singleShot=True, interval=0)
        self._lay_out()
        self._connect()
        self.refresh()

    def _lay_out(self) -> None:
        self.figure.setAccessibleName("Figure that is compared")
        self.figure.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        ignore_wheel(self.figure)
        self.title.setProperty("kind", "muted")
        self.answer.setProperty("kind", "heading")
        self.notes.setProperty("kind", "muted")
        for text in (self.answer, self.notes):
            text.setWordWrap(True)
            text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        column = QVBoxLayout(self.content)
        column.setContentsMargins(24, 12, 24, 16)
        column.setSpacing(12)
        column.addWidget(self.answer)
        head = panel_head("", named("&Figure", self.figure), self.figure, self.folder_button)
        head.insertWidget(0, self.title)
        column.addLayout(head)
        column.addWidget(self.table, 2)
        column.addWidget(self.verdicts, 3)
        column.addWidget(self.notes)

    def _connect(self) -> None:
        study = self._session.study
        study.opened.connect(self._on_opened)
        study.grid_read.connect(self.refresh)
        study.groups_read.connect(self._take)
        self.figure.activated.connect(lambda _: self._fill_table())
        self.folder_button.clicked.connect(self.ask_for_folder)
        self.empty.button.clicked.connect(lambda: self._session.panel_wanted.emit("setup/study"))
        themes().changed.connect(self._fill)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def _on_opened(self) -> None:
        self._judged, self._content = -1, None
        self.figure.clear()
        self.refresh()

    def refresh(self) -> None:
        """Have the study judged where runs have ended since; nothing is done while the view is not seen."""
        study = self._session.study
        self.show_content(study.folder is not None)
        if not self.isVisible() or study.folder is None:
            return
        done = study.grid.document.done if study.grid is not None else 0
        if done != self._judged and study.grid is not None:
            self._judged = done
            study.read_groups()
        if self._content is None:
            self.title.setText(str(study.folder))
            self.answer.setText("Reading the runs of the study...")

    def _take(self) -> None:
        self._content = self._session.study.groups
        self._fill()

    def _fill(self) -> None:
        content = self._content
        self.table.setRowCount(0)
        self.verdicts.setRowCount(0)
        if content is None:
            why = self._session.study.why_no_groups
            self.answer.setText(f"{why[:1].upper()}{why[1:]}." if why else "")
            self.notes.setText("")
            return
        grid = self._session.study.grid
        left = grid.document.left if grid is not None else 0
        self.title.setText(f"{content.title}: {left} runs are left; this may change" if left else content.title)
        self.title.setToolTip(plain_tip(str(self._session.study.folder)))
        self.answer.setText(content.answer)
        self.notes.setText("\n".join(content.notes))
        if not self.figure.count():
            for each in figures(content.study.metric):
                self.figure.addItem(each.title, each)
        self._fill_table()
        lines = content.verdicts
        rows = [(line.group, line.target, _in_words(line), line.detail) for line in lines]
        _fill(self.verdicts, rows, 2, [line.word for line in lines])

    def _fill_table(self) -> None:
        figure = self.figure.currentData()
        if self._content is None or not isinstance(figure, GroupFigure):
            return
        study = self._content.study
        words = [v.verdict if (v := group.verdicts.get(figure.target)) else "" for group in study.groups]
        _fill(self.table, [group_row(group, figure, study) for group in study.groups], _VERDICT, words)
        rest = self.table.horizontalHeader().sizeHint().height() + 2 * self.table.frameWidth() + 14
        self.table.setMaximumHeight(rest + len(study.groups) * self.table.verticalHeader().defaultSectionSize())

    def ask_for_folder(self) -> None:
        dialog = QFileDialog(self, "Open the folder of a study", str(self._session.folder))
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(self._session.open_study)
        dialog.open()


def _in_words(line: VerdictLine) -> str:
    """The verdict; the reason why it is not measurable stands beside it."""
    return line.word if line.word == "not measurable" else line.verdict


def _table(columns: Sequence[str], told: str, parent: QWidget) -> QTableWidget:
    table = QTableWidget(0, len(columns), parent)
    table.setAccessibleName(told)
    table.setHorizontalHeaderLabels(list(columns))
    table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
    table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    table.setShowGrid(False)
    table.setTabKeyNavigation(False)
    table.setWordWrap(False)
    table.verticalHeader().hide()
    table.verticalHeader().setDefaultSectionSize(table.fontMetrics().height() + 14)
    across = table.horizontalHeader()
    across.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
    across.setStretchLastSection(True)
    across.setHighlightSections(False)
    across.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
    return table


def _fill(table: QTableWidget, rows: Sequence[Sequence[str]], column: int, words: Sequence[str]) -> None:
    """Fill a table; the verdicts in `column` are coloured by their word."""
    table.setRowCount(len(rows))
    for number, (cells, word) in enumerate(zip(rows, words, strict=True)):
        for place, text in enumerate(cells):
            item = QTableWidgetItem(text)
            item.setToolTip(plain_tip(text))
            if place == column and word:
                item.setForeground(QColor(severity_colour(_WORDS[word]) if word in _WORDS else themes().theme.text))
            table.setItem(number, place, item)
