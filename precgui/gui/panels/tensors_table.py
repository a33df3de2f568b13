"""The list of tensors: what a format and scale would do to each, its statistics, and its largest value over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import (
    QAbstractTableModel,
    QModelIndex,
    QPersistentModelIndex,
    QPointF,
    QRectF,
    QSortFilterProxyModel,
    Qt,
)
from PySide6.QtGui import QColor, QPainter, QPen, QPolygonF
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QWidget,
)

from precgui.gui.panels.tensors_view import View
from precgui.gui.plots.signals import power_label
from precgui.gui.theme import themes
from precgui.runs.whatif import Prediction

Index = QModelIndex | QPersistentModelIndex
SORT = Qt.ItemDataRole.UserRole
SERIES = Qt.ItemDataRole.UserRole + 1
NAME, UNDERFLOW, OVERFLOW, SNR, SAFE, AMAX, CHANGED, TREND = range(8)
_TITLES = (
    ("Tensor", "Parameter, module or optimizer state"),
    ("To zero", "Share of all elements that are not zero and would become zero"),
    ("Overflow", "Share of all elements that would not fit into the format"),
    ("SNR", "Foretold ratio of signal to rounding noise"),
    ("Safe scale", "The largest power of two as loss scale that lets nothing overflow"),
    ("Largest", "The largest finite magnitude over the run"),
    ("Changed", "Share of the elements that a step changes, on average; of updates only"),
    ("Over the steps", "Largest magnitude in each recorded step, logarithmic"),
)
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
NOTHING = "–"


class TensorTable(QAbstractTableModel):
    """Rows are the tensors of a view; numbers that the slider moves come in by `predict`."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.names: tuple[str, ...] = ()
        self._columns: dict[int, NDArray[np.float64]] = {}
        self._series: NDArray[np.float64] = np.empty((0, 0))

    @np.errstate(all="ignore")
    def show_view(self, view: View | None) -> None:
        self.beginResetModel()
        self.names = view.names if view else ()
        self._columns.clear()
        if view is not None:
            amax = view.stat("amax")
            changed = view.stat("changed")
            recorded = np.isfinite(changed).sum(0)
            self._columns[AMAX] = np.fmax.reduce(amax, 0)
            self._columns[CHANGED] = np.where(recorded > 0, np.nansum(changed, 0) / recorded, np.nan)
            self._series = np.log2(np.where(amax > 0, amax, np.nan)).T
        self.endResetModel()

    def predict(self, told: Prediction | None) -> None:
        """Show a prediction for each tensor, or none."""
        if told is not None:
            self._columns |= {
                UNDERFLOW: told.underflow,
                OVERFLOW: told.overflow,
                SNR: told.snr_db,
                SAFE: told.safe_scale,
            }
        if self.names:
            self.dataChanged.emit(self.index(0, UNDERFLOW), self.index(len(self.names) - 1, SAFE))

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 (Qt's signature)
        return 0 if parent.isValid() else len(self.names)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(_TITLES)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation != Qt.Orientation.Horizontal:
            return None
        title, told = _TITLES[section]
        align = _LEFT if section in (NAME, TREND) else _RIGHT
        kind = Qt.ItemDataRole
        answers = {kind.DisplayRole: title, kind.ToolTipRole: told, kind.TextAlignmentRole: align}
        return answers.get(Qt.ItemDataRole(role))

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row, column = index.row(), index.column()
        kind = Qt.ItemDataRole
        if role == SERIES:
            return self._series[row]
        if role == kind.TextAlignmentRole:
            return _LEFT if column == NAME else _RIGHT
        if column == NAME:
            return self.names[row] if role in (kind.DisplayRole, kind.ToolTipRole, SORT) else None
        value = self._value(row, column)
        if role == SORT:
            return -np.inf if np.isnan(value) else value
        if role == kind.ForegroundRole and column in (UNDERFLOW, OVERFLOW) and value > 0.01:
            return QColor(themes().theme.error if column == OVERFLOW else themes().theme.warning)
        return text_of(column, value) if role == kind.DisplayRole else None

    def _value(self, row: int, column: int) -> float:
        values = self._columns.get(AMAX if column == TREND else column)
        return float("nan") if values is None else float(values[row])


def text_of(column: int, value: float) -> str:
    """A number as the list shows it."""
    if column == TREND or np.isnan(value):
        return "" if column == TREND else NOTHING
    if column == SNR:
        return snr_text(value)
    if column == SAFE:
        return power_label(round(value), 2)
    if column == AMAX:
        return f"{value:.2e}"
    return share_text(value)


def snr_text(value: float) -> str:
    return "overflow" if value == -np.inf else "exact" if value == np.inf else f"{value:.0f} dB"


def share_text(share: float) -> str:
    """A share of 1 with the digits that matter: 0, below 0.01 %, 3.2 %."""
    percent = 100 * share
    if percent == 0:
        return "0 %"
    return "< 0.01 %" if percent < 0.01 else f"{percent:.2f} %" if percent < 10 else f"{percent:.0f} %"


class _Trend(QStyledItemDelegate):
    """A line through the largest magnitudes of a tensor."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        super().paint(painter, option, index)
        values = index.data(SERIES)
        places = np.flatnonzero(np.isfinite(values))
        if len(places) < 2:
            return
        heights = values[places]
        low, high = float(heights.min()), float(heights.max())
        area = QRectF(option.rect).adjusted(8, 5, -8, -5)
        x = area.left() + area.width() * places / max(len(values) - 1, 1)
        y = area.bottom() - area.height() * (heights - low) / max(high - low, 1.0)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(themes().theme.accent), 1.3))
        painter.drawPolyline(QPolygonF([QPointF(*point) for point in zip(x.tolist(), y.tolist(), strict=True)]))
        painter.restore()


class TensorList(QTableView):
    """The table, sortable by every column; one row is chosen."""

    def __init__(self, model: TensorTable, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.order = QSortFilterProxyModel(self)
        self.order.setSourceModel(model)
        self.order.setSortRole(SORT)
        self.order.setDynamicSortFilter(False)  # a slider that moves must not shuffle the rows
        self.setModel(self.order)
        self.setAccessibleName("Tensors")
        self.setItemDelegateForColumn(TREND, _Trend(self))
        self.setSortingEnabled(True)
        self.horizontalHeader().setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + 12)
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setStretchLastSection(True)
        self._fit(header)

    def _fit(self, header: QHeaderView) -> None:
        width = self.fontMetrics().averageCharWidth()
        for column, characters in enumerate((24, 14, 14, 11, 15, 12, 12)):
            header.resizeSection(column, width * characters)

    def chosen(self) -> int:
        """The row of the model that is chosen, 0 when none is."""
        rows: Sequence[QModelIndex] = self.selectionModel().selectedRows()
        return self.order.mapToSource(rows[0]).row() if rows else 0

    def choose(self, row: int) -> None:
        place = self.order.mapFromSource(self.order.sourceModel().index(row, 0))
        self.selectRow(place.row())
