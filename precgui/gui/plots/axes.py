"""Axes with ticks that people read: powers of two, decades, steps with grouped thousands, clock times."""

from __future__ import annotations

import math
from typing import Literal
from weakref import ref

import pyqtgraph as pg
from PySide6.QtCore import QRectF, Qt, Signal
from PySide6.QtGui import QTextOption
from PySide6.QtWidgets import QComboBox, QWidget
from shiboken6 import isValid

from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.plots.signals import Scale, from_plot, grouped, number, power_label
from precgui.gui.theme import themes
from precgui.runs.signals import Axis
from precgui.words import _


def colour_axes(plot: pg.PlotWidget) -> None:
    """Give the background, both axes and their labels the colours of the theme; a long label wraps."""
    theme = themes().theme
    plot.setBackground(theme.base)
    for side in ("bottom", "left"):
        axis = plot.getAxis(side)
        axis.setPen(theme.line)
        axis.setTextPen(theme.muted)
        axis.setLabel(axis.labelText, color=theme.muted)
        wrap_label(axis)


def wrap_label(axis: pg.AxisItem) -> None:
    """Break the label of an axis into lines where the axis is too short for it, now and when its size changes."""
    axis.label.document().setDefaultTextOption(QTextOption(Qt.AlignmentFlag.AlignHCenter))
    if not axis.property("wraps"):
        axis.setProperty("wraps", True)
        known = ref(axis)  # a connection that held the axis would keep it for ever
        axis.geometryChanged.connect(lambda: _wrap(known()))
        axis.label.document().contentsChanged.connect(lambda: _wrap(known()))
    _wrap(axis)


def _wrap(axis: pg.AxisItem | None) -> None:
    if axis is None or not isValid(axis) or not isValid(axis.label):
        return  # a plot that is taken down tells its size, too
    size = axis.size()
    length = size.height() if axis.orientation in ("left", "right") else size.width()
    label = axis.label
    before = label.textWidth()
    label.setTextWidth(-1)
    if label.boundingRect().width() > length > _SHORTEST_PX:
        label.setTextWidth(length)
    if label.textWidth() != before:
        axis.resizeEvent()  # puts the label into the middle
        (axis._updateWidth if axis.orientation in ("left", "right") else axis._updateHeight)()


class AxisChoice(QComboBox):
    """`chosen(over)`: another axis. `label` belongs beside it."""

    chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        for text, over in ((_("Step"), "step"), (_("Time"), "time_s")):
            self.addItem(text, over)
        self.setAccessibleName(_("X axis"))
        self.label = PlainLabel(_("&X axis"), parent)
        self.label.setBuddy(self)
        self.currentIndexChanged.connect(lambda place: self.chosen.emit(self.itemData(place)))


Kind = Scale | Literal["step", "time_s"]
Ticks = list[tuple[float, list[float]]]

_CLOCK_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_SHORT_S = 120.0  # below this range a time axis counts in plain seconds
_BEYOND_PX = 10
_SHORTEST_PX = 40  # of an axis whose label wraps
_TEXT_PX = 16.0  # of a line of text with its gap, on a vertical axis
_TICK_PX, _TEXT_GAP_PX = 4, 5
TICK_TEXT_TOP_PX = _TICK_PX + _TEXT_GAP_PX  # of a bottom axis, from its upper edge
_DENSITY = {"left": 1.5, "bottom": 1.0}
_DECADE = (1.0, 2.0, 5.0)
_FEWEST_POWERS = {2: 2.0, 10: 1.0}  # in view: with fewer, the ticks are even values


class ValueAxis(pg.AxisItem):  # type: ignore[misc]  # pyqtgraph is untyped
    """An axis of one kind: linear, log2 or log10 values (the data are logarithms already), steps, or seconds."""

    def __init__(self, orientation: str, kind: Kind = "linear") -> None:
        super().__init__(orientation, maxTickLength=_TICK_PX)
        self._kind: Kind = kind
        self.enableAutoSIPrefix(False)
        self.setTickDensity(_DENSITY[orientation])
        self.setStyle(
            maxTickLevel=0, tickTextOffset=_TEXT_GAP_PX, autoExpandTextSpace=False, hideOverlappingLabels=False
        )

    def set_kind(self, kind: Kind) -> None:
        self._kind = kind
        self.picture = None
        self.update()

    def boundingRect(self) -> QRectF:
        """The rectangle with room for tick texts that extend past the ends of the axis."""
        beyond = (0, _BEYOND_PX) if self.orientation == "left" else (3 * _BEYOND_PX, 0)
        rect: QRectF = super().boundingRect()
        return rect.adjusted(-beyond[0], -beyond[1], beyond[0], beyond[1])

    def tickValues(self, minVal: float, maxVal: float, size: float) -> Ticks:
        if self._kind == "log2":
            return self._log_ticks(minVal, maxVal, size, 2)
        if self._kind == "log10":
            return self._log_ticks(minVal, maxVal, size, 10)
        if self._kind == "time_s" and maxVal - minVal > _SHORT_S:
            return _even_ticks(minVal, maxVal, _clock_spacing((maxVal - minVal) / max(size / 110, 2)))
        ticks: Ticks = super().tickValues(minVal, maxVal, size)
        if self.orientation == "left":
            ticks = [_thinned(spacing, values, size / _TEXT_PX) for spacing, values in ticks]
        if self._kind == "step":
            return [(spacing, [v for v in values if v == round(v)]) for spacing, values in ticks]
        return ticks

    def _log_ticks(self, low: float, high: float, size: float, base: int) -> Ticks:
        """Whole powers while a few of them are in view, then 1-2-5 between them, then even values.

        Even values are for views of no more than a power or two: over more they would crowd at the upper end. A low
        plot has two powers at least.
        """
        requested = max(size / 28, 2)
        powers = _powers(low, high, requested, base)
        if len(powers[0][1]) >= 3 or high - low > 300:
            return powers
        if base == 10:
            first, last = math.floor(low), math.ceil(high)
            between = [e + math.log10(m) for e in range(first, last + 1) for m in _DECADE]
            between = [v for v in between if low <= v <= high]
            if 3 <= len(between) <= 2 * requested:
                return [(0.0, between)]
        if high - low > _FEWEST_POWERS[base] and len(powers[0][1]) > 1:
            return powers
        scale: Scale = "log2" if base == 2 else "log10"
        even: Ticks = super().tickValues(from_plot(low, scale), from_plot(high, scale), size)
        displayed = [math.log(v, base) for _, values in even for v in values if v > 0]
        return [(0.0, displayed)] if len(displayed) > len(powers[0][1]) else powers

    def tickStrings(self, values: list[float], scale: float, spacing: float) -> list[str]:
        if self._kind == "step":
            return [grouped(v) for v in values]
        if self._kind == "time_s":
            return [_clock(v) for v in values] if spacing > _SHORT_S / 10 else [number(v, 6) for v in values]
        if self._kind == "log2":
            return [_power(v, 2) for v in values]
        if self._kind == "log10":
            return [_power(v, 10) for v in values]
        return [_plain(v, spacing) for v in values]


def axis_name(over: Axis, span: float) -> str:
    """The name of the x axis with its unit, as its ticks are written over that span."""
    if over == "step":
        return _("Step")
    return _("Time (s)") if span <= _SHORT_S else _("Time (h:mm:ss)") if span >= 3600 else _("Time (m:ss)")


def _even_ticks(low: float, high: float, spacing: float) -> Ticks:
    first, last = math.ceil(low / spacing), math.floor(high / spacing)
    return [(spacing, [i * spacing for i in range(first, last + 1)])]


def _thinned(spacing: float, values: list[float], most: float) -> tuple[float, list[float]]:
    """At most so many of even ticks, two at least: those at multiples of twice the spacing, of four times it, ..."""
    while len(values) > max(most, 2) and spacing > 0:
        spacing *= 2
        kept = [value for value in values if math.isclose(value / spacing, round(value / spacing), abs_tol=1e-6)]
        if len(kept) < 2:
            break
        values = kept
    return spacing, values


def _powers(low: float, high: float, requested: float, base: int) -> Ticks:
    """Ticks at whole powers, about as many as requested, and closer where not two of them would be in view."""
    least = (high - low) / requested
    ticks = _even_ticks(low, high, _power_spacing(least, base))
    while len(ticks[0][1]) < 2 and least > 1:
        least /= 2
        ticks = _even_ticks(low, high, _power_spacing(least, base))
    return ticks


def _power_spacing(least: float, base: int) -> int:
    """The distance between labelled exponents: a power of two for base 2; 1, 2, 3, 5, 10 ... for base 10."""
    steps = (1, 2, 4, 8, 16, 32, 64, 128, 256) if base == 2 else (1, 2, 3, 5, 10, 20, 50, 100, 200)
    return next((s for s in steps if s >= least), math.ceil(least))


def _clock_spacing(least: float) -> float:
    return next((s for s in _CLOCK_S if s >= least), 86400.0 * math.ceil(least / 86400))


def _clock(seconds: float) -> str:
    if seconds < 0:
        return ""
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{remainder:02d}" if hours else f"{minutes}:{remainder:02d}"


def _power(exponent: float, base: int) -> str:
    """An exponent as text: 2¹⁶, 10⁻³; small powers of ten and fractions of a power as plain numbers."""
    whole = round(exponent)
    is_power = math.isclose(exponent, whole, abs_tol=1e-9)
    if is_power and (base == 2 or not -4 < whole < 4):
        return power_label(whole, base)
    return number(from_plot(exponent, "log2" if base == 2 else "log10"), 6)


def _plain(value: float, spacing: float) -> str:
    """A value with as many decimals as the spacing needs; far from 1 in scientific form."""
    size = max(abs(value), spacing)
    if size >= 1e5 or size < 1e-3:
        digits = max(1, math.ceil(math.log10(size / spacing)) + 1) if spacing > 0 else 3
        return "0" if abs(value) < spacing / 1e6 else number(value, digits)
    places = max(0, math.ceil(-math.log10(spacing) - 1e-9)) if spacing > 0 else 3
    return f"{value:.{places}f}".replace("-", "−")
