"""The list of tensors as a model: what a format and scale would do to each, its statistics, its largest values."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, QSortFilterProxyModel, Qt, Signal
from PySide6.QtWidgets import QWidget

from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.plots.signals import grouped, power_label
from precgui.runs.tensors.confidence import NOTHING, share_text, spread, spread_text
from precgui.runs.tensors.grouping import View
from precgui.runs.tensors.what_if import Prediction
from precgui.runs.tensors.what_if_table import LOST_FORMATS, largest, mean_share
from precgui.words import L_, Sentence, _, translated

Index = QModelIndex | QPersistentModelIndex
NAME, UNDERFLOW, OVERFLOW, SNR, SAFE, AMAX, CHANGED, LOST_BF16, LOST_FP16, LOST_E4M3, BAD, TREND = range(12)
LOST = dict(zip(LOST_FORMATS, (LOST_BF16, LOST_FP16, LOST_E4M3), strict=True))  # column by format
_UP, _DOWN = Qt.SortOrder.AscendingOrder, Qt.SortOrder.DescendingOrder


@dataclass(frozen=True)
class _Column:
    """A heading, what it says when pointed at, and the order in which the worst comes first."""

    title: str
    tooltip: str
    first: Qt.SortOrder = _DOWN


_COLUMNS = (
    _Column(L_("Tensor"), L_("Parameter, module or optimizer state"), _UP),
    _Column(L_("To zero"), L_("Share of all elements that are not zero and would become zero")),
    _Column(L_("Overflow"), L_("Share of all elements that would not fit into the format")),
    _Column(L_("SNR"), L_("Predicted ratio of signal to rounding noise"), _UP),
    _Column(L_("Safe scale"), L_("The largest power of two as loss scale that lets nothing overflow"), _UP),
    _Column(L_("Largest"), L_("The largest finite magnitude over the run")),
    _Column(L_("Changed"), L_("Share of the elements that a step changes, on average; of updates only"), _UP),
    *(
        _Column(
            Sentence("Lost {format}", format=name),
            Sentence(
                "Share of the changes below half an ulp of the weight in {format}, which weights stored in it do not "
                "take, on average; of updates only",
                format=name,
            ),
        )
        for name in ("bf16", "fp16", "e4m3")
    ),
    _Column(L_("NaN/Inf"), L_("The first recorded step with NaN or Inf"), _UP),
    _Column(L_("Trend"), L_("Largest magnitude in each recorded step, logarithmic")),
)
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter


class TensorTable(QAbstractTableModel):
    """Rows are the tensors of a view, the whole first; numbers that the slider moves come in by `predict`.

    `refreshed`: the same tensors have other numbers, because the run went on.
    """

    predicted = Signal(object)  # by column, which rows have another number than before
    refreshed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.names: tuple[str, ...] = ()
        self._view: View | None = None
        self._counts: NDArray[np.float64] = np.empty(0)
        self._columns: dict[int, NDArray[np.float64]] = {}
        self._spreads: dict[int, NDArray[np.float64]] = {}
        self._series: NDArray[np.float64] = np.empty((0, 0))

    def show_view(self, view: View | None) -> bool:
        """Whether these are other tensors than before."""
        same = view is not None and view.names == self.names
        if not same:
            self.beginResetModel()
        self._view, self.names = view, view.names if view is not None else ()
        self._columns, self._spreads = {}, {}
        if view is not None:
            self._take(view)
        if same:
            self.refreshed.emit()
        else:
            self.endResetModel()
        return not same

    @np.errstate(all="ignore")
    def _take(self, view: View) -> None:
        amax = view.amax
        self._columns = {AMAX: largest(view), CHANGED: mean_share(view, "changed"), BAD: view.first_bad_steps()}
        self._columns |= {column: mean_share(view, f"lost_{name}") for name, column in LOST.items()}
        self._series = np.log2(np.where(amax > 0, amax, np.nan)).T
        self._counts = view.what_if.count

    def has(self, column: int) -> bool:
        """Whether any tensor has a number in this column."""
        values = self._columns.get(column)
        return values is not None and not np.isnan(values).all()

    def predict(self, prediction: Prediction | None) -> None:
        """Show a prediction for each tensor, or none.

        Says so by `predicted`, not by `dataChanged`, upon which Qt paints the whole list anew, lines and all.
        """
        if prediction is None or self._view is None:
            return
        columns = {
            UNDERFLOW: prediction.underflow,
            OVERFLOW: prediction.overflow,
            SNR: prediction.snr_db,
            SAFE: prediction.safe_scale,
        }
        moved = {column: _moved(self._columns.get(column), values) for column, values in columns.items()}
        self._columns |= columns
        sampled = self._sampled
        if sampled.any():
            self._spreads = {column: spread(columns[column], sampled, self._counts) for column in (UNDERFLOW, OVERFLOW)}
        self.predicted.emit(moved)

    @property
    def _sampled(self) -> NDArray[np.float64]:
        return self._view.sampled if self._view is not None else np.zeros((0, 2))

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 (Qt's signature)
        return 0 if parent.isValid() else len(self.names)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(_COLUMNS)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation != Qt.Orientation.Horizontal:
            return None
        column, kind = _COLUMNS[section], Qt.ItemDataRole
        answers = {
            kind.DisplayRole: translated(column.title),
            kind.ToolTipRole: plain_tip(translated(column.tooltip)),
            kind.TextAlignmentRole: _LEFT if section in (NAME, TREND) else _RIGHT,
            kind.InitialSortOrderRole: column.first.value,
        }
        return answers.get(Qt.ItemDataRole(role))

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row, column = index.row(), index.column()
        kind = Qt.ItemDataRole
        if role == kind.TextAlignmentRole:
            return _LEFT if column == NAME else _RIGHT
        if role == kind.ToolTipRole:
            return plain_tip(self._tooltip(row, column))
        if role != kind.DisplayRole:
            return None
        return translated(self.names[row]) if column == NAME else self.text(row, column)

    def text(self, row: int, column: int) -> str:
        """A number as the list shows it."""
        return text_of(column, self.value(row, column))

    def value(self, row: int, column: int) -> float:
        """The number of a cell, NaN where there is none."""
        values = self._columns.get(AMAX if column == TREND else column)
        return float("nan") if values is None else float(values[row])

    def heights(self, row: int) -> NDArray[np.float64]:
        """log2 of the largest magnitude in each recorded row."""
        own: NDArray[np.float64] = self._series[row]
        return own

    def line(self, row: int) -> str:
        """A row for a spreadsheet: the name and the plain numbers, with tabs between them."""
        numbers = (self.value(row, column) for column in range(UNDERFLOW, TREND))
        return "\t".join([self.names[row], *("" if isnan(number) else f"{number!r}" for number in numbers)])

    @staticmethod
    def heading() -> str:
        """The first line above `line`."""
        share = L_("{title} (share)")
        units = {UNDERFLOW: share, OVERFLOW: share, SNR: L_("{title} (dB)"), SAFE: L_("{title} (log2)"), CHANGED: share}
        units |= dict.fromkeys(LOST.values(), share)
        titles = [translated(_COLUMNS[column].title) for column in range(BAD)]
        titles = [translated(units.get(column, "{title}")).format(title=title) for column, title in enumerate(titles)]
        return "\t".join([*titles, _("NaN/Inf (first step)")])

    def _tooltip(self, row: int, column: int) -> str:
        """A cell with all its digits."""
        value, name = self.value(row, column), translated(self.names[row])
        if column in (UNDERFLOW, OVERFLOW) and not isnan(value):
            off = float(self._spreads[column][row]) if column in self._spreads else 0.0
            count = float(self._counts[row])
            text = (
                _("{name}\n{title}: {share}, about {part} of {all} elements of all recorded steps")
                if off or (column == OVERFLOW and value)
                else _("{name}\n{title}: {share}, {part} of {all} elements of all recorded steps")
            )
            title, part = translated(_COLUMNS[column].title), grouped(round(value * count))
            return text.format(
                name=name, title=title, share=spread_text(value, off), part=part, all=grouped(round(count))
            )
        if column == SAFE and not isnan(value):
            text = _("{name}\nSafe scale: {power} = {scale}")
            return text.format(name=name, power=power_label(round(value), 2), scale=f"{2.0**value:.10g}")
        if column in (AMAX, TREND) and not isnan(value):
            return _("{name}\nLargest finite magnitude: {value}").format(name=name, value=f"{value:.8g}")
        return name


class TensorOrder(QSortFilterProxyModel):
    """The tensors that hold every word of a filter, sorted; the whole stays on top, and at the end what has no number.

    A slider that moves must not shuffle the rows: `sort_again` does.
    """

    def __init__(self, model: TensorTable, parent: QWidget) -> None:
        super().__init__(parent)
        self._model = model
        self._words: list[str] = []
        self.setDynamicSortFilter(False)
        self.setSourceModel(model)
        model.modelReset.connect(self.sort_again)

    def set_words(self, text: str) -> None:
        self._words = text.casefold().split()
        self.invalidate()

    def sort_again(self) -> None:
        """Sort by the same column again, with the present numbers."""
        if self.sortColumn() >= 0:
            self.invalidate()
            self.sort(self.sortColumn(), self.sortOrder())

    def filterAcceptsRow(self, row: int, parent: Index) -> bool:
        name = self._model.names[row].casefold()
        return row == 0 or all(word in name for word in self._words)

    def lessThan(self, left: Index, right: Index) -> bool:
        upwards = self.sortOrder() == _UP
        if 0 in (left.row(), right.row()):
            return upwards == (left.row() == 0)
        column = left.column()
        if column == NAME:
            return left.row() < right.row()  # the order of the model, which is that of the network
        mine, other = self._model.value(left.row(), column), self._model.value(right.row(), column)
        if isnan(mine) or isnan(other):
            return upwards == isnan(other) if isnan(mine) != isnan(other) else False
        return mine < other


def _moved(before: NDArray[np.float64] | None, now: NDArray[np.float64]) -> NDArray[np.bool_]:
    if before is None:
        return np.ones(len(now), bool)
    moved: NDArray[np.bool_] = (before != now) & ~(np.isnan(before) & np.isnan(now))
    return moved


def text_of(column: int, value: float) -> str:
    """A number as the list shows it; how far it may be off is in its hint."""
    if column == TREND or isnan(value):
        return "" if column == TREND else NOTHING
    if column == SNR:
        return snr_text(value)
    if column == SAFE:
        return power_label(round(value), 2)
    if column == BAD:
        return _("step {step}").format(step=f"{value:.0f}")
    return f"{value:.2e}" if column == AMAX else share_text(value)


def snr_text(value: float) -> str:
    if not np.isinf(value):
        return f"{value:.0f} dB"
    return _("overflow") if value < 0 else _("exact")
