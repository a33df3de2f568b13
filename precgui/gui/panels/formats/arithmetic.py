"""An operation as many formats compute it, beside the exact result; the bits of operands and result at hand."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from PySide6.QtCore import QEvent, QModelIndex, Qt, Signal
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import (
    QAbstractItemView,
    QComboBox,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QPushButton,
    QSizePolicy,
    QSplitter,
    QTableView,
    QVBoxLayout,
    QWidget,
)

from precgui.formats import text
from precgui.formats.arithmetic import OPERATIONS, ORDERS, ArithmeticSettings, Operation, Result, operate
from precgui.formats.explorer import DEFAULT_FORMATS
from precgui.formats.lists import parse_list
from precgui.formats.parse import parse
from precgui.formats.real import ExtendedReal
from precgui.formats.registry import get
from precgui.gui.answer import Answer, ProgressCallback, computation
from precgui.gui.kit.busy import Busy
from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.plain_text import PlainLabel, plain_tip, without_key
from precgui.gui.panels.formats.bit_grid import BitGrid
from precgui.gui.panels.formats.choose import FormatChoice, FormatMenu, copy_text
from precgui.gui.panels.formats.convention_row import ConventionRow
from precgui.gui.panels.formats.fact_list import FactList, facts_of
from precgui.gui.panels.formats.reading import scrolled_down, set_kind
from precgui.gui.panels.formats.result_table import NAMES, OperandRow, ResultTable
from precgui.words import L_, _, translated

NARROW = 1000
RESULT = L_("result")
Rows = list[tuple[str, Result]]


def compute(
    chosen: Operation,
    texts: Sequence[str],
    names: Sequence[str],
    settings: ArithmeticSettings,
    progress: ProgressCallback,
) -> Rows:
    """The operation in each format. Raises InputError or ArithmeticFault with one sentence."""
    operands: list[list[ExtendedReal]] = [[parse(words)] if chosen.operands else parse_list(words) for words in texts]
    rows = []
    for place, name in enumerate(names):
        progress(place / len(names))
        rows.append((name, operate(chosen.name, operands, get(name), settings)))
    return rows


class ArithmeticTab(QWidget):
    """`number_requested` asks for a number to be shown in some formats."""

    number_requested = Signal(str, list)

    def __init__(self, session: object, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.work = Answer(self, answered=self._show, failed=self._fail)
        self._codes: dict[str, int] = {}
        self._make_controls()
        self._make_sum_row()
        self._splitter = QSplitter(Qt.Orientation.Horizontal)
        self._splitter.setChildrenCollapsible(False)
        self._splitter.addWidget(self._make_table())
        self._splitter.addWidget(self._make_details())
        self._splitter.setSizes([640, 480])
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 12, 4, 4)
        column.setSpacing(8)
        for row in (self._operation_row, self._sum_row):
            column.addWidget(row)
        column.addWidget(self.message)
        options = QHBoxLayout()
        options.addWidget(self.switches, 4)
        options.addStretch(0)
        options.addWidget(self.menu)
        column.addLayout(options)
        column.addWidget(Busy(self.work))
        column.addWidget(self._splitter, 1)
        self._operation_changed()

    # Making

    def _make_controls(self) -> None:
        self.operation = QComboBox()
        for operation in OPERATIONS.values():
            self.operation.addItem(f"{translated(operation.name)}:  {translated(operation.formula)}", operation)
        self.operation.setAccessibleName(_("Operation"))
        self.operation.currentIndexChanged.connect(self._operation_changed)
        self.operation.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.operation.setMinimumContentsLength(24)
        self.operands = OperandRow()
        self.operands.changed.connect(self.refresh)
        self._operation_row = QWidget()
        row = QHBoxLayout(self._operation_row)
        row.setContentsMargins(0, 0, 0, 0)
        row.addWidget(self.operation)
        row.addWidget(self.operands, 1)
        self.message = PlainLabel()
        self.message.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.message.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.switches = ConventionRow()
        self.switches.changed.connect(self.refresh)
        self.menu = FormatMenu(DEFAULT_FORMATS, self)
        self.menu.changed.connect(self.refresh)

    def _make_sum_row(self) -> None:
        self.accumulator = FormatChoice(instead=_("same format"))
        self.product = FormatChoice(instead=_("exact"))
        self.output = FormatChoice(instead=_("accumulator"))
        self.order = QComboBox()
        self.order.addItems([translated(order) for order in ORDERS])
        self.order.currentIndexChanged.connect(self.refresh)
        self._sum_row = QWidget()
        row = QHBoxLayout(self._sum_row)
        row.setContentsMargins(0, 0, 0, 0)
        self._captions: dict[QWidget, QLabel] = {}
        for words, widget in ((_("&Accumulator"), self.accumulator), (_("&Products"), self.product),
                              (_("Resul&t"), self.output), (_("Or&der"), self.order)):  # fmt: skip
            self._captions[widget] = label = PlainLabel(words)
            label.setBuddy(widget)
            row.addWidget(label)
            row.addWidget(widget, 1)
            widget.setMaximumWidth(190)
            widget.setMinimumWidth(56)
            if isinstance(widget, FormatChoice):
                widget.setAccessibleName(without_key(words))
                widget.changed.connect(self.refresh)
                widget.failed.connect(self._fail)
        row.addStretch(1)

    def _make_table(self) -> QTableView:
        self.model = ResultTable()
        self.table = QTableView()
        self.table.setModel(self.model)
        self.table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        let_copy(self.table)
        self.table.setShowGrid(False)
        self.table.setWordWrap(False)
        self.table.verticalHeader().hide()
        self.table.verticalHeader().setDefaultSectionSize(26)
        self.table.horizontalHeader().setStretchLastSection(True)
        self.table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        self.table.setMinimumSize(260, 110)
        self.table.setAccessibleName(_("Results"))
        self.table.selectionModel().currentRowChanged.connect(self._show_row)
        self.model.modelReset.connect(lambda: self.table.selectRow(0))
        copy = QAction(self.table)
        copy.setShortcut(QKeySequence(QKeySequence.StandardKey.Copy))
        copy.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
        copy.triggered.connect(self._copy_row)
        self.table.addAction(copy)
        return self.table

    def _make_details(self) -> QWidget:
        self.grid = BitGrid()
        self.grid.setAccessibleName(_("Bits of operands and result"))
        self.grid.bit_set.connect(self._set_bit)
        self.grid.stepped.connect(self._step)
        self.facts = FactList()
        self.show_bits = QPushButton(_("Show the result in Bits"))
        self.show_bits.clicked.connect(self._want_number)
        holder = QWidget()
        column = QVBoxLayout(holder)
        column.setContentsMargins(8, 0, 4, 4)
        column.addWidget(self.grid)
        column.addWidget(self.facts)
        column.addWidget(self.show_bits, 0, Qt.AlignmentFlag.AlignLeft)
        return scrolled_down(holder, 300)

    # Changes

    @property
    def chosen(self) -> Operation:
        operation: Operation = self.operation.currentData()
        return operation

    def _operation_changed(self) -> None:
        self.operands.show_operation(self.chosen)
        self._sum_row.setVisible(bool(self.chosen.lists))
        for widget in (self.product, self._captions[self.product]):
            widget.setVisible(self.chosen.lists == 2)
        self.refresh()

    def settings(self) -> ArithmeticSettings:
        if not self.chosen.lists:
            return ArithmeticSettings(cast_policy=self.switches.cast_policy(), seed=self.switches.seed.value())
        product = self.product.format() if self.chosen.lists == 2 else None
        return ArithmeticSettings(
            self.accumulator.format(), product, self.output.format(), ORDERS[self.order.currentIndex()],
            self.switches.cast_policy(), self.switches.seed.value(),
        )  # fmt: skip

    def refresh(self) -> None:
        """Compute what is chosen now; the table follows as soon as it is there."""
        chosen, texts, names, settings = self.chosen, self.operands.texts(), self.menu.chosen(), self.settings()
        work = computation(lambda progress: compute(chosen, texts, names, settings, progress))
        self.work.ask(work, latest_only=True)

    def _set_bit(self, name: str, bit: int, on: bool, joined: bool) -> None:
        """Several bits of a drag may come before the first has been computed: the code is kept here."""
        self._codes[name] = self._codes[name] | 1 << bit if on else self._codes[name] & ~(1 << bit)
        fmt = self._selected()[1].operands[0][0].format
        self.operands.replace(name, f"{fmt.name}:0x{self._codes[name]:0{(fmt.bits + 3) // 4}x}")

    def _step(self, name: str, steps: int) -> None:
        function = "nextup" if steps > 0 else "nextdown"
        fmt = self._selected()[1].operands[0][0].format
        self.operands.replace(name, f"{function}({fmt.name}:{self._codes[name]:#x}, {fmt.name})")

    # Showing

    def _show(self, rows: Rows) -> None:
        first = not self.model.rows
        self.model.show_results(rows)
        if not rows:
            self._fail(_("No format is chosen; choose some in the menu Formats."))
            return
        self.table.setEnabled(True)
        meant = rows[0][1].meant
        words = text.exact(meant) if meant.exact or not meant.is_finite else text.approximate(meant.value, 40) + "…"
        if "/" in words:
            words += f" = {text.approximate(meant.value, 17)}…"
        short = words if len(words) <= 300 else words[:300] + "…"
        self._say(_("exactly {value}").format(value=short), fault=False)
        if first:
            self.table.resizeColumnsToContents()
        self._show_row()

    def _selected(self) -> tuple[str, Result]:
        row = self.table.currentIndex().row()
        return self.model.rows[row if 0 <= row < len(self.model.rows) else 0]

    def _show_row(self, *_: QModelIndex) -> None:
        if not self.model.rows:
            return
        result = self._selected()[1]
        displayed = (
            dict(zip(NAMES, (part[0] for part in result.operands), strict=False)) if self.chosen.operands else {}
        )
        self._codes = {name: held.stored.code for name, held in displayed.items()}
        name = translated(RESULT)
        self.grid.show_rows({**displayed, name: result.report}, fixed=[name])
        self.facts.show_facts(_facts(result))

    def _say(self, words: str, *, fault: bool) -> None:
        self.message.setText(words)
        self.message.setToolTip(plain_tip(words))
        set_kind(self.message, "error" if fault else "muted")

    def _fail(self, words: str) -> None:
        """Fades the result, which belongs to the input before."""
        self._say(words, fault=True)
        self.table.setEnabled(False)
        self.grid.show_stale(True)

    def _copy_row(self) -> None:
        if self.model.rows:
            copy_text(self.model.row_text(max(self.table.currentIndex().row(), 0)))

    def _want_number(self) -> None:
        if self.model.rows:
            report = self._selected()[1].report
            self.number_requested.emit(f"{report.format.name}:{report.bits}", [name for name, _ in self.model.rows])

    def resizeEvent(self, event: QEvent) -> None:
        narrow = self.width() < NARROW
        self._splitter.setOrientation(Qt.Orientation.Vertical if narrow else Qt.Orientation.Horizontal)


def _facts(result: Result) -> dict[str, str]:
    facts = facts_of(result.report)
    facts["Exact of these"] = text.short(result.exact, 24)
    overall = result.overall
    if overall.error is not None:
        facts["From input"] = _error_text(overall.error, overall.relative_error)
    return facts


def _error_text(error: Fraction, relative: Fraction | None) -> str:
    """An error, and its size relative to the exact value where there is one."""
    if not error:
        return _("no error")
    size = text.approximate(error, 6)
    if relative is None:
        return size
    return _("{error} ({relative} relative)").format(error=size, relative=text.approximate(relative, 3))
