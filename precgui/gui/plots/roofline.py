"""A roofline: memory bandwidth as the slope, the best rate of each format as the roof, products as points under it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyqtgraph as pg

from precgui.gui.format_colours import format_colour
from precgui.gui.plots.axes import colour_axes
from precgui.gui.plots.menus import own_menu
from precgui.gui.theme import themes
from precgui.words import _

FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "e4m3fn", "int8")
SYMBOLS = dict(zip(FORMATS, ("o", "s", "t", "d", "+", "x", "star"), strict=True))
_LEAST, _MOST = 0.25, 65536.0  # operations per byte shown: up to FP8 products of 16384
_LABEL_STEP = 0.6  # decades between the names of two roofs, less where the roofs are short

Point = tuple[float, float]  # operations per byte, 10^12 operations a second


@dataclass(frozen=True, slots=True)
class RooflineData:
    """`bandwidth` in 10^12 bytes a second, the highest rate of each format in 10^12 operations a second, and points."""

    bandwidth: float
    roofs: Mapping[str, float]
    points: Mapping[str, Sequence[Point]] = field(default_factory=dict)


class _Roof:
    """Roof, products and name of one format, made once: pyqtgraph takes milliseconds to make an item."""

    def __init__(self, fmt: str) -> None:
        self.line = pg.PlotCurveItem()
        self.products = pg.ScatterPlotItem(symbol=SYMBOLS[fmt], size=8, pen=None)
        self.name = pg.TextItem(fmt, anchor=(1, 1))
        self.items = (self.line, self.products, self.name)
        for kind, item in zip(("roof", "products", "name"), self.items, strict=True):
            item.setObjectName(f"{kind} {fmt}")
        self._drawn: tuple[object, ...] = ()

    def colour(self, colour: str) -> None:
        self.line.setPen(pg.mkPen(colour, width=1))
        self.products.setBrush(colour)
        self.name.setColor(colour)

    def show(self, fmt: str, roof: float, bandwidth: float, points: Sequence[Point]) -> None:
        """`roof` and `bandwidth` in 10^12 a second."""
        drawn = (roof, bandwidth, *points)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        ridge = max(_LEAST, roof / bandwidth)
        self.line.setData(np.log10([_LEAST, ridge, _MOST]), np.log10([min(roof, bandwidth * _LEAST), roof, roof]))
        self.products.setData(np.log10([x for x, _ in points]), np.log10([y for _, y in points]))
        step = min(_LABEL_STEP, math.log10(_MOST / ridge) / len(FORMATS))
        self.name.setPos(math.log10(_MOST) - FORMATS.index(fmt) * step, math.log10(roof))


class Roofline(pg.PlotWidget):  # type: ignore[misc]  # pyqtgraph is untyped
    """Log-log picture; a format keeps its colour and symbol from one result to the next."""

    def __init__(self) -> None:
        super().__init__(enableMenu=False)
        own_menu(self)
        self._data: RooflineData | None = None
        self._roofs = {fmt: _Roof(fmt) for fmt in FORMATS}
        self._decades = (0, 0)
        self.setMouseEnabled(x=False, y=False)
        self.hideButtons()
        self.plotItem.setContentsMargins(2, 2, 2, 2)  # the frame of the focus
        self.getViewBox().disableAutoRange()
        for side, text in (("bottom", _("operations per byte")), ("left", _("10¹² operations a second"))):
            self.getAxis(side).setLogMode(True)
            self.getAxis(side).enableAutoSIPrefix(False)
            self.getAxis(side).setLabel(text)
        for roof in self._roofs.values():
            for item in roof.items:
                self.addItem(item, ignoreBounds=True)
        self.setXRange(math.log10(_LEAST), math.log10(_MOST), padding=0.02)
        self.setMinimumHeight(180)
        self.setAccessibleName(_("Roofline"))
        themes().follow(self, self._recolour)
        self._recolour()
        self._draw()

    def show_data(self, data: RooflineData | None) -> None:
        """Draw this, which may have grown since the last call."""
        self._data = data
        self._draw()

    def _recolour(self) -> None:
        colour_axes(self)
        for fmt, roof in self._roofs.items():
            roof.colour(format_colour(fmt))

    def _draw(self) -> None:
        data = self._data
        roofs = data.roofs if data is not None else {}
        for fmt, roof in self._roofs.items():
            for item in roof.items:
                item.setVisible(fmt in roofs)
            if data is not None and fmt in roofs:
                roof.show(fmt, roofs[fmt], data.bandwidth, data.points.get(fmt, ()))
        if data is not None and roofs:
            rates = [rate for points in data.points.values() for _, rate in points]
            self._show_decades(min(*roofs.values(), data.bandwidth * _LEAST, *rates), max(roofs.values()))

    def _show_decades(self, low: float, high: float) -> None:
        """Whole decades, so that the axis is drawn anew only when the figures leave them."""
        decades = (math.floor(math.log10(low)), math.ceil(math.log10(high) + 0.1))
        if decades != self._decades:
            self._decades = decades
            self.setYRange(*decades, padding=0.03)
            whole = range(decades[0], decades[1] + 1)
            between = [(place + math.log10(digit), "") for place in whole[:-1] for digit in range(2, 10)]
            self.getAxis("left").setTicks([[(place, f"{10.0**place:g}") for place in whole], between])
