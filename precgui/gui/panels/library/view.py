"""The parts of the library: the view of the table, and the bar of buttons that turns into a question."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PySide6.QtCore import QAbstractItemModel, QItemSelection, QItemSelectionModel, QSize, Qt, Signal
from PySide6.QtGui import QAction, QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHBoxLayout,
    QHeaderView,
    QPushButton,
    QStackedWidget,
    QTableView,
    QToolButton,
    QWidget,
)

from precgui.gui.kit.column_widths import ColumnWidths
from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.kit.wrapping_row import WrappingRow
from precgui.gui.panels.library.table import DATE, DIAGNOSIS, NOTE, PLACE, STATUS, TITLE

HEIGHT_PX = 36  # of the bar in one line
MEASURED_ROWS = 32  # beside those in view, for the widths of columns; Qt would measure a thousand
WIDEST_PX = 400  # of a column; longer titles are cut, and whole in their tool tips


class RunsView(QTableView):
    """Whole rows are chosen; Enter or a double click is `activated`; editing begins by command only."""

    def __init__(self, model: QAbstractItemModel, actions: Sequence[QAction], parent: QWidget) -> None:
        super().__init__(parent)
        self.setModel(model)
        self.setAccessibleName("Runs")
        self.setSortingEnabled(True)
        self.sortByColumn(DATE, Qt.SortOrder.DescendingOrder)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        self.addActions(list(actions))
        self.setShowGrid(False)
        self.setWordWrap(False)
        let_copy(self)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + 16)
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setMinimumSectionSize(64)
        self._columns = ColumnWidths(self)
        header.setMaximumSectionSize(WIDEST_PX)
        header.moveSection(PLACE, STATUS + 1)  # hidden until a run has come from elsewhere
        header.moveSection(header.visualIndex(DIAGNOSIS), STATUS + 1)
        header.setResizeContentsPrecision(MEASURED_ROWS)
        header.setSectionResizeMode(NOTE, QHeaderView.ResizeMode.Stretch)
        self.show_places(False)

    def show_places(self, shown: bool) -> None:
        """Show or hide where runs were trained."""
        self.setColumnHidden(PLACE, not shown)

    def is_editing(self) -> bool:
        return self.state() == QAbstractItemView.State.EditingState

    def selected_rows(self) -> list[int]:
        """In ascending order; `selectedRows` of Qt would ask for the flags of every cell."""
        chosen = self.selectionModel().selection()
        return sorted({row for part in chosen.toList() for row in range(part.top(), part.bottom() + 1)})

    def select_rows(self, rows: Sequence[int]) -> None:
        """Add these rows to the selection, neighbours as one part: Qt compares each part with all others."""
        if not rows:
            return
        ascending = np.unique(rows)
        chosen = QItemSelection()
        for part in np.split(ascending, np.flatnonzero(np.diff(ascending) > 1) + 1):
            chosen.select(self.model().index(int(part[0]), TITLE), self.model().index(int(part[-1]), TITLE))
        flags = QItemSelectionModel.SelectionFlag
        self.selectionModel().select(chosen, flags.Select | flags.Rows)


def tool(action: QAction, parent: QWidget, *, with_text: bool = True) -> QToolButton:
    button = QToolButton(parent)
    button.setDefaultAction(action)
    button.setIconSize(QSize(18, 18))
    style = Qt.ToolButtonStyle
    button.setToolButtonStyle(style.ToolButtonTextBesideIcon if with_text else style.ToolButtonIconOnly)
    return button


class ConfirmBar(QStackedWidget):
    """Buttons, and in the same place a question: nothing moves when it comes. `agreed` is the answer yes."""

    agreed = Signal()

    def __init__(self, actions: Sequence[QAction], agree: str, decline: str, parent: QWidget) -> None:
        super().__init__(parent)
        self._tools = WrappingRow([tool(action, self) for action in actions], self, gap_px=4)
        asking = QWidget(self)
        self._question = PlainLabel(asking)
        self._question.setTextFormat(Qt.TextFormat.PlainText)
        self.yes = QPushButton(agree, asking)
        self.yes.setProperty("kind", "danger")
        self.yes.clicked.connect(self.drop)
        self.yes.clicked.connect(self.agreed)
        self.no = QPushButton(decline, asking)
        self.no.setShortcut(Qt.Key.Key_Escape)
        self.no.clicked.connect(self.drop)
        row = QHBoxLayout(asking)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(8)
        row.addWidget(self._question, 1)
        row.addWidget(self.no)
        row.addWidget(self.yes)
        self.addWidget(self._tools)
        self.addWidget(asking)
        self.setFixedHeight(HEIGHT_PX)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.setFixedHeight(max(HEIGHT_PX, self._tools.heightForWidth(self.width())))

    def ask(self, question: str) -> None:
        """Put the question; the careful answer has the focus."""
        self._question.setText(question)
        self.setCurrentIndex(1)
        self.no.setFocus()

    @property
    def asking(self) -> bool:
        return self.currentIndex() == 1

    def drop(self) -> None:
        """Show the buttons again."""
        self.setCurrentIndex(0)
