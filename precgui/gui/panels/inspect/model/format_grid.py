"""The table tensor x format as a heat map: any number of rows, each cell made when it is looked at."""

from __future__ import annotations

import math
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, QSortFilterProxyModel, Qt
from PySide6.QtGui import QColor

from precgui.formats.checkpoints.survey import FIGURES, TensorSurvey
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.kit.table import LEFT, RIGHT
from precgui.gui.theme import themes
from precgui.planner.ledger import mib
from precgui.runs.models.model_file import ModelScan
from precgui.sanitize import visible_name
from precgui.words import L_, _, p_, translated

SORT_ROLE = Qt.ItemDataRole.UserRole
NAME, NUMBERS, OUTLIERS, FIRST_FORMAT = range(4)
VIEWS = {
    "sqnr_db": L_("Signal to noise, dB"), "bytes": L_("Bytes"), "worst": L_("Largest error"),
    "zeroed": L_("Became zero"), "clipped": L_("Cut off"), "cosine": L_("1 − cosine"),
}  # fmt: skip
_GOOD_DB, _BAD_DB = 45.0, 5.0
_MOST_COLOUR = 0.55
_NO_INDEX = QModelIndex()
_Index = QModelIndex | QPersistentModelIndex


class FormatGridModel(QAbstractTableModel):
    """A row for each scanned tensor. `view` is which of VIEWS the cells show."""

    def __init__(self) -> None:
        super().__init__()
        self.scan: ModelScan | None = None
        self.view = "sqnr_db"

    def show_scan(self, scan: ModelScan | None) -> None:
        """Show another scan."""
        self.beginResetModel()
        self.scan = scan
        self.endResetModel()

    def show_view(self, view: str) -> None:
        """Show another figure."""
        self.view = view
        self.redraw()

    def redraw(self) -> None:
        """Announce that all cells have changed."""
        last = self.index(self.rowCount() - 1, self.columnCount() - 1)
        self.dataChanged.emit(self.index(0, 0), last)

    def survey(self, row: int) -> TensorSurvey:
        assert self.scan is not None
        return self.scan.surveys[row]

    def rowCount(self, parent: _Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() or self.scan is None else len(self.scan.surveys)

    def columnCount(self, parent: _Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() or self.scan is None else FIRST_FORMAT + len(self.scan.formats)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation != Qt.Orientation.Horizontal or self.scan is None:
            return None
        if section < FIRST_FORMAT:
            return (
                (_("Tensor"), _("Numbers"), _("Outlier columns"))[section]
                if role == Qt.ItemDataRole.DisplayRole
                else None
            )
        fmt = self.scan.formats[section - FIRST_FORMAT]
        if role == Qt.ItemDataRole.DisplayRole:
            return fmt.name
        return plain_tip(translated(fmt.title)) if role == Qt.ItemDataRole.ToolTipRole else None

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        each, column = self.survey(index.row()), index.column()
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return LEFT if column in (NAME, OUTLIERS) else RIGHT
        if column < FIRST_FORMAT:
            return _fact(each, column, role)
        value = self._value(each, column - FIRST_FORMAT)
        if role == SORT_ROLE:
            return math.inf if math.isnan(value) else value
        if role == Qt.ItemDataRole.DisplayRole:
            return figure_text(self.view, value)
        if role == Qt.ItemDataRole.BackgroundRole:
            return self._colour(each, column - FIRST_FORMAT)
        if role == Qt.ItemDataRole.ToolTipRole:
            return self._tip(each, column - FIRST_FORMAT)
        return None

    def _value(self, each: TensorSurvey, place: int) -> float:
        value = float(each.figures[place, FIGURES.index(self.view)])
        return 1 - value if self.view == "cosine" else value

    def _colour(self, each: TensorSurvey, place: int) -> QColor | None:
        """By signal to noise, or by the share of what was lost; none for bytes."""
        value, theme = self._value(each, place), themes().theme
        if math.isnan(value) or self.view in ("bytes", "worst"):
            return None
        if self.view in ("zeroed", "clipped"):
            share = (value / max(each.size, 1)) ** 0.25
        elif self.view == "cosine":
            share = min(max(value, 0.0) / 0.05, 1.0) ** 0.5
        else:
            share = min(max((_GOOD_DB - value) / (_GOOD_DB - _BAD_DB), 0.0), 1.0)
        return QColor(theme.blend(theme.error, _MOST_COLOUR * min(share, 1.0)))

    def _tip(self, each: TensorSurvey, place: int) -> str:
        assert self.scan is not None
        fmt = self.scan.formats[place]
        if math.isnan(each.figures[place, 0]):
            text = _("{tensor} has no form in {format}: its rows are no multiple of {group}.")
            return plain_tip(text.format(tensor=visible_name(each.name), format=fmt.name, group=fmt.group))
        parts = (
            f"{translated(VIEWS[name]).lower()} {figure_text(name, 1 - value if name == 'cosine' else value)}"
            for name, value in zip(FIGURES, each.figures[place].tolist(), strict=True)
        )
        text = _("{tensor} in {format}: {figures}")
        return plain_tip(text.format(tensor=visible_name(each.name), format=fmt.name, figures=_(", ").join(parts)))


def _fact(each: TensorSurvey, column: int, role: int) -> Any:
    facts = visible_name(each.name), f"{each.size:,}".replace(",", "\u202f"), outlier_text(each)
    if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
        return plain_tip(facts[column]) if role == Qt.ItemDataRole.ToolTipRole else facts[column]
    if role == SORT_ROLE:
        widest = each.columns[0][1] / each.usual_column if each.columns and each.usual_column else 0.0
        return (each.name, each.size, widest)[column]
    return None


def outlier_text(each: TensorSurvey, times: float = 4.0) -> str:
    """The columns that are far wider than the usual one, widest first; empty where none is."""
    wide = [place for place, peak in each.columns if peak > times * each.usual_column > 0]
    return ", ".join(map(str, wide[:3])) + (" ..." if len(wide) > 3 else "")


def figure_text(view: str, value: float) -> str:
    """A figure as a cell shows it."""
    if math.isnan(value):
        return "–"
    if view == "sqnr_db":
        return p_("of a format", "exact") if value == math.inf else f"{value:.1f}"
    if view == "bytes":
        return mib(value)
    return f"{value:.2e}" if view == "cosine" else f"{value:.4g}" if view == "worst" else f"{value:.0f}"


class FormatGridProxy(QSortFilterProxyModel):
    """Sorts by numbers and keeps rows whose name holds a text."""

    def __init__(self, model: FormatGridModel) -> None:
        super().__init__()
        self.setSourceModel(model)
        self.setSortRole(SORT_ROLE)
        self.setFilterCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        self.setFilterKeyColumn(NAME)
