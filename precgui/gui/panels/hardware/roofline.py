"""The roofline of measured rates: memory bandwidth as the slope, the best rate of each format as the roof."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyqtgraph as pg

from precgui.gui.format_colours import format_colour
from precgui.gui.theme import themes
from precgui.hardware.measured import best_tops, copy_gb_s

BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "e4m3fn": 1, "int8": 1}
SYMBOLS = dict(zip(BYTES, ("o", "s", "t", "d", "+", "x", "star"), strict=True))
_LEAST, _MOST = 0.25, 65536.0  # operations per byte shown: up to FP8 products of 16384
_LABEL_STEP = 0.6  # decades between the names of two roofs, less where the roofs are short


def intensity(fmt: str, size: int) -> float:
    """Operations per byte of a size^3 product whose three matrices move once."""
    return 2 * size**3 / (3 * size**2 * BYTES[fmt])


class _Roof:
    """Roof, products and name of one format, made once: pyqtgraph takes milliseconds to make an item."""

    def __init__(self, fmt: str) -> None:
        self.line = pg.PlotCurveItem()
        self.products = pg.ScatterPlotItem(symbol=SYMBOLS[fmt], size=8, pen=None)
        self.name = pg.TextItem(fmt, anchor=(1, 1))
        self.items = (self.line, self.products, self.name)
        for kind, item in zip(("roof", "products", "name"), self.items, strict=True):
            item.setObjectName(f"{kind} {fmt}")
        self._drawn: tuple[Any, ...] = ()

    def colour(self, colour: str) -> None:
        self.line.setPen(pg.mkPen(colour, width=1))
        self.products.setBrush(colour)
        self.name.setColor(colour)

    def show(self, fmt: str, roof: float, bandwidth: float, rows: Sequence[Mapping[str, Any]]) -> None:
        """`roof` and `bandwidth` in 10^12 a second; each row is a product that was measured."""
        drawn = (roof, bandwidth, len(rows))
        if drawn == self._drawn:
            return
        self._drawn = drawn
        ridge = max(_LEAST, roof / bandwidth)
        self.line.setData(np.log10([_LEAST, ridge, _MOST]), np.log10([min(roof, bandwidth * _LEAST), roof, roof]))
        self.products.setData(np.log10([intensity(fmt, r["m"]) for r in rows]), np.log10([r["tops"] for r in rows]))
        step = min(_LABEL_STEP, math.log10(_MOST / ridge) / len(BYTES))
        self.name.setPos(math.log10(_MOST) - list(BYTES).index(fmt) * step, math.log10(roof))


class Roofline(pg.PlotWidget):  # type: ignore[misc]  # pyqtgraph is untyped
    """Log-log picture; a format keeps its colour and symbol from one result to the next."""

    def __init__(self) -> None:
        super().__init__(enableMenu=False)
        self._result: Mapping[str, Any] | None = None
        self._roofs = {fmt: _Roof(fmt) for fmt in BYTES}
        self._decades = (0, 0)
        self.setMouseEnabled(x=False, y=False)
        self.hideButtons()
        self.getViewBox().disableAutoRange()
        for side, text in (("bottom", "operations per byte"), ("left", "10¹² operations a second")):
            self.getAxis(side).setLogMode(True)
            self.getAxis(side).enableAutoSIPrefix(False)
            self.getAxis(side).setLabel(text)
        for roof in self._roofs.values():
            for item in roof.items:
                self.addItem(item, ignoreBounds=True)
        self.setXRange(math.log10(_LEAST), math.log10(_MOST), padding=0.02)
        self.setFixedHeight(300)
        self.setAccessibleName("Roofline")
        themes().changed.connect(self._recolour)
        self._recolour()
        self._draw()

    def show_result(self, result: Mapping[str, Any] | None) -> None:
        """Draw this result, which may have grown since the last call."""
        self._result = result
        self._draw()

    def _recolour(self) -> None:
        theme = themes().theme
        self.setBackground(theme.base)
        for side in ("bottom", "left"):
            axis = self.getAxis(side)
            axis.setPen(theme.line)
            axis.setTextPen(theme.muted)
            axis.setLabel(axis.labelText, color=theme.muted)
        for fmt, roof in self._roofs.items():
            roof.colour(format_colour(fmt))

    def _draw(self) -> None:
        result = self._result
        bandwidth = (copy_gb_s(result) or 0.0) * 1e-3
        best = best_tops(result) if result is not None and bandwidth else {}
        for fmt, roof in self._roofs.items():
            for item in roof.items:
                item.setVisible(fmt in best)
            if result is not None and fmt in best:
                rows = [row for row in result["gemm"] if row["format"] == fmt and row["tops"]]
                roof.show(fmt, best[fmt], bandwidth, rows)
        if best:
            self._show_decades(min(*best.values(), bandwidth * _LEAST), max(best.values()))

    def _show_decades(self, low: float, high: float) -> None:
        """Whole decades, so that the axis is drawn anew only when the figures leave them."""
        decades = (math.floor(math.log10(low)), math.ceil(math.log10(high) + 0.1))
        if decades != self._decades:
            self._decades = decades
            self.setYRange(*decades, padding=0.03)
