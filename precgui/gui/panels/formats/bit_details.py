"""Everything about the chosen format's view of the number: exact value, neighbours, interval, error, stacks, NaN."""

from __future__ import annotations

from fractions import Fraction

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QCheckBox, QComboBox, QFormLayout, QLineEdit, QVBoxLayout, QWidget

from precgui.formats import text
from precgui.formats.codec import decode, quiet_bit
from precgui.formats.conventions import library_table
from precgui.formats.explorer import Explorer, nan_with
from precgui.formats.model import FloatFormat
from precgui.formats.report import Report
from precgui.gui.kit.plain_text import PlainLabel, RichLabel
from precgui.gui.panels.formats.fact_list import FactList, facts_of
from precgui.words import _, error_text, translated


class NanEditor(QWidget):
    """Sign, kind and payload of a NaN; hidden for other values."""

    code_requested = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        form = QFormLayout(self)
        form.setContentsMargins(0, 0, 0, 0)
        self.quiet = QCheckBox("quiet")
        self.negative = QCheckBox("negative")
        self.payload = QLineEdit()
        self.fault = PlainLabel()
        self.fault.setProperty("kind", "error")
        self.fault.setWordWrap(True)
        form.addRow("NaN", self.quiet)
        form.addRow("", self.negative)
        form.addRow(_("Payload"), self.payload)
        form.addRow(self.fault)
        self.quiet.clicked.connect(self._apply)
        self.negative.clicked.connect(self._apply)
        self.payload.editingFinished.connect(self._apply)
        self._format: FloatFormat | None = None

    def show_report(self, report: Report) -> None:
        fmt, real = report.format, report.stored.real
        editable = isinstance(fmt, FloatFormat) and real.kind == "nan" and quiet_bit(fmt) > 0
        self.setVisible(editable)
        self.fault.hide()
        if editable and isinstance(fmt, FloatFormat):
            self._format = fmt
            self.quiet.setChecked(not real.signalling)
            self.negative.setChecked(real.negative)
            self.payload.setText(f"{real.payload or 0:#x}")

    def _apply(self) -> None:
        if self._format is None or self.isHidden():
            return
        try:
            payload = int(self.payload.text(), 0)
        except ValueError:
            self._fail(_("write the payload as a number such as 0x2a"))
            return
        try:
            quiet, negative = self.quiet.isChecked(), self.negative.isChecked()
            code = nan_with(self._format, payload, quiet=quiet, negative=negative)
        except ValueError as error:
            self._fail(error_text(error))
            return
        if decode(code, self._format).real.kind == "nan":
            self.code_requested.emit(code)

    def _fail(self, words: str) -> None:
        self.fault.setText(words)
        self.fault.show()


class Details(QWidget):
    """One report in words and exact numbers."""

    code_requested = Signal(str, int)

    def __init__(self, explorer: Explorer, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._explorer = explorer
        self._report: Report | None = None
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 4, 4, 4)
        column.setSpacing(12)
        self.title = PlainLabel()
        self.title.setProperty("kind", "heading")
        self.title.setWordWrap(True)
        column.addWidget(self.title)
        self.facts = FactList()
        column.addWidget(self.facts)
        self.nan_box = NanEditor()
        self.nan_box.code_requested.connect(self._on_nan_edited)
        column.addWidget(self.nan_box)
        self._stacks = PlainLabel(_("What each stack stores"))
        self._stacks.setProperty("kind", "heading")
        column.addWidget(self._stacks)
        self._stack_rows = RichLabel()
        self._stack_rows.setWordWrap(True)
        column.addWidget(self._stack_rows)
        self._make_comparison(column)

    def _make_comparison(self, column: QVBoxLayout) -> None:
        heading = PlainLabel(_("Compared with"))
        heading.setProperty("kind", "heading")
        column.addWidget(heading)
        self.other = QComboBox()
        self.other.setAccessibleName(_("Format to compare with"))
        self.other.currentIndexChanged.connect(self._show_comparison)
        column.addWidget(self.other)
        self.comparison = PlainLabel()
        self.comparison.setWordWrap(True)
        self.comparison.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        column.addWidget(self.comparison)

    def show_report(self, report: Report) -> None:
        """Show all about this report."""
        self._report = report
        self.title.setText(f"{report.format.name}: {translated(report.format.title)}")
        self.facts.show_facts(facts_of(report))
        self.nan_box.show_report(report)
        self._show_stacks(report)
        self._fill_comparison(report)

    def _show_stacks(self, report: Report) -> None:
        rows = library_table(self._explorer.real, report.format, report.cast_policy.rounding)
        differ = any(row.differs for row in rows)
        self._stacks.setVisible(differ)
        self._stack_rows.setVisible(differ)
        if differ:
            lines = (f"{translated(row.stack)}: <b>{row.value}</b>".replace(">=", "&ge;") for row in rows)
            self._stack_rows.setText("<br>".join(line.replace("<=", "&le;") for line in lines))

    def _fill_comparison(self, report: Report) -> None:
        names = [name for name in self._explorer.names if name != report.format.name]
        if [self.other.itemText(i) for i in range(self.other.count())] != names:
            kept = self.other.currentText()
            self.other.blockSignals(True)
            self.other.clear()
            self.other.addItems(names)
            self.other.setCurrentIndex(max(self.other.findText(kept), 0))
            self.other.blockSignals(False)
        self._show_comparison()

    def _show_comparison(self) -> None:
        if self._report is not None:
            name = self.other.currentText()
            self.comparison.setText(_comparison(self._report, self._explorer.report(name)) if name else "")

    def _on_nan_edited(self, code: int) -> None:
        if self._report is not None:
            self.code_requested.emit(self._report.format.name, code)


def _comparison(one: Report, other: Report) -> str:
    """Which of two formats is closer to what was typed, and by how much they differ."""
    a, b = one.format.name, other.format.name
    first, second = one.stored.real, other.stored.real
    if not (first.is_finite and second.is_finite and one.requested.is_finite):
        values = {"a": a, "first": text.short(first), "b": b, "second": text.short(second)}
        return _("{a} stores {first}, {b} stores {second}.").format(**values)
    gap = second.value - first.value
    words = _("{b} − {a} = {gap}.").format(a=a, b=b, gap=text.brief(gap, 6, 24))
    if gap == 0:
        words = _("Both store the same value.")
    left, right = abs(one.error or Fraction(0)), abs(other.error or Fraction(0))
    if left == right:
        return _("{words} Both are equally far from what was typed.").format(words=words)
    near, times = (a, right / left if left else None) if left < right else (b, left / right if right else None)
    if not times:
        return _("{words} {near} is exact.").format(words=words, near=near)
    return _("{words} {near} is {times} times closer.").format(words=words, near=near, times=text.approximate(times, 3))
