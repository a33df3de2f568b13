"""One operation in many formats as a table: operands as held, exact result, rounded result, error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QWidget

from precgui.formats import text
from precgui.formats.arithmetic import Operation, Result
from precgui.formats.lists import brief_list
from precgui.gui.kit.measures import fixed_font
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.theme import themes
from precgui.words import L_, _, translated

NAMES = ("a", "b", "c")
LISTS = (L_("List a"), L_("List b"))
START = {"numbers": ["0.1", "0.2", "-0.3"], "lists": ["repeat(0.1, 1000)", "repeat(3, 1000)"]}


class OperandRow(QWidget):
    """`texts` is what was typed for the operation that was shown last."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._kept = {kind: list(texts) for kind, texts in START.items()}
        self._kind, self._count = "numbers", len(NAMES)
        self.edits = [QLineEdit() for _ in NAMES]
        self._labels = [PlainLabel() for _ in NAMES]
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        mono = fixed_font()
        for label, edit in zip(self._labels, self.edits, strict=True):
            edit.setFont(mono)
            label.setBuddy(edit)
            row.addWidget(label)
            row.addWidget(edit, 1)
            edit.textChanged.connect(self._typed)

    def show_operation(self, operation: Operation) -> None:
        """Fields for its operands, with what was typed into them before."""
        self._kind = "numbers" if operation.operands else "lists"
        self._count = operation.operands or operation.lists
        names = NAMES if operation.operands else LISTS
        tip = ("0.1, 1/3, 2**-14, 0x1.8p3, fp16:0x3c00" if operation.operands
               else _("numbers with commas between them; repeat(0.1, 1000) is a thousand times 0.1"))  # fmt: skip
        for place, (label, edit) in enumerate(zip(self._labels, self.edits, strict=True)):
            displayed = place < self._count
            label.setVisible(displayed)
            edit.setVisible(displayed)
            if displayed:
                label.setText(translated(names[place]))
                edit.setAccessibleName(translated(names[place]))
                edit.setToolTip(plain_tip(tip))
                edit.blockSignals(True)
                edit.setText(self._kept[self._kind][place])
                edit.setCursorPosition(0)
                edit.blockSignals(False)

    def texts(self) -> list[str]:
        return [edit.text() for edit in self.edits[: self._count]]

    def replace(self, name: str, text: str) -> None:
        """Write another text into the field of `a`, `b` or `c`; undo in the field brings the old one back."""
        edit = self.edits[NAMES.index(name)]
        edit.selectAll()
        edit.insert(text)

    def _typed(self) -> None:
        self._kept[self._kind][: self._count] = self.texts()
        self.changed.emit()


Index = QModelIndex | QPersistentModelIndex
_ROOT = QModelIndex()
HEADINGS = (
    L_("Format"),
    L_("Result"),
    L_("In ulps"),
    L_("From input"),
    L_("Bits"),
    L_("Operands"),
    L_("Exact of these"),
    L_("Remark"),
)
TIPS = (
    L_("the format of the operands"), L_("what the format stores"),
    L_("the result minus the exact one of the operands that the format holds, in ulps"),
    L_("the result minus the exact one of what was typed"), L_("the stored bits of the result"),
    L_("the operands as the format holds them"), L_("the exact result of these operands"), "",
)  # fmt: skip
NUMBERS = (2, 3)
MONO = (1, 4, 5, 6)


class ResultTable(QAbstractTableModel):
    """Rows of (format name, result)."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, Result]] = []
        self._cells: list[tuple[str, ...]] = []
        self._mono = fixed_font()

    def show_results(self, rows: Sequence[tuple[str, Result]]) -> None:
        """Replace all rows; one that has the same place keeps its selection."""
        same = [name for name, _ in rows] == [name for name, _ in self.rows]
        if not same:
            self.beginResetModel()
        self.rows, self._cells = list(rows), [_cells(name, result) for name, result in rows]
        if same:
            last = self.index(len(rows) - 1, len(HEADINGS) - 1)
            self.dataChanged.emit(self.index(0, 0), last)
        else:
            self.endResetModel()

    def row_text(self, row: int) -> str:
        return "\t".join(self._cells[row])

    def rowCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(HEADINGS)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation != Qt.Orientation.Horizontal:
            return None
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return translated(HEADINGS[section])
            case Qt.ItemDataRole.ToolTipRole:
                return plain_tip(translated(TIPS[section]))
            case Qt.ItemDataRole.TextAlignmentRole:
                return _alignment(section)
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        row, column = index.row(), index.column()
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return self._cells[row][column]
            case Qt.ItemDataRole.ToolTipRole:
                return plain_tip(self._cells[row][column])
            case Qt.ItemDataRole.TextAlignmentRole:
                return _alignment(column)
            case Qt.ItemDataRole.FontRole if column in MONO:
                return self._mono
            case Qt.ItemDataRole.ForegroundRole if column == len(HEADINGS) - 1:
                lost = self.rows[row][1].rounded.kind != "finite"
                return QColor(themes().theme.error if lost else themes().theme.warning)
        return None


def _alignment(column: int) -> int:
    side = Qt.AlignmentFlag.AlignRight if column in NUMBERS else Qt.AlignmentFlag.AlignLeft
    return int(side | Qt.AlignmentFlag.AlignVCenter)


def _cells(name: str, result: Result) -> tuple[str, ...]:
    report, overall = result.report, result.overall
    held = "; ".join(brief_list([each.stored.real for each in part], most=3) for part in result.operands)
    ulps = "" if report.error_ulp is None else text.approximate(report.error_ulp, 3)
    error = "" if overall.error is None else text.approximate(overall.error, 3)
    where = "" if result.stored.format.name == name else f"{result.stored.format.name} "
    exact = brief_list([result.exact], digits=9)
    return (name, report.value_text, ulps, error, where + report.bits, held, exact, translated(report.note))
