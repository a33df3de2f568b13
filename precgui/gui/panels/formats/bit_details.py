"""Everything about the chosen format's view of the number: exact value, neighbours, interval, error, stacks, NaN."""

from __future__ import annotations

from fractions import Fraction

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFontDatabase
from PySide6.QtWidgets import QCheckBox, QComboBox, QFormLayout, QGridLayout, QLabel, QLineEdit, QVBoxLayout, QWidget

from precgui.formats import text
from precgui.formats.codec import decode, quiet_bit
from precgui.formats.conventions import library_table
from precgui.formats.explorer import Explorer, nan_with
from precgui.formats.model import CodeBook, FloatFormat
from precgui.formats.report import Report

LONGEST = 60


class Details(QWidget):
    """One report in words and exact numbers."""

    code_wanted = Signal(str, int)

    def __init__(self, explorer: Explorer, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._explorer = explorer
        self._report: Report | None = None
        self._mono = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 4, 4, 4)
        column.setSpacing(10)
        self.title = QLabel()
        self.title.setProperty("kind", "heading")
        self.title.setWordWrap(True)
        column.addWidget(self.title)
        self._form = QGridLayout()
        self._form.setColumnStretch(1, 1)
        self._form.setHorizontalSpacing(12)
        self._form.setVerticalSpacing(3)
        column.addLayout(self._form)
        self._values: dict[str, tuple[QLabel, QLabel]] = {}
        self.nan_box = NanEditor()
        self.nan_box.code_wanted.connect(self._nan_wanted)
        column.addWidget(self.nan_box)
        self._stacks = QLabel("What each stack stores")
        self._stacks.setProperty("kind", "heading")
        column.addWidget(self._stacks)
        self._stack_rows = QLabel()
        self._stack_rows.setTextFormat(Qt.TextFormat.RichText)
        self._stack_rows.setWordWrap(True)
        column.addWidget(self._stack_rows)
        self._make_comparison(column)

    def _make_comparison(self, column: QVBoxLayout) -> None:
        heading = QLabel("Compared with")
        heading.setProperty("kind", "heading")
        column.addWidget(heading)
        self.other = QComboBox()
        self.other.setAccessibleName("Format to compare with")
        self.other.currentIndexChanged.connect(self._show_comparison)
        column.addWidget(self.other)
        self.comparison = QLabel()
        self.comparison.setWordWrap(True)
        self.comparison.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        column.addWidget(self.comparison)

    def show_report(self, report: Report) -> None:
        """Show all about this report."""
        self._report = report
        self.title.setText(f"{report.format.name}: {report.format.title}")
        self._fill(_facts(report))
        self.nan_box.show_report(report)
        self._show_stacks(report)
        self._fill_comparison(report)

    def _fill(self, facts: dict[str, str]) -> None:
        for name in facts.keys() - self._values.keys():
            self._values[name] = self._add_row(name)
        for name, (label, value) in self._values.items():
            words = facts.get(name, "")
            label.setVisible(bool(words))
            value.setVisible(bool(words))
            value.setText(_broken(words))
            value.setToolTip(words[:2000] if len(words) > LONGEST else "")

    def _add_row(self, name: str) -> tuple[QLabel, QLabel]:
        label, value = QLabel(name), QLabel()
        label.setProperty("kind", "muted")
        value.setFont(self._mono)
        value.setWordWrap(True)
        value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        place = ORDER.index(name)
        self._form.addWidget(label, place, 0, Qt.AlignmentFlag.AlignTop)
        self._form.addWidget(value, place, 1)
        return label, value

    def _show_stacks(self, report: Report) -> None:
        rows = library_table(self._explorer.real, report.format, report.convention.rounding)
        differ = any(row.differs for row in rows)
        self._stacks.setVisible(differ)
        self._stack_rows.setVisible(differ)
        if differ:
            lines = (f"{row.stack}: <b>{text.short(row.report.stored.real)}</b>".replace(">=", "&ge;") for row in rows)
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

    def _nan_wanted(self, code: int) -> None:
        if self._report is not None:
            self.code_wanted.emit(self._report.format.name, code)


ORDER = ("Remark", "Class", "Stored exactly", "As n·2^k", "As hex float", "Bits", "Fields", "Error", "Relative",
         "In ulps", "One ulp", "Next below", "Next above", "Rounds here", "Chance of up")  # fmt: skip


def _facts(report: Report) -> dict[str, str]:
    stored, fmt = report.stored, report.format
    facts = {"Remark": report.note, "Class": stored.category.replace("nan", "NaN"), "Bits": report.bits}
    facts["Stored exactly"] = text.exact(stored.real)
    if stored.real.is_finite:
        facts["As n·2^k"] = text.times_power_of_two(stored.real.value)
        facts["As hex float"] = text.hex_float(stored.real.value)
    if isinstance(fmt, FloatFormat) and stored.exponent is not None:
        facts["Fields"] = _fields(report)
    facts |= _error_facts(report)
    for label, steps in (("Next below", -1), ("Next above", 1)):
        near = report.neighbour(steps)
        facts[label] = text.short(near.real, 17) if near else ""
    interval = report.interval
    if interval is not None and not isinstance(fmt, CodeBook):
        left, right = "[" if interval.low_closed else "(", "]" if interval.high_closed else ")"
        facts["Rounds here"] = f"{left}{_number(interval.low, 20)}, {_number(interval.high, 20)}{right}"
    chance = report.probability_up
    if report.convention.rounding == "stochastic" and chance is not None:
        facts["Chance of up"] = f"{text.approximate(chance * 100, 4)} %"
    return facts


def _error_facts(report: Report) -> dict[str, str]:
    if report.error is None:
        return {}
    if report.error == 0:
        return {"Error": "none: stored exactly", "One ulp": _number(report.ulp)}
    exact = text.exact_fraction(report.error) if report.wanted.exact else text.approximate(report.error, 40) + "…"
    return {
        "Error": exact,
        "Relative": "" if report.relative_error is None else text.approximate(report.relative_error, 5),
        "In ulps": "" if report.error_ulp is None else text.approximate(report.error_ulp, 5),
        "One ulp": _number(report.ulp),
    }


def _number(value: Fraction | None, digits: int = 12) -> str:
    return "" if value is None else text.brief(value, digits, 24)


def _fields(report: Report) -> str:
    stored, fmt = report.stored, report.format
    assert isinstance(fmt, FloatFormat)
    parts = [] if stored.sign is None else [f"sign {stored.sign}"]
    parts.append(f"exponent {stored.exponent}")
    if stored.category in ("normal", "subnormal"):
        power = max(stored.exponent or 0, 0 if fmt.special == "e8m0" else 1) - fmt.bias
        parts[-1] += f" → 2^{power}"
    return ", ".join(parts + ([] if stored.mantissa is None else [f"mantissa {stored.mantissa:#x}"]))


def _comparison(one: Report, other: Report) -> str:
    """Which of two formats is closer to what was typed, and by how much they differ."""
    a, b = one.format.name, other.format.name
    first, second = one.stored.real, other.stored.real
    if not (first.is_finite and second.is_finite and one.wanted.is_finite):
        return f"{a} stores {text.short(first)}, {b} stores {text.short(second)}."
    gap = second.value - first.value
    words = "Both store the same value." if gap == 0 else f"{b} − {a} = {text.brief(gap, 6, 24)}."
    left, right = abs(one.error or Fraction(0)), abs(other.error or Fraction(0))
    if left == right:
        return f"{words} Both are equally far from what was typed."
    near, times = (a, right / left if left else None) if left < right else (b, left / right if right else None)
    return f"{words} {near} is " + (f"{text.approximate(times, 3)} times closer." if times else "exact.")


def _broken(words: str) -> str:
    """Long numbers get places to break at."""
    if len(words) > 4 * LONGEST:
        words = words[: 4 * LONGEST] + "…"
    return "\u200b".join(words[i : i + 12] for i in range(0, len(words), 12)) if len(words) > 24 else words


class NanEditor(QWidget):
    """Sign, kind and payload of a NaN; hidden for other values."""

    code_wanted = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        form = QFormLayout(self)
        form.setContentsMargins(0, 0, 0, 0)
        self.quiet = QCheckBox("quiet")
        self.negative = QCheckBox("negative")
        self.payload = QLineEdit()
        self.fault = QLabel()
        self.fault.setProperty("kind", "error")
        self.fault.setWordWrap(True)
        form.addRow("NaN", self.quiet)
        form.addRow("", self.negative)
        form.addRow("Payload", self.payload)
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
            quiet = self.quiet.isChecked()
            code = nan_with(self._format, payload, quiet=quiet, negative=self.negative.isChecked())
        except ValueError as error:
            plain = "invalid literal" in str(error)
            self.fault.setText("write the payload as a number such as 0x2a" if plain else str(error))
            self.fault.show()
            return
        if decode(code, self._format).real.kind == "nan":
            self.code_wanted.emit(code)
