"""The formats as a sortable table model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt

from precgui.formats import text
from precgui.formats.catalogue import KINDS
from precgui.formats.model import BlockFormat, FloatFormat, Format
from precgui.formats.registry import bits_per_value, blocks, formats
from precgui.gui.kit.plain_text import plain_tip
from precgui.words import L_, Sentence, translated

Row = Format | BlockFormat
Index = QModelIndex | QPersistentModelIndex
SORT_ROLE = Qt.ItemDataRole.UserRole
_ROOT = QModelIndex()


@dataclass(frozen=True)
class FormatColumn:
    """A heading, the value to sort by, and the value as text; None is shown as a dash and sorted last."""

    heading: str
    tip: str
    value: Callable[[Row], Any]
    formatter: Callable[[Any], str] = str


def _brief(value: Fraction) -> str:
    return text.brief(value, 5, 9)


def _of_float(attribute: str) -> Callable[[Row], Any]:
    return lambda row: getattr(row, attribute) if isinstance(row, FloatFormat) else None


def _of_single(attribute: str) -> Callable[[Row], Any]:
    return lambda row: None if isinstance(row, BlockFormat) else getattr(row, attribute)


def _bits(row: Row) -> float:
    return bits_per_value(row.name) if isinstance(row, BlockFormat) else float(row.bits)


def _layout(row: Row) -> str:
    if isinstance(row, BlockFormat):
        return Sentence("{block} × {element}, scale {scale}", block=row.block, element=row.element, scale=row.scale)
    return f"{row.sign_bits} + {row.exponent_bits} + {row.mantissa_bits}" if isinstance(row, FloatFormat) else ""


def _yes(value: bool) -> str:
    return L_("yes") if value else L_("no")


COLUMNS: tuple[FormatColumn, ...] = (
    FormatColumn(L_("Format"), L_("the name that precgui uses everywhere"), lambda row: row.name),
    FormatColumn(L_("Kind"), L_("float, integer, code book or block"), lambda row: KINDS[type(row)]),
    FormatColumn(L_("Bits"), L_("bits for each value, block scale included"), _bits, lambda v: f"{v:g}"),
    FormatColumn(L_("Layout"), L_("sign + exponent + mantissa bits"), _layout),
    FormatColumn(L_("Bias"), L_("subtracted from the exponent field"), _of_float("bias")),
    FormatColumn(L_("Largest"), L_("largest finite value"), _of_single("max_finite"), _brief),
    FormatColumn(
        L_("Smallest normal"), L_("smallest positive value with full precision"), _of_float("min_normal"), _brief
    ),
    FormatColumn(L_("Smallest"), L_("smallest positive value"), _of_float("min_positive"), _brief),
    FormatColumn(
        L_("Epsilon"), L_("distance from 1 to the next value; the step of integers"), _of_single("epsilon"), _brief
    ),
    FormatColumn(L_("Digits"), L_("significant decimal digits"), _of_single("decimal_digits"), lambda v: f"{v:.1f}"),
    FormatColumn(
        L_("Values"), L_("how many different finite values"), _of_single("finite_values"), lambda v: _brief(Fraction(v))
    ),
    FormatColumn(L_("Infinity"), "", _of_single("has_inf"), _yes),
    FormatColumn(L_("NaN codes"), "", _of_float("nan_count"), lambda v: _brief(Fraction(v))),
    FormatColumn("−0", L_("whether zero has a sign"), _of_single("has_negative_zero"), _yes),
)


class FormatTable(QAbstractTableModel):
    """One row for each named format, single values first."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = [*formats().values(), *blocks().values()]

    def rowCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(COLUMNS)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation == Qt.Orientation.Horizontal:
            if role == Qt.ItemDataRole.DisplayRole:
                return translated(COLUMNS[section].heading)
            if role == Qt.ItemDataRole.ToolTipRole:
                return plain_tip(translated(COLUMNS[section].tip))
            if role == Qt.ItemDataRole.TextAlignmentRole:
                return _alignment(section)
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        row, column = self.rows[index.row()], COLUMNS[index.column()]
        value = column.value(row)
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return "–" if value is None else translated(column.formatter(value))
            case Qt.ItemDataRole.ToolTipRole:
                return plain_tip(translated(row.title))
            case Qt.ItemDataRole.TextAlignmentRole:
                return _alignment(index.column())
            case _ if role == SORT_ROLE:
                return _sort_key(value)
        return None

    def as_text(self) -> list[list[str]]:
        """Headings and cells in English, for export."""
        cells = [[_cell(column, row) for column in COLUMNS] for row in self.rows]
        return [[column.heading for column in COLUMNS], *cells]


def _cell(column: FormatColumn, row: Row) -> str:
    value = column.value(row)
    return "–" if value is None else column.formatter(value)


def _alignment(column: int) -> int:
    side = Qt.AlignmentFlag.AlignLeft if column in (0, 1, 3) else Qt.AlignmentFlag.AlignRight
    return int(side | Qt.AlignmentFlag.AlignVCenter)


def _sort_key(value: Any) -> Any:
    """Something that Qt can order: numbers as doubles, None below all others."""
    if value is None:
        return float("-inf")
    return value if isinstance(value, str) else float(value)
