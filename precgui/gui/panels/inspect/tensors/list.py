"""The view of the list of tensors: numbers, lines, sorting, filtering, copying."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QModelIndex, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import (
    QAction,
    QColor,
    QGuiApplication,
    QKeySequence,
    QPainter,
    QPen,
    QPixmap,
    QPolygonF,
    QRegion,
    QResizeEvent,
)
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QWidget,
)

from precgui.gui.panels.inspect.tensors.model import (
    AMAX,
    BAD,
    CHANGED,
    LOST,
    NAME,
    OVERFLOW,
    SAFE,
    SNR,
    TREND,
    UNDERFLOW,
    Index,
    TensorOrder,
    TensorTable,
)
from precgui.gui.theme import themes
from precgui.words import _

_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
_LEAST_NAME = 22  # characters of a name that have room however narrow the list is
_TREND_PX, _MARGIN_PX, _HEAD_PX = 60, 14, 24
# The widest text of each column of numbers that is to be expected.
_WIDEST = {UNDERFLOW: "< 0.01 %", OVERFLOW: "< 0.01 %", SNR: "overflow", SAFE: "2⁻¹²⁷", AMAX: "8.88e-38",
           CHANGED: "< 0.01 %", **dict.fromkeys(LOST.values(), "99.99 %"), BAD: "step 10 000"}  # fmt: skip


class _Cell(QStyledItemDelegate):
    """A number, painted without asking the model for the six roles that it does not have: the slider moves hundreds."""

    def __init__(self, model: TensorTable, order: TensorOrder, parent: QWidget) -> None:
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
        painter.drawText(option.rect.adjusted(5, 0, -5, 0), _RIGHT, self.model.text(row, column))

    def draw_ground(self, painter: QPainter, option: QStyleOptionViewItem) -> None:
        """Marks the chosen row."""
        widget = option.widget
        widget.style().drawPrimitive(QStyle.PrimitiveElement.PE_PanelItemViewItem, option, painter, widget)

    @staticmethod
    def _colour(column: int, value: float, *, chosen: bool) -> QColor:
        theme = themes().theme
        if column in (UNDERFLOW, OVERFLOW) and value > 0.01 and not chosen:
            return QColor(theme.error if column == OVERFLOW else theme.warning)
        if column in LOST.values() and value > 0.5 and not chosen:
            return QColor(theme.warning)
        if column == BAD and not np.isnan(value) and not chosen:
            return QColor(theme.error)
        return QColor(theme.text)


class _Trend(_Cell):
    """A line through the largest magnitudes of a tensor, drawn once for each size and colour."""

    def __init__(self, model: TensorTable, order: TensorOrder, parent: QWidget) -> None:
        super().__init__(model, order, parent)
        self._drawn: dict[tuple[int, int, int, str], QPixmap] = {}
        for signal in (model.modelReset, model.refreshed):
            signal.connect(self._drawn.clear)

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
        self.model_ = model
        self.order = TensorOrder(model, self)
        self.setModel(self.order)
        self.setAccessibleName(_("Tensors"))
        cell = _Cell(model, self.order, self)
        for column in range(UNDERFLOW, TREND):
            self.setItemDelegateForColumn(column, cell)
        self.setItemDelegateForColumn(TREND, _Trend(model, self.order, self))
        model.predicted.connect(self._repaint_moved)
        model.refreshed.connect(self.viewport().update)
        model.modelReset.connect(self._fit_name)
        self.setSortingEnabled(True)
        self.horizontalHeader().setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)  # names differ at their ends
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + 12)
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setStretchLastSection(False)  # the names take what is left
        self._fit(header)
        self._offer()

    def _fit(self, header: QHeaderView) -> None:
        for column, text in _WIDEST.items():
            advance, title = self.fontMetrics().horizontalAdvance, self.model_.headerData(column, header.orientation())
            header.resizeSection(column, max(advance(text) + _MARGIN_PX, advance(title) + _HEAD_PX))
        header.resizeSection(TREND, _TREND_PX)
        header.moveSection(TREND, NAME + 1)  # so that a narrow list still has it
        for column in (
            CHANGED,
            *reversed(LOST.values()),
            BAD,
        ):  # and what only some runs have, where something broke first of all
            header.moveSection(header.visualIndex(column), NAME + 1)

    def _offer(self) -> None:
        """Actions on the list, by key and by the context menu."""
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        actions = (
            (_("&Copy row"), self.copy_row),
            (_("Copy &name"), self.copy_name),
            (_("Copy &list"), self.copy_all),
        )
        for text, does in actions:
            action = QAction(text, self)
            action.triggered.connect(does)
            self.addAction(action)
        copy = self.actions()[0]
        copy.setShortcut(QKeySequence.StandardKey.Copy)
        copy.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)

    def copy_row(self) -> None:
        """The numbers of the chosen row, with their headings, as a spreadsheet takes them."""
        self._copy([self.chosen()])

    def copy_all(self) -> None:
        """All rows that are shown, in their order."""
        self._copy(self._source(place) for place in range(self.order.rowCount()))

    def copy_name(self) -> None:
        if self.model_.names:
            QGuiApplication.clipboard().setText(self.model_.names[self.chosen()])

    def _copy(self, rows: Iterable[int]) -> None:
        if self.model_.names:
            QGuiApplication.clipboard().setText("\n".join([self.model_.heading(), *map(self.model_.line, rows)]))

    def show_columns(self, *, updates: bool) -> None:
        """Hide the columns that have nothing to say."""
        self.setColumnHidden(CHANGED, not updates)
        for column in LOST.values():
            self.setColumnHidden(column, not (updates and self.model_.has(column)))
        self.setColumnHidden(BAD, not self.model_.has(BAD))
        self._fit_name()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_name()

    def _fit_name(self) -> None:
        """The names have what the other columns leave."""
        others = sum(self.columnWidth(c) for c in range(UNDERFLOW, TREND + 1) if not self.isColumnHidden(c))
        least = self.fontMetrics().averageCharWidth() * _LEAST_NAME
        self.horizontalHeader().resizeSection(NAME, max(self.viewport().width() - others, least))

    def _repaint_moved(self, moved: dict[int, NDArray[np.bool_]]) -> None:
        """The cells in sight whose number has changed, and nothing else."""
        region, height = QRegion(), self.viewport().height()
        first, last = self.rowAt(0), self.rowAt(height - 1)
        for place in range(max(first, 0), (last if last >= 0 else self.order.rowCount() - 1) + 1):
            row = self._source(place)
            for column, rows in moved.items():
                if rows[row]:
                    top, left = self.rowViewportPosition(place), self.columnViewportPosition(column)
                    region += QRect(left, top, self.columnWidth(column), self.rowHeight(place))
        if not region.isEmpty():
            self.viewport().update(region)

    def _source(self, place: int) -> int:
        return self.order.mapToSource(self.order.index(place, NAME)).row()

    def chosen(self) -> int:
        """The row of the model that is chosen, 0 when none is."""
        rows: Sequence[QModelIndex] = self.selectionModel().selectedRows()
        return self.order.mapToSource(rows[0]).row() if rows else 0

    def choose(self, row: int) -> None:
        place = self.order.mapFromSource(self.order.sourceModel().index(row, 0))
        self.selectRow(place.row())
