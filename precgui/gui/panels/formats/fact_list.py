"""Labels and exact numbers, one below the other; long numbers break and can be copied."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QLabel, QWidget

from precgui.formats import text
from precgui.formats.model import FloatFormat
from precgui.formats.report import Report
from precgui.gui.kit.measures import fixed_font
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.words import L_, _, translated

LONGEST = 60
_CATEGORIES = {
    "zero": L_("zero"), "subnormal": L_("subnormal"), "normal": L_("normal"), "integer": L_("integer"),
    "code": L_("code"), "power of two": L_("power of two"),
}  # fmt: skip
ORDER = (
    L_("Remark"),
    L_("Exact result"),
    L_("Exact of these"),
    L_("Class"),
    L_("Stored exactly"),
    L_("As n·2^k"),
    L_("As hex float"),
    L_("Bits"),
    L_("Fields"),
    L_("Error"),
    L_("Relative"),
    L_("In ulps"),
    L_("From input"),
    L_("One ulp"),
    L_("Next below"),
    L_("Next above"),
    L_("Rounds here"),
    L_("Chance of up"),
)


class FactList(QWidget):
    """Shows facts in the order of ORDER, others after them; what is empty is left out."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._mono = fixed_font()
        self._form = QGridLayout(self)
        self._form.setContentsMargins(0, 0, 0, 0)
        self._form.setColumnStretch(1, 1)
        self._form.setHorizontalSpacing(12)
        self._form.setVerticalSpacing(4)
        self._values: dict[str, tuple[QLabel, QLabel]] = {}

    def show_facts(self, facts: Mapping[str, str]) -> None:
        for name in facts.keys() - self._values.keys():
            self._values[name] = self._add_row(name)
        for name, (label, value) in self._values.items():
            words = facts.get(name, "")
            if value.isHidden() == bool(words):
                label.setVisible(bool(words))
                value.setVisible(bool(words))
            value.setText(_broken(words))
            value.setToolTip(plain_tip(words[:2000] if len(words) > LONGEST else ""))

    def _add_row(self, name: str) -> tuple[QLabel, QLabel]:
        label, value = PlainLabel(translated(name)), PlainLabel()
        label.setProperty("kind", "muted")
        value.setFont(self._mono)
        value.setWordWrap(True)
        value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        place = ORDER.index(name)
        self._form.addWidget(label, place, 0, Qt.AlignmentFlag.AlignTop)
        self._form.addWidget(value, place, 1)
        return label, value


def facts_of(report: Report) -> dict[str, str]:
    """Facts of a report, by the names of ORDER; empty where one does not apply."""
    stored, fmt = report.stored, report.format
    facts = {"Remark": translated(report.note), "Class": category_text(stored.category), "Bits": report.bits}
    facts["Stored exactly"] = text.exact(stored.real)
    if stored.real.is_finite:
        facts["As n·2^k"] = text.times_power_of_two(stored.real.value)
        facts["As hex float"] = text.hex_float(stored.real.value)
    if isinstance(fmt, FloatFormat) and stored.exponent is not None:
        facts["Fields"] = _fields(report)
    facts |= _error_facts(report)
    for label, steps in (("Next below", -1), ("Next above", 1)):
        near = report.neighbour(steps)
        facts[label] = text.short(near.real, report.digits) if near else ""
    facts["Rounds here"] = translated(report.interval_text)
    chance = report.probability_up
    if report.cast_policy.rounding == "stochastic" and chance is not None:
        facts["Chance of up"] = f"{text.approximate(chance * 100, 4)} %"
    return facts


def _error_facts(report: Report) -> dict[str, str]:
    if report.error is None:
        return {}
    if report.error == 0:
        return {"Error": _("none: stored exactly"), "One ulp": _number(report.ulp)}
    exact = text.exact_fraction(report.error) if report.requested.exact else text.approximate(report.error, 40) + "…"
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
    parts = [] if stored.sign is None else [_("sign {sign}").format(sign=stored.sign)]
    if stored.category in ("normal", "subnormal"):
        power = max(stored.exponent or 0, 0 if fmt.special == "e8m0" else 1) - fmt.bias
        parts.append(_("exponent {exponent} → 2^{power}").format(exponent=stored.exponent, power=power))
    else:
        parts.append(_("exponent {exponent}").format(exponent=stored.exponent))
    if stored.mantissa is not None:
        parts.append(_("mantissa {mantissa:#x}").format(mantissa=stored.mantissa))
    return ", ".join(parts)


def category_text(category: str) -> str:
    """The class of a code for people: `normal`, `NaN` ..."""
    return translated(_CATEGORIES.get(category, category.replace("nan", "NaN")))


def _broken(words: str) -> str:
    """Long numbers get places to break at."""
    if len(words) > 4 * LONGEST:
        words = words[: 4 * LONGEST] + "…"
    return "\u200b".join(words[i : i + 12] for i in range(0, len(words), 12)) if len(words) > 24 else words
