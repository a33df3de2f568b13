"""Tables of finished cells: one model for all of them, and the view that shows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt
from PySide6.QtGui import QColor, QIcon, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QTableView, QWidget

from precgui.gui.kit.column_widths import ColumnWidths
from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.theme import severity_colour, themes

SEVERITY = {
    "missed": "error", "undecided": "warning", "does not hold here": "error", "not decided here": "warning",
}  # fmt: skip
LEAST_LAST_PX = 160
ICON_PX = 24  # of a cell, with its space, to find the widest one
MEASURED_ROWS = 64  # for the widths of columns
LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
_NO_INDEX = QModelIndex()
_Index = QModelIndex | QPersistentModelIndex


@dataclass(frozen=True)
class Cell:
    """A text with what it is shown as. `tip` None is the text itself, so that it can be read whole; "" is none.

    Colours are `#rrggbb`, "" for those of the table.
    """

    text: str
    tip: str | None = None
    colour: str = ""
    background: str = ""
    align: Qt.AlignmentFlag | None = None
    icon: QIcon | None = None


class CellModel(QAbstractTableModel):
    """Rows of cells under titles. Only cells that have changed are announced while the number of rows stays."""

    def __init__(self, titles: Sequence[str | Cell]) -> None:
        super().__init__()
        self.titles = _cells(titles)
        self.rows: list[tuple[Cell, ...]] = []

    def set_titles(self, titles: Sequence[str | Cell]) -> None:
        """Name the columns; rows of another number of cells go."""
        if (requested := _cells(titles)) == self.titles:
            return
        if len(requested) == len(self.titles):
            self.titles = requested
            self.headerDataChanged.emit(Qt.Orientation.Horizontal, 0, len(requested) - 1)
            return
        self.beginResetModel()
        self.titles, self.rows = requested, []
        self.endResetModel()

    def show_rows(self, rows: Iterable[Sequence[str | Cell]]) -> None:
        """Show these rows in the place of those before."""
        requested = [_cells(row) for row in rows]
        self._take_count(len(requested))
        for place, (before, now) in enumerate(zip(self.rows, requested, strict=True)):
            self.rows[place] = now
            for column, cell in enumerate(now):
                if column >= len(before) or before[column] != cell:
                    changed = self.index(place, column)
                    self.dataChanged.emit(changed, changed)

    def _take_count(self, count: int) -> None:
        have = len(self.rows)
        if count > have:
            self.beginInsertRows(_NO_INDEX, have, count - 1)
            self.rows += [()] * (count - have)
            self.endInsertRows()
        elif count < have:
            self.beginRemoveRows(_NO_INDEX, count, have - 1)
            del self.rows[count:]
            self.endRemoveRows()

    def rowCount(self, parent: _Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: _Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() else len(self.titles)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation == Qt.Orientation.Horizontal and section < len(self.titles):
            return _shown(self.titles[section], role)
        return None

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        cells = self.rows[index.row()] if index.row() < len(self.rows) else ()
        return _shown(cells[index.column()], role) if index.column() < len(cells) else None


def _cells(row: Sequence[str | Cell]) -> tuple[Cell, ...]:
    return tuple(Cell(each) if isinstance(each, str) else each for each in row)


def _shown(cell: Cell, role: int) -> Any:
    """The answer of a model for a cell and a role."""
    match role:
        case Qt.ItemDataRole.DisplayRole:
            return cell.text
        case Qt.ItemDataRole.ToolTipRole:
            return plain_tip(cell.text if cell.tip is None else cell.tip)
        case Qt.ItemDataRole.ForegroundRole if cell.colour:
            return QColor(cell.colour)
        case Qt.ItemDataRole.BackgroundRole if cell.background:
            return QColor(cell.background)
        case Qt.ItemDataRole.TextAlignmentRole if cell.align is not None:
            return cell.align
        case Qt.ItemDataRole.DecorationRole:
            return cell.icon
    return None


def verdict_cell(text: str, word: str) -> Cell:
    """A text in the colour of its verdict."""
    return Cell(text, colour=severity_colour(SEVERITY[word]) if word in SEVERITY else themes().theme.text)


class TextTable(QTableView):
    """Every cell can be read whole in its tool tip. Columns are as wide as their widest text among the first rows."""

    def __init__(self, titles: Sequence[str | Cell], about: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.cells = CellModel(titles)
        self.cells.setParent(self)
        self.setModel(self.cells)
        self.setAccessibleName(about)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setShowGrid(False)
        let_copy(self)
        self.setWordWrap(False)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + 14)
        across = self.horizontalHeader()
        across.setStretchLastSection(True)
        across.setHighlightSections(False)
        across.setDefaultAlignment(LEFT)
        self._dispensable: Sequence[int] = ()
        self._columns = ColumnWidths(self, self._text_px)
        self._columns.fitted.connect(self._fit_columns)

    def give_up(self, columns: Sequence[int]) -> None:
        """Hide these columns, the first one first, while the table is too narrow for all.

        The tool tips of the first column hold the whole row.
        """
        self._dispensable = columns

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_columns()

    def _text_px(self, column: int) -> int:
        """The width of the widest cell of a column, of which Qt measures that cell alone."""
        advance = self.fontMetrics().horizontalAdvance
        rows = [row[column] for row in self.cells.rows[:MEASURED_ROWS] if column < len(row)]
        widths = [max(map(advance, each.text.split("\n"))) + (ICON_PX if each.icon else 0) for each in rows]
        widest = widths.index(max(widths)) if widths else -1
        return self.sizeHintForIndex(self.cells.index(widest, column)).width() if widest >= 0 else 0

    def _fit_columns(self) -> None:
        if not (self._dispensable and self._columns.widths):
            return
        needed = list(self._columns.widths)
        needed[-1] = min(needed[-1], LEAST_LAST_PX)  # it is cut with an ellipsis before it goes
        left = self.viewport().width() - sum(needed)
        for column in self._dispensable:
            self.setColumnHidden(column, left < 0)
            left += needed[column] if left < 0 else 0

    def set_columns(self, titles: Sequence[str | Cell]) -> None:
        """Name the columns."""
        self.cells.set_titles(titles)
        self._columns.fit()

    def fill(self, rows: Sequence[Sequence[str | Cell]], column: int = -1, words: Sequence[str] = ()) -> None:
        """Show these rows; the cells of `column` take the colour of their word, one for each row."""
        if column >= 0:
            rows = [_with_verdict(row, column, word) for row, word in zip(rows, words, strict=True)]
        self.cells.show_rows(self._with_row_tips(rows) if self._dispensable else rows)
        self._columns.fit()

    def _with_row_tips(self, rows: Sequence[Sequence[str | Cell]]) -> list[Sequence[str | Cell]]:
        """The rows with their whole text in the tool tip of the first cell."""
        titles, told = self.titles(), list[Sequence[str | Cell]]()
        for first, *others in (_cells(row) for row in rows):
            texts = (first.text, *(f"{name}: {cell.text}" for name, cell in zip(titles[1:], others, strict=True)))
            told.append([replace(first, tip="\n".join(texts)), *others])
        return told

    def texts(self) -> list[tuple[str, ...]]:
        """The rows as they are shown."""
        return [tuple(cell.text for cell in row) for row in self.cells.rows]

    def titles(self) -> tuple[str, ...]:
        """The titles of the columns."""
        return tuple(cell.text for cell in self.cells.titles)

    def fit_rows(self, rows: int) -> None:
        """Be no higher than so many rows need."""
        self.setMaximumHeight(self.height_px(rows))

    def height_px(self, rows: int) -> int:
        """The height at which that many rows need no scroll bar."""
        remainder = self.horizontalHeader().sizeHint().height() + 2 * self.frameWidth() + 14
        return remainder + rows * self.verticalHeader().defaultSectionSize()


def _with_verdict(row: Sequence[str | Cell], column: int, word: str) -> list[str | Cell]:
    text = row[column]
    return [*row[:column], verdict_cell(text if isinstance(text, str) else text.text, word), *row[column + 1 :]]
