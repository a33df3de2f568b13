"""The list of runs as a table model: what each column says, sorts by and lets edit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, QSortFilterProxyModel, Qt
from PySide6.QtGui import QColor, QFont, QIcon

from precgui.examples import title_for_reader
from precgui.gui.kit.icons import icon
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.theme import themes
from precgui.gui.verdicts import short_verdict, urgency, verdict_colour
from precgui.places.settings import HERE
from precgui.runs.facts import date_text
from precgui.runs.figures import FIGURES
from precgui.runs.library import tags_of
from precgui.runs.library_index import LibraryEntry
from precgui.runs.metric import ACCURACY, in_text, value_text
from precgui.runs.outcome import outcome_sentence
from precgui.words import L_, _, p_, translated

if TYPE_CHECKING:
    from precgui.runs.diagnosis.findings import Diagnosis

Index = QModelIndex | QPersistentModelIndex
UNKNOWN = "–"
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter


def loss_text(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}" if math.isfinite(value) else "NaN"


def metric_text(entry: LibraryEntry) -> str:
    """The value with its unit, and with the name of the metric unless it is the accuracy."""
    value = value_text(entry.metric, entry.val_accuracy, "")
    named = value if entry.metric.name == ACCURACY.name else f"{in_text(translated(entry.metric.title))} {value}"
    return named if value else UNKNOWN


def status_text(entry: LibraryEntry) -> str:
    return _("unreadable") if entry.error else translated(outcome_sentence(entry.outcome or entry.status or UNKNOWN))


@dataclass(frozen=True)
class RunColumn:
    """A column: its heading, what it shows, what it sorts by, where its text stands."""

    title: str
    text: Callable[[LibraryEntry], str]
    sort: Callable[[LibraryEntry], Any]
    align: Qt.AlignmentFlag = LEFT
    tooltip: str = ""


def _number(value: float | None) -> float:
    """Unknown and NaN sort below every number."""
    return -math.inf if value is None or math.isnan(value) else value


def _title(entry: LibraryEntry) -> str:
    return title_for_reader(entry.title, entry.path, translated)


COLUMNS = (
    RunColumn(L_("Title"), lambda e: _title(e), lambda e: _title(e).casefold()),
    RunColumn(L_("Precision"), lambda e: e.precision or UNKNOWN, lambda e: e.precision),
    RunColumn(L_("Status"), status_text, status_text),
    RunColumn(FIGURES["train_loss"].title, lambda e: loss_text(e.final_loss), lambda e: _number(e.final_loss), RIGHT,
           L_("Mean training loss of the last epoch; of the whole run where it is shorter")),
    RunColumn(L_("Metric"), metric_text, lambda e: _number(e.val_accuracy), RIGHT,
           L_("On the validation set at the end; the accuracy where nothing else is said")),
    RunColumn(L_("Steps"), lambda e: str(e.steps) if not e.error else UNKNOWN, lambda e: e.steps, RIGHT),
    RunColumn(L_("Date"), lambda e: date_text(e.created), lambda e: e.created),
    RunColumn("Note", lambda e: translated(e.error) or e.note, lambda e: (e.error or e.note).casefold()),
    RunColumn(L_("Diagnosis"), lambda _: UNKNOWN, lambda _: 0,
              tooltip=L_("Findings of Diagnose, the gravest named; sorting puts broken runs first")),
    RunColumn(L_("Place"), lambda e: e.place or translated(HERE), lambda e: e.place,
              tooltip=L_("The machine that trained it, as Hardware > Places names it")),
)  # fmt: skip
GROUPS: dict[str, Callable[[LibraryEntry], str]] = {
    L_("nothing"): lambda _: "",
    L_("precision"): lambda e: e.precision or UNKNOWN,
    L_("status"): status_text,
    L_("place"): lambda e: e.place or translated(HERE),
    L_("tag"): lambda e: " ".join(tags_of(e.note)) or _("no tag"),
    L_("day"): lambda e: date_text(e.created)[:10],
}
TITLE, STATUS, STEPS, DATE, NOTE, DIAGNOSIS, PLACE = 0, 2, 5, 6, 7, 8, 9


class RunTable(QAbstractTableModel):
    """Rows are entries, in the order of `sort`. Editing calls `edit(entry, column, text)`: whether it was done.

    It sorts by itself: a proxy would ask for two values in each comparison, each time through Qt, which with thousands
    of runs takes seconds while another thread reads files.
    """

    def __init__(self, edit: Callable[[LibraryEntry, int, str], bool], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._edit = edit
        self._given: list[LibraryEntry] = []  # in the order in which they came
        self._entries: list[LibraryEntry] = []  # as sorted
        self._rows: dict[Path, int] = {}
        self._sorted_by, self._order = -1, Qt.SortOrder.AscendingOrder
        self._group = GROUPS["nothing"]
        self._icons: dict[str, QIcon] = {}
        self._current: Path | None = None
        self._diagnoses: dict[Path, Diagnosis] = {}
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

    def mark(self, path: Path | None) -> None:
        """Set the title of the run of this file in bold."""
        self._current = path.absolute() if path is not None else None
        if self._entries:
            self.dataChanged.emit(self.index(0, TITLE), self.index(len(self._entries) - 1, TITLE))

    def set_diagnosis(self, path: Path, diagnosis: Diagnosis) -> None:
        """Show what was found in a run."""
        self._diagnoses[path] = diagnosis
        if (row := self.row_of(path)) is not None:
            self.dataChanged.emit(self.index(row, DIAGNOSIS), self.index(row, DIAGNOSIS))

    def show_entries(self, entries: Sequence[LibraryEntry]) -> None:
        if list(entries) != self._given:
            self.beginResetModel()
            self._given = list(entries)
            self._arrange()
            self.endResetModel()

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        """Sort by this column, now and whatever entries come; by -1 as they come. Groups stay together."""
        self._sorted_by, self._order = column, order
        self._rearrange()

    def group_by(self, name: str) -> None:
        """Put runs of the same value of a key of `GROUPS` together; the vertical header then names the value."""
        self._group = GROUPS[name]
        self._rearrange()

    def _rearrange(self) -> None:
        self.layoutAboutToBeChanged.emit()
        before = self.persistentIndexList()
        paths = [self._entries[index.row()].path for index in before]
        self._arrange()
        after = [self.index(self._rows[path], index.column()) for path, index in zip(paths, before, strict=True)]
        self.changePersistentIndexList(before, after)
        self.layoutChanged.emit()

    def _arrange(self) -> None:
        self._entries = self._given
        if self._sorted_by >= 0:
            down = self._order == Qt.SortOrder.DescendingOrder
            self._entries = sorted(self._given, key=self._sort_key(), reverse=down)
        self._entries = sorted(self._entries, key=self._group)
        self._rows = {entry.path: row for row, entry in enumerate(self._entries)}

    def _sort_key(self) -> Callable[[LibraryEntry], Any]:
        if self._sorted_by == DIAGNOSIS:
            return lambda entry: urgency(self._diagnoses.get(entry.path))
        return COLUMNS[self._sorted_by].sort

    def entry(self, row: int) -> LibraryEntry:
        return self._entries[row]

    def row_of(self, path: Path) -> int | None:
        return self._rows.get(path)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 (Qt's signature)
        return 0 if parent.isValid() else len(self._entries)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(COLUMNS)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation != Qt.Orientation.Horizontal:
            return self._group(self._entries[section]) if role == Qt.ItemDataRole.DisplayRole else None
        column = COLUMNS[section]
        answers = {
            Qt.ItemDataRole.DisplayRole: p_("of a run", "Note") if section == NOTE else translated(column.title),
            Qt.ItemDataRole.ToolTipRole: plain_tip(translated(column.tooltip)) or None,
            Qt.ItemDataRole.TextAlignmentRole: column.align,
        }
        return answers.get(Qt.ItemDataRole(role))

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        entry, column = self._entries[index.row()], COLUMNS[index.column()]
        kind = Qt.ItemDataRole
        if index.column() == DIAGNOSIS and (diagnosis := self._diagnoses.get(entry.path)) is not None:
            return _diagnosis_data(diagnosis, role)
        if role in (kind.DisplayRole, kind.EditRole):
            return column.text(entry)
        if role == kind.TextAlignmentRole:
            return column.align
        if role == kind.ToolTipRole:
            return plain_tip(f"{translated(entry.error) or entry.note or _title(entry)}\n{entry.path}")
        if role == kind.DecorationRole and index.column() == STATUS:
            return self._icons.get("unreadable" if entry.error else entry.status or "")
        if role == kind.FontRole and index.column() == TITLE and entry.path.absolute() == self._current:
            font = QFont()
            font.setBold(True)
            return font
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


def _diagnosis_data(diagnosis: Diagnosis, role: int) -> Any:
    match role:
        case Qt.ItemDataRole.DisplayRole:
            return short_verdict(diagnosis)
        case Qt.ItemDataRole.ToolTipRole:
            return plain_tip(translated(diagnosis.sentence))
        case Qt.ItemDataRole.ForegroundRole:
            return QColor(verdict_colour(diagnosis))
    return None


class RunFilter(QSortFilterProxyModel):
    """Shows the runs that hold every word, in whatever column or in the file name; the table below it sorts."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._words: list[str] = []
        self._tag = ""

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        self.sourceModel().sort(column, order)

    def set_words(self, text: str) -> None:
        self.beginResetModel()
        self._words = text.casefold().split()
        self.endResetModel()

    def set_tag(self, tag: str) -> None:
        """Show only runs with this tag; "" for all."""
        self.beginResetModel()
        self._tag = tag
        self.endResetModel()

    def filterAcceptsRow(self, row: int, parent: Index) -> bool:
        if not self._words and not self._tag:
            return True
        model = self.sourceModel()
        assert isinstance(model, RunTable)
        entry = model.entry(row)
        if self._tag and self._tag not in tags_of(entry.note):
            return False
        text = " ".join([*(column.text(entry) for column in COLUMNS), entry.path.name]).casefold()
        return all(word in text for word in self._words)
