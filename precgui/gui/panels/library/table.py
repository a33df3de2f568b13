"""The list of runs as a table model: what each column says, sorts by and lets edit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, QSortFilterProxyModel, Qt
from PySide6.QtGui import QColor, QIcon

from precgui.gui.theme import themes
from precgui.gui.widgets.icons import icon
from precgui.gui.widgets.plain_text import plain_tip
from precgui.runs.library_index import LibraryEntry
from precgui.runs.metric import ACCURACY, in_text, value_text

Index = QModelIndex | QPersistentModelIndex
SORT = Qt.ItemDataRole.UserRole
UNKNOWN = "–"
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter


def loss_text(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}" if math.isfinite(value) else "NaN"


def metric_text(entry: LibraryEntry) -> str:
    """The value with its unit, and with the name of the metric unless it is the accuracy."""
    value = value_text(entry.metric, entry.val_accuracy, "")
    named = value if entry.metric.name == ACCURACY.name else f"{in_text(entry.metric.title)} {value}"
    return named if value else UNKNOWN


def date_text(created: str) -> str:
    """An ISO moment in local time; the text itself when it is none."""
    try:
        return datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return created or UNKNOWN


def status_text(entry: LibraryEntry) -> str:
    return "unreadable" if entry.error else entry.outcome or entry.status or UNKNOWN


@dataclass(frozen=True)
class RunColumn:
    """A column: its heading, what it shows, what it sorts by, where its text stands."""

    title: str
    text: Callable[[LibraryEntry], str]
    sort: Callable[[LibraryEntry], Any]
    align: Qt.AlignmentFlag = LEFT
    told: str = ""


def _number(value: float | None) -> float:
    """Unknown and NaN sort below every number."""
    return -math.inf if value is None or math.isnan(value) else value


COLUMNS = (
    RunColumn("Title", lambda e: e.title, lambda e: e.title.casefold()),
    RunColumn("Precision", lambda e: e.precision or UNKNOWN, lambda e: e.precision),
    RunColumn("Status", status_text, status_text),
    RunColumn("Loss, last epoch", lambda e: loss_text(e.final_loss), lambda e: _number(e.final_loss), RIGHT,
           "Mean training loss of the last epoch"),
    RunColumn("Metric", metric_text, lambda e: _number(e.val_accuracy), RIGHT,
           "On the validation set at the end; the accuracy where nothing else is said"),
    RunColumn("Steps", lambda e: str(e.steps) if not e.error else UNKNOWN, lambda e: e.steps, RIGHT),
    RunColumn("Date", lambda e: date_text(e.created), lambda e: e.created),
    RunColumn("Note", lambda e: e.error or e.note, lambda e: (e.error or e.note).casefold()),
)  # fmt: skip
TITLE, STATUS, STEPS, DATE, NOTE = 0, 2, 5, 6, 7


class RunTable(QAbstractTableModel):
    """Rows are entries. Editing calls `edit(entry, column, text)`, which says whether it was done."""

    def __init__(self, edit: Callable[[LibraryEntry, int, str], bool], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._edit = edit
        self._entries: list[LibraryEntry] = []
        self._icons: dict[str, QIcon] = {}
        self.recolour()

    def recolour(self) -> None:
        """Draw the icons anew in the colours of the theme."""
        theme = themes().theme
        drawings = {
            "completed": ("ok", theme.ok),
            "stopped": ("stop", theme.muted),
            "failed": ("error", theme.error),
            "running": ("start", theme.accent),
            "unreadable": ("warning", theme.warning),
        }
        self._icons = {status: icon(drawing, colour, 16) for status, (drawing, colour) in drawings.items()}
        if self._entries:
            self.dataChanged.emit(self.index(0, 0), self.index(len(self._entries) - 1, len(COLUMNS) - 1))

    def show_entries(self, entries: Sequence[LibraryEntry]) -> None:
        if list(entries) != self._entries:
            self.beginResetModel()
            self._entries = list(entries)
            self.endResetModel()

    def entry(self, row: int) -> LibraryEntry:
        return self._entries[row]

    def row_of(self, path: Path) -> int | None:
        return next((row for row, entry in enumerate(self._entries) if entry.path == path), None)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 (Qt's signature)
        return 0 if parent.isValid() else len(self._entries)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(COLUMNS)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation != Qt.Orientation.Horizontal:
            return None
        column = COLUMNS[section]
        answers = {
            Qt.ItemDataRole.DisplayRole: column.title,
            Qt.ItemDataRole.ToolTipRole: plain_tip(column.told) or None,
            Qt.ItemDataRole.TextAlignmentRole: column.align,
        }
        return answers.get(Qt.ItemDataRole(role))

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        entry, column = self._entries[index.row()], COLUMNS[index.column()]
        kind = Qt.ItemDataRole
        if role in (kind.DisplayRole, kind.EditRole):
            return column.text(entry)
        if role == SORT:
            return column.sort(entry)
        if role == kind.TextAlignmentRole:
            return column.align
        if role == kind.ToolTipRole:
            return plain_tip(f"{entry.error or entry.note or entry.title}\n{entry.path}")
        if role == kind.DecorationRole and index.column() == STATUS:
            return self._icons.get("unreadable" if entry.error else status_text(entry).partition(",")[0])
        if role == kind.ForegroundRole and (entry.error or index.column() > STATUS):
            return QColor(themes().theme.muted)
        return None

    def flags(self, index: Index) -> Qt.ItemFlag:
        flags = super().flags(index)
        editable = index.isValid() and index.column() in (TITLE, NOTE) and not self._entries[index.row()].error
        return flags | Qt.ItemFlag.ItemIsEditable if editable else flags

    def setData(self, index: Index, value: Any, role: int = Qt.ItemDataRole.EditRole) -> bool:
        if role != Qt.ItemDataRole.EditRole:
            return False
        return self._edit(self._entries[index.row()], index.column(), str(value))


class RunFilter(QSortFilterProxyModel):
    """Shows the runs that hold every word, in whatever column or in the file name."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._words: list[str] = []
        self.setSortRole(SORT)

    def set_words(self, text: str) -> None:
        self.beginResetModel()
        self._words = text.casefold().split()
        self.endResetModel()

    def filterAcceptsRow(self, row: int, parent: Index) -> bool:
        model = self.sourceModel()
        assert isinstance(model, RunTable)
        entry = model.entry(row)
        text = " ".join([*(column.text(entry) for column in COLUMNS), entry.path.name]).casefold()
        return all(word in text for word in self._words)
