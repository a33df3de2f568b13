"""The list of tensors: what a format and scale would do to each, its statistics, and its largest value over time."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import (
    QAbstractTableModel,
    QModelIndex,
    QPersistentModelIndex,
    QPointF,
    QRect,
    QRectF,
    QSize,
    QSortFilterProxyModel,
    Qt,
    Signal,
)
from PySide6.QtGui import QColor, QPainter, QPen, QPixmap, QPolygonF, QRegion
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyle,
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
NAME, UNDERFLOW, OVERFLOW, SNR, SAFE, AMAX, CHANGED, TREND = range(8)
_TITLES = (
    ("Tensor", "Parameter, module or optimizer state"),
    ("To zero", "Share of all elements that are not zero and would become zero"),
    ("Overflow", "Share of all elements that would not fit into the format"),
    ("SNR", "Foretold ratio of signal to rounding noise"),
    ("Safe scale", "The largest power of two as loss scale that lets nothing overflow"),
    ("Largest", "The largest finite magnitude over the run"),
    ("Changed", "Share of the elements that a step changes, on average; of updates only"),
    ("Trend", "Largest magnitude in each recorded step, logarithmic"),
)
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
NOTHING = "–"


class TensorTable(QAbstractTableModel):
    """Rows are the tensors of a view; numbers that the slider moves come in by `predict`."""

    predicted = Signal(object)  # by column, which rows have another number than before

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
        """Show a prediction for each tensor, or none.

        Says so by `predicted`, not by `dataChanged`, upon which Qt paints the whole list anew, lines and all.
        """
        if told is None:
            return
        columns = {UNDERFLOW: told.underflow, OVERFLOW: told.overflow, SNR: told.snr_db, SAFE: told.safe_scale}
        moved = {column: _moved(self._columns.get(column), values) for column, values in columns.items()}
        self._columns |= columns
        self.predicted.emit(moved)

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
        if role == kind.TextAlignmentRole:
            return _LEFT if column == NAME else _RIGHT
        if column == NAME:
            return self.names[row] if role in (kind.DisplayRole, kind.ToolTipRole, SORT) else None
        value = self.value(row, column)
        if role == SORT:
            return -np.inf if isnan(value) else value
        return text_of(column, value) if role == kind.DisplayRole else None

    def value(self, row: int, column: int) -> float:
        """The number of a cell, NaN where there is none."""
        values = self._columns.get(AMAX if column == TREND else column)
        return float("nan") if values is None else float(values[row])

    def heights(self, row: int) -> NDArray[np.float64]:
        """log2 of the largest magnitude in each recorded row."""
        own: NDArray[np.float64] = self._series[row]
        return own


def _moved(before: NDArray[np.float64] | None, now: NDArray[np.float64]) -> NDArray[np.bool_]:
    if before is None:
        return np.ones(len(now), bool)
    moved: NDArray[np.bool_] = (before != now) & ~(np.isnan(before) & np.isnan(now))
    return moved


def text_of(column: int, value: float) -> str:
    """A number as the list shows it."""
    if column == TREND or isnan(value):
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


class _Cell(QStyledItemDelegate):
    """A number, painted without asking the model for the six roles that it does not have: the slider moves hundreds."""

    def __init__(self, model: TensorTable, order: QSortFilterProxyModel, parent: QWidget) -> None:
        super().__init__(parent)
        self.model, self.order = model, order

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        state = option.state
        chosen = bool(state & QStyle.StateFlag.State_Selected)
        if chosen or state & (QStyle.StateFlag.State_MouseOver | QStyle.StateFlag.State_HasFocus):
            self.draw_ground(painter, option)
        row, column = self.order.mapToSource(index).row(), index.column()
        value = self.model.value(row, column)
        painter.setPen(self._colour(column, value, chosen=chosen))
        painter.drawText(option.rect.adjusted(5, 0, -5, 0), _RIGHT, text_of(column, value))

    def draw_ground(self, painter: QPainter, option: QStyleOptionViewItem) -> None:
        """What tells the chosen row from the others."""
        widget = option.widget
        widget.style().drawPrimitive(QStyle.PrimitiveElement.PE_PanelItemViewItem, option, painter, widget)

    @staticmethod
    def _colour(column: int, value: float, *, chosen: bool) -> QColor:
        theme = themes().theme
        if column in (UNDERFLOW, OVERFLOW) and value > 0.01 and not chosen:
            return QColor(theme.error if column == OVERFLOW else theme.warning)
        return QColor(theme.text)


class _Trend(_Cell):
    """A line through the largest magnitudes of a tensor, drawn once for each size and colour."""

    def __init__(self, model: TensorTable, order: QSortFilterProxyModel, parent: QWidget) -> None:
        super().__init__(model, order, parent)
        self._drawn: dict[tuple[int, int, int, str], QPixmap] = {}
        model.modelReset.connect(self._drawn.clear)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        self.draw_ground(painter, option)
        row, size, colour = self.order.mapToSource(index).row(), option.rect.size(), themes().theme.accent
        key = (row, size.width(), size.height(), colour)
        if key not in self._drawn:
            self._drawn[key] = trend(self.model.heights(row), size, colour, option.widget.devicePixelRatioF())
        painter.drawPixmap(option.rect.topLeft(), self._drawn[key])


def trend(heights: NDArray[np.float64], size: QSize, colour: str, ratio: float) -> QPixmap:
    """A line through the finite ones of `heights`, from edge to edge."""
    picture = QPixmap(size * ratio)
    picture.setDevicePixelRatio(ratio)
    picture.fill(Qt.GlobalColor.transparent)
    places = np.flatnonzero(np.isfinite(heights))
    if len(places) < 2:
        return picture
    low, high = float(heights[places].min()), float(heights[places].max())
    area = QRectF(8, 5, size.width() - 16, size.height() - 10)
    x = area.left() + area.width() * places / max(len(heights) - 1, 1)
    y = area.bottom() - area.height() * (heights[places] - low) / max(high - low, 1.0)
    painter = QPainter(picture)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(QPen(QColor(colour), 1.3))
    painter.drawPolyline(QPolygonF([QPointF(*point) for point in zip(x.tolist(), y.tolist(), strict=True)]))
    painter.end()
    return picture


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
        cell = _Cell(model, self.order, self)
        for column in range(UNDERFLOW, TREND):
            self.setItemDelegateForColumn(column, cell)
        self.setItemDelegateForColumn(TREND, _Trend(model, self.order, self))
        model.predicted.connect(self._repaint_moved)
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
        for column, characters in enumerate((22, 11, 13, 10, 14, 12, 12, 11)):
            header.resizeSection(column, width * characters)
        header.moveSection(TREND, NAME + 1)  # so that a narrow list still has it

    def _repaint_moved(self, moved: dict[int, NDArray[np.bool_]]) -> None:
        """The cells in sight whose number has changed, and nothing else."""
        region, height = QRegion(), self.viewport().height()
        first, last = self.rowAt(0), self.rowAt(height - 1)
        for place in range(max(first, 0), (last if last >= 0 else self.order.rowCount() - 1) + 1):
            row = self.order.mapToSource(self.order.index(place, NAME)).row()
            for column, rows in moved.items():
                if rows[row]:
                    top, left = self.rowViewportPosition(place), self.columnViewportPosition(column)
                    region += QRect(left, top, self.columnWidth(column), self.rowHeight(place))
        if not region.isEmpty():
            self.viewport().update(region)

    def chosen(self) -> int:
        """The row of the model that is chosen, 0 when none is."""
        rows: Sequence[QModelIndex] = self.selectionModel().selectedRows()
        return self.order.mapToSource(rows[0]).row() if rows else 0

    def choose(self, row: int) -> None:
        place = self.order.mapFromSource(self.order.sourceModel().index(row, 0))
        self.selectRow(place.row())
