"""A tensor quantised live: before and after, scale and zero point at hand, what was clipped and what became zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QEvent, Qt, QTimer
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QFormLayout,
    QLabel,
    QLineEdit,
    QScrollArea,
    QSplitter,
    QVBoxLayout,
    QWidget,
)

from precgui.formats.arrays import Floats
from precgui.formats.blocks import SCALE_RULES
from precgui.formats.parse import InputError, parse
from precgui.formats.real import to_float
from precgui.formats.registry import blocks
from precgui.formats.rounding import ROUNDINGS
from precgui.formats.schemes import GROUPINGS, INTEGERS, SCHEMES, Options, Outcome, apply_scheme, rule_comparison
from precgui.gui.panels.formats.plotting import Plot, brush, pen
from precgui.gui.panels.formats.tensor_source import TensorSource
from precgui.gui.theme import themes

ROWS, COLUMNS = 64, 256
SHOWN = 128
MOST = 1 << 18
NARROW = 820
RANDOM = ("normal", "normal with outliers", "uniform", "log-normal magnitudes")


class QuantiseTab(QWidget):
    """Source and options at the left, histogram and elements at the right."""

    def __init__(self, state: object, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._values: Floats = _random(RANDOM[0])
        self._file: Floats | None = None
        self.outcome: Outcome | None = None
        self._later = QTimer(self, singleShot=True, interval=40)
        self._later.timeout.connect(self.refresh)
        self._split = QSplitter(Qt.Orientation.Horizontal)
        self._split.setChildrenCollapsible(False)
        self._split.addWidget(self._make_controls())
        self._split.addWidget(self._make_plots())
        self._split.setSizes([290, 800])
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 12, 4, 4)
        column.addWidget(self._split)
        themes().changed.connect(self._later.start)
        self.refresh()

    # Making

    def _make_controls(self) -> QWidget:
        self.source = QComboBox()
        self.source.addItems([f"random: {name}" for name in RANDOM] + ["typed"])
        self.source.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.source.currentTextChanged.connect(self._source_changed)
        self.typed = QLineEdit("0.1, -0.7, 1/3, 2.5, -1e-3, 0.02, 6, -4")
        self.typed.setAccessibleName("Values")
        self.typed.textEdited.connect(lambda _: self._source_changed(self.source.currentText()))
        self.file = TensorSource()
        self.file.loaded.connect(self._show_file)
        self.file.failed.connect(self._fail)
        self.scheme = _combo(SCHEMES, "int8", self._scheme_changed)
        self.rounding = _combo(ROUNDINGS, "nearest_even", self._later.start)
        self.grouping = _combo(GROUPINGS, "tensor", self._computed)
        self.rule = _combo(SCALE_RULES, "floor", self._later.start)
        self.symmetric = QCheckBox("symmetric (zero point in the middle)")
        self.symmetric.setChecked(True)
        self.symmetric.toggled.connect(self._computed)
        self.scale, self.zero_point = QLineEdit(), QLineEdit()
        for edit in (self.scale, self.zero_point):
            edit.setPlaceholderText("computed")
            edit.textEdited.connect(lambda _: self._later.start())
        self.form = QFormLayout()
        self.form.setRowWrapPolicy(QFormLayout.RowWrapPolicy.WrapAllRows)
        for words, widget in (
            ("Tensor", self.source), ("Values", self.typed), ("", self.file), ("Quantise to", self.scheme),
            ("Rounding", self.rounding), ("One scale per", self.grouping), ("", self.symmetric),
            ("Scale rule", self.rule), ("Scale", self.scale), ("Zero point", self.zero_point),
        ):  # fmt: skip
            self.form.addRow(words, widget)
        self.result = QLabel()
        self.result.setWordWrap(True)
        self.result.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        holder = QWidget()
        column = QVBoxLayout(holder)
        column.setContentsMargins(4, 4, 10, 4)
        column.addLayout(self.form)
        column.addWidget(self.result)
        column.addStretch(1)
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setMinimumWidth(270)
        area.setWidget(holder)
        self._show_fitting()
        return area

    def _make_plots(self) -> QSplitter:
        self.histogram = Plot(bottom="value", left="values")
        self.histogram.setAccessibleName("Histogram before and after")
        self.histogram_legend = self.histogram.addLegend(offset=(-12, 12))
        self.elements = Plot(bottom="element", left="value")
        self.elements.setAccessibleName("The first elements before and after")
        self.elements_legend = self.elements.addLegend(offset=(-12, 12))
        split = QSplitter(Qt.Orientation.Vertical)
        split.setChildrenCollapsible(False)
        split.addWidget(self.histogram)
        split.addWidget(self.elements)
        return split

    # Changes

    def _source_changed(self, words: str) -> None:
        self._show_fitting()
        if words.startswith("random: "):
            self._values = _random(words.removeprefix("random: "))
        elif words == "typed":
            try:
                self._values = np.array(
                    [to_float(parse(part)) for part in self.typed.text().split(",") if part.strip()]
                )
            except InputError as error:
                self._fail(str(error))
                return
        elif self._file is not None:
            self._values = self._file
        self._computed()

    def _show_file(self, values: Floats, name: str) -> None:
        self._file = values if values.size <= MOST else values.ravel()[:MOST]
        self.source.blockSignals(True)
        if self.source.findText("file: ", Qt.MatchFlag.MatchStartsWith) >= 0:
            self.source.removeItem(self.source.findText("file: ", Qt.MatchFlag.MatchStartsWith))
        self.source.addItem(f"file: {name}")
        self.source.blockSignals(False)
        self.source.setCurrentIndex(self.source.count() - 1)

    def _scheme_changed(self) -> None:
        self._show_fitting()
        self._computed()

    def _computed(self) -> None:
        """Go back to the scale and zero point that the data ask for."""
        self.scale.clear()
        self.zero_point.clear()
        self._later.start()

    def _show_fitting(self) -> None:
        """Show the options that matter for the chosen scheme and source."""
        scheme = self.scheme.currentText()
        integer = scheme in INTEGERS
        mx = scheme in blocks() and not blocks()[scheme].two_level
        fitting = {self.typed: self.source.currentText() == "typed", self.grouping: integer, self.symmetric: integer,
                   self.scale: integer, self.zero_point: integer, self.rule: mx,
                   self.rounding: scheme not in ("ternary", "binary", "nf4")}  # fmt: skip
        for widget, shown in fitting.items():
            self.form.setRowVisible(widget, shown)

    def _options(self) -> Options:
        """Raises ValueError for a scale or zero point that is none."""
        scale = _number(self.scale.text(), "scale")
        if scale is not None and not scale > 0:
            raise ValueError("the scale must be above 0")
        zero = _number(self.zero_point.text(), "zero point")
        options = Options(
            rounding=ROUNDINGS[self.rounding.currentIndex()], symmetric=self.symmetric.isChecked(),
            grouping=self.grouping.currentText(), rule=SCALE_RULES[self.rule.currentIndex()],
        )  # fmt: skip
        return replace(options, scale=scale, zero_point=None if zero is None else round(zero))

    def _fail(self, words: str) -> None:
        self.result.setText(words)

    # Showing

    def refresh(self) -> None:
        """Quantise and draw now."""
        if not self._values.size:
            self._fail("There are no values; type some, with commas between them.")
            return
        try:
            options = self._options()
            self.outcome = apply_scheme(self._values, self.scheme.currentText(), options)
        except ValueError as error:
            self._fail(str(error))
            return
        if self.outcome.scale is not None:
            self.scale.setPlaceholderText(f"{self.outcome.scale:.6g}")
        self.zero_point.setPlaceholderText(str(self.outcome.zero_point or 0))
        self._tell(self.outcome, rule_comparison(self._values, self.scheme.currentText(), options))
        self._draw_histogram(self.outcome)
        self._draw_elements(self.outcome)

    def _tell(self, outcome: Outcome, rules: dict[str, float]) -> None:
        size = self._values.size
        lines = [
            f"Signal to noise {outcome.sqnr_db:.2f} dB, largest error {outcome.largest_error:.4g}, "
            f"{outcome.bits_per_value:.2f} bits a value.",
            f"{np.count_nonzero(outcome.clipped)} of {size} values clipped, "
            f"{np.count_nonzero(outcome.zeroed)} became zero.",
        ]
        if rules:
            lines.append("By rule: " + ", ".join(f"{rule} {value:.2f} dB" for rule, value in rules.items()) + ".")
        self.result.setText("\n\n".join(lines))

    def _draw_histogram(self, outcome: Outcome) -> None:
        item, theme = self.histogram.getPlotItem(), themes().theme
        item.clear()
        self.histogram_legend.setLabelTextColor(theme.text)
        before = self._values[np.isfinite(self._values)].ravel()
        after = outcome.values[np.isfinite(outcome.values)].ravel()
        if not before.size:
            return
        edges = np.histogram_bin_edges(before, bins=120)
        if not edges[-1] > edges[0]:
            edges = np.array([edges[0] - 0.5, edges[0] + 0.5])
        counts = np.histogram(before, edges)[0]
        look = {"pen": None, "brush": brush(theme.muted, 0.45), "name": "before"}
        item.addItem(pg.BarGraphItem(x0=edges[:-1], x1=edges[1:], height=counts, **look))
        values, numbers = np.unique(after, return_counts=True)
        if values.size <= 2000:
            share = numbers * (counts.max() / max(numbers.max(), 1))
            x, y = np.repeat(values, 2), np.column_stack([np.zeros_like(share), share]).ravel()
            item.addItem(pg.PlotCurveItem(x, y, connect="pairs", pen=pen(theme.accent, 2), name="after (scaled)"))
        else:
            found = np.histogram(after, edges)[0]
            item.addItem(pg.PlotCurveItem(edges, found, stepMode="center", pen=pen(theme.accent, 2), name="after"))
        item.enableAutoRange()

    def _draw_elements(self, outcome: Outcome) -> None:
        item, theme = self.elements.getPlotItem(), themes().theme
        item.clear()
        self.elements_legend.setLabelTextColor(theme.text)
        before, after = self._values.ravel()[:SHOWN], outcome.values.ravel()[:SHOWN]
        clipped, zeroed = outcome.clipped.ravel()[:SHOWN], outcome.zeroed.ravel()[:SHOWN]
        place = np.arange(before.size)
        known = np.isfinite(before) & np.isfinite(after)
        lines = np.column_stack([before, after])[known].ravel()
        item.addItem(pg.PlotCurveItem(np.repeat(place[known], 2), lines, connect="pairs", pen=pen(theme.line, 1)))
        for mask, values, colour, name in (
            (known, before, theme.muted, "before"), (known & ~clipped & ~zeroed, after, theme.accent, "after"),
            (known & zeroed, after, theme.warning, "became zero"), (known & clipped, after, theme.error, "clipped"),
        ):  # fmt: skip
            item.addItem(
                pg.ScatterPlotItem(place[mask], values[mask], size=6, pen=None, brush=brush(colour, 0.9), name=name)
            )
        item.enableAutoRange()

    def resizeEvent(self, event: QEvent) -> None:
        narrow = self.width() < NARROW
        self._split.setOrientation(Qt.Orientation.Vertical if narrow else Qt.Orientation.Horizontal)


def _random(kind: str) -> Floats:
    rng = np.random.default_rng(7)
    if kind == "uniform":
        return rng.uniform(-1, 1, (ROWS, COLUMNS))
    values = rng.normal(size=(ROWS, COLUMNS))
    if kind == "normal with outliers":
        values[rng.random(values.shape) < 0.002] *= 30
    return np.sign(values) * 10.0 ** rng.normal(-2, 1, values.shape) if kind.startswith("log") else values


def _combo(names: tuple[str, ...], chosen: str, slot: Callable[[], None]) -> QComboBox:
    made = QComboBox()
    made.addItems(list(names))
    made.setCurrentText(chosen)
    made.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    made.currentTextChanged.connect(lambda _: slot())
    return made


def _number(words: str, what: str) -> float | None:
    if not words.strip():
        return None
    try:
        return to_float(parse(words))
    except InputError as error:
        raise ValueError(f"the {what} cannot be read: {error}") from None
