"""A tensor quantised live: before and after, scale and zero point at hand, what was clipped and what became zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from PySide6.QtCore import QEvent, Qt, QTimer
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QLineEdit,
    QScrollArea,
    QSplitter,
    QVBoxLayout,
    QWidget,
)

from precgui.citations import source_lines, sources_of
from precgui.formats.blocks import SCALE_RULES
from precgui.formats.comparison import FormatComparison, compare
from precgui.formats.parse import InputError, parse
from precgui.formats.real import to_float
from precgui.formats.registry import blocks, scale_rules
from precgui.formats.rounding import ROUNDINGS
from precgui.formats.schemes import GROUPINGS, INTEGERS, SCHEMES, Options, convention
from precgui.formats.text import grouped
from precgui.gui.answer import Answer, computation
from precgui.gui.kit.busy import Busy
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.panels.formats.control_grid import ControlGrid
from precgui.gui.panels.formats.convention_row import ROUNDING_WORDS
from precgui.gui.panels.formats.quantise_plots import QuantisePlots
from precgui.gui.panels.formats.quantise_sources import QuantiseSource
from precgui.gui.panels.formats.reading import set_kind, with_result, wrapped_label
from precgui.gui.theme import themes
from precgui.words import L_, _, error_text, translated

NARROW = 820
MOST_CODES = 16  # that fit into the text below the options
RULES = {
    "floor": L_("as OCP writes it: 2^(floor(log2 amax) − emax); the largest elements may be clipped"),
    "ceil": L_("rounded up: never clips, wastes up to a binade"),
    "even": L_("as floor, with the largest magnitude rounded to the digits of the elements first"),
    "rceil": L_("the smallest power of two that never clips (NVIDIA)"),
}


class QuantiseTab(QWidget):
    """Source and options at the left, histogram and elements at the right."""

    def __init__(self, session: object, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.comparison: FormatComparison | None = None
        self._convention = ""
        self.work = Answer(self, answered=self._show, progress=self._show, failed=self._fail)
        self._later = QTimer(self, singleShot=True, interval=40)
        self._later.setObjectName("later")
        self._later.timeout.connect(self.refresh)
        self._split = QSplitter(Qt.Orientation.Horizontal)
        self._split.setChildrenCollapsible(False)
        self._split.addWidget(self._make_controls(session))
        self.plots = QuantisePlots()
        self.plots.failed.connect(self._fail)
        self._split.addWidget(self.plots)
        self._split.setSizes([290, 800])
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 8, 4, 4)
        column.addWidget(Busy(self.source.file.work, self.work))
        column.addWidget(self._split, 1)
        themes().follow(self, self.plots.draw)
        self.refresh()

    # Making

    def _make_controls(self, session: object) -> QWidget:
        self.source = QuantiseSource(session)
        self.source.changed.connect(self._computed)
        self.source.failed.connect(self._fail)
        self.scheme = _combo(SCHEMES, "int8", self._scheme_changed)
        self.rounding = _combo(
            tuple(ROUNDING_WORDS[name] for name in ROUNDINGS), ROUNDING_WORDS[ROUNDINGS[0]], self._later.start
        )
        self.grouping = _combo(GROUPINGS, "tensor", self._computed)
        self.rule = _combo(SCALE_RULES, "floor", self._later.start)
        self.symmetric = QCheckBox(_("symmetric (zero point in the middle)"))
        self.symmetric.setChecked(True)
        self._explain()
        self.symmetric.toggled.connect(self._computed)
        self.scale, self.zero_point = QLineEdit(), QLineEdit()
        for edit in (self.scale, self.zero_point):
            edit.setPlaceholderText(_("computed"))
            edit.setToolTip(_("empty: computed from the values; value = scale × (code − zero point)"))
            edit.textEdited.connect(lambda _: self._later.start())
        self.controls = ControlGrid()
        for words, widget in (
            (_("Quantise to"), self.scheme), (_("Rounding"), self.rounding), (_("One scale per"), self.grouping),
            ("", self.symmetric), (_("Scale rule"), self.rule), (_("Scale"), self.scale),
            (_("Zero point"), self.zero_point),
        ):  # fmt: skip
            widget.setAccessibleName(words or widget.accessibleName())
            self.controls.add(PlainLabel(words), widget)
        self.result = wrapped_label()
        holder = QWidget()
        column = QVBoxLayout(holder)
        column.setContentsMargins(4, 4, 12, 4)
        column.addWidget(self.source)
        column.addWidget(self.controls)
        column.addStretch(1)
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setMinimumWidth(270)
        area.setWidget(holder)
        self._show_fitting()
        return with_result(area, self.result)

    def _explain(self) -> None:
        for place, (rule, about) in enumerate(RULES.items()):
            tip = f"{translated(about)}\n{source_lines(sources_of(scale_rules()[rule].source), translated)}"
            self.rule.setItemData(place, plain_tip(tip), Qt.ItemDataRole.ToolTipRole)
        for widget, about in (
            (self.scheme, _("integers with a scale, binary and ternary weights, code books, blocks, or plain floats")),
            (self.rounding, _("how a value between two codes is rounded")),
            (self.grouping, _("which values share a scale; a row is one index of the first axis")),
            (self.rule, _("how a block gets its power of two from its largest magnitude")),
            (
                self.symmetric,
                _("off: the codes are spread from the least to the largest value, with a zero point between"),
            ),
        ):
            widget.setToolTip(plain_tip(about))

    # Changes

    def _scheme_changed(self) -> None:
        self._show_fitting()
        self._computed()

    def _computed(self) -> None:
        """Go back to the scale and zero point that the data ask for."""
        self.scale.clear()
        self.zero_point.clear()
        self._later.start()

    def _show_fitting(self) -> None:
        """Show the options that matter for the chosen scheme and grouping."""
        scheme = self.scheme.currentData()
        integer = scheme in INTEGERS
        mx = scheme in blocks() and not blocks()[scheme].two_level
        fitting = {self.grouping: integer, self.symmetric: integer, self.scale: integer, self.zero_point: integer,
                   self.rule: mx, self.rounding: scheme not in ("ternary", "int1", "nf4")}  # fmt: skip
        for widget, displayed in fitting.items():
            self.controls.show_control(widget, displayed)

    def _options(self) -> Options:
        """Raises ValueError for a scale or zero point that is none."""
        scale = _number(self.scale.text(), _("The scale cannot be read: {error}"))
        if scale is not None and not (np.isfinite(scale) and scale > 0):
            raise ValueError(_("The scale must be a number above 0."))
        zero = _number(self.zero_point.text(), _("The zero point cannot be read: {error}"))
        if zero is not None and not abs(zero) < 2**31:
            raise ValueError(_("The zero point must be a code, a whole number such as 128."))
        options = Options(
            rounding=ROUNDINGS[self.rounding.currentIndex()], symmetric=self.symmetric.isChecked(),
            grouping=self.grouping.currentData(), rule=SCALE_RULES[self.rule.currentIndex()],
        )  # fmt: skip
        return replace(options, scale=scale, zero_point=None if zero is None else round(zero))

    def refresh(self) -> None:
        """Quantise what is chosen now; the pictures follow as soon as it is done."""
        self._later.stop()
        try:
            options = self._options()
        except ValueError as error:
            self.work.cancel()
            self._fail(error_text(error))
            return
        values, scheme = self.source.values(), self.scheme.currentData()
        whole = self.grouping.currentData() == "tensor"
        self.scale.setEnabled(whole)
        self.zero_point.setEnabled(whole)
        self._convention = convention(scheme, options)
        work = computation(lambda progress: compare(values(), scheme, options, progress, progress.partly))
        self.work.ask(work, latest_only=True)

    # Showing

    def _show(self, comparison: FormatComparison) -> None:
        self.comparison, prepared, losses = comparison, comparison.prepared, comparison.losses
        self.scale.setPlaceholderText(_("computed") if prepared.scale is None else f"{prepared.scale:.6g}")
        self.zero_point.setPlaceholderText(_("computed") if prepared.zero_point is None else str(prepared.zero_point))
        size, counted = comparison.source.size, comparison.counted
        lines = [
            *(
                [_("So far, from {share:.0f} % of the values, taken from all over:").format(share=100 * counted / size)]
                if counted < size
                else []
            ),
            _(
                "Signal to noise {sqnr_db:.2f} dB, largest error {largest_error:.4g}, {bits_per_value:.2f} "
                "bits a value."
            ).format(
                sqnr_db=losses.sqnr_db, largest_error=losses.largest_error, bits_per_value=prepared.bits_per_value
            ),
            _("{clipped} of {count} values clipped, {zeroed} became zero.").format(
                clipped=grouped(losses.clipped), count=grouped(counted), zeroed=grouped(losses.zeroed)
            ),
        ]
        if size <= MOST_CODES:
            codes = comparison.code_words(comparison.codes(0, size))
            shown = ", ".join(_("none") if code is None else str(code) for code in codes)
            lines.append(_("Codes: {codes}.").format(codes=shown))
        lines.append(translated(self._convention))
        if comparison.rules:
            noise = ", ".join(f"{rule} {value:.2f} dB" for rule, value in comparison.rules.items())
            lines.append(_("By rule: {noise}.").format(noise=noise))
        self._say("\n".join(lines), fault=False)
        self.plots.show_comparison(comparison)

    def _fail(self, words: str) -> None:
        self._say(words, fault=True)

    def _say(self, words: str, *, fault: bool) -> None:
        self.result.setText(words)
        set_kind(self.result, "error" if fault else "")

    def resizeEvent(self, event: QEvent) -> None:
        narrow = self.width() < NARROW
        requested = Qt.Orientation.Vertical if narrow else Qt.Orientation.Horizontal
        if self._split.orientation() != requested:
            self._split.setOrientation(requested)
            self.plots.setOrientation(Qt.Orientation.Horizontal if narrow else Qt.Orientation.Vertical)
            self._split.setSizes([500, 500] if narrow else [290, 800])


def _combo(names: tuple[str, ...], chosen: str, slot: Callable[[], None]) -> QComboBox:
    box = QComboBox()
    for name in names:
        box.addItem(translated(name), name)
    box.setCurrentIndex(box.findData(chosen))
    box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
    box.currentTextChanged.connect(lambda _: slot())
    return box


def _number(words: str, fault: str) -> float | None:
    if not words.strip():
        return None
    try:
        return to_float(parse(words))
    except InputError as error:
        raise ValueError(fault.format(error=error_text(error))) from None
