"""The roofline of measured rates: memory bandwidth as the slope, the best rate of each format as the roof."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pyqtgraph as pg

from precgui.gui.theme import themes
from precgui.hardware.measured import best_tops

BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "e4m3fn": 1, "int8": 1}
SYMBOLS = ("o", "s", "t", "d", "+", "x", "star")
_LEAST, _MOST = 0.25, 4096.0  # operations per byte shown
_LABEL_STEP = 0.6  # decades between the names of roofs that may be close


def intensity(fmt: str, size: int) -> float:
    """Operations per byte of a size^3 product whose three matrices move once."""
    return 2 * size**3 / (3 * size**2 * BYTES[fmt])


class Roofline(pg.PlotWidget):  # type: ignore[misc]  # pyqtgraph is untyped
    """Log-log picture; a format keeps its colour and symbol from one result to the next."""

    def __init__(self) -> None:
        super().__init__()
        self._result: Mapping[str, Any] | None = None
        self._drawn: tuple[int, int, bool] | None = None
        self.setLogMode(x=True, y=True)
        self.setMenuEnabled(False)
        self.setMouseEnabled(x=False, y=False)
        self.hideButtons()
        self.setFixedHeight(300)
        self.setAccessibleName("Roofline")
        themes().changed.connect(self._draw)

    def show_result(self, result: Mapping[str, Any] | None) -> None:
        """Draw this result; one that grows is drawn again only when it has a new product."""
        drawn = (id(result), len(result["gemm"]), bool(result["copy"])) if result else None
        if drawn != self._drawn:
            self._drawn, self._result = drawn, result
            self._draw()

    def _draw(self) -> None:
        theme, result = themes().theme, self._result
        self.clear()
        self.setBackground(theme.base)
        for side, text in (("bottom", "operations per byte"), ("left", "10¹² operations a second")):
            axis = self.getAxis(side)
            axis.setPen(theme.line)
            axis.setTextPen(theme.muted)
            axis.setLabel(text, color=theme.muted)
        if result is None or not result.get("copy"):
            return
        bandwidth = result["copy"]["gb_s"] * 1e-3
        for place, (fmt, roof) in enumerate(best_tops(result).items()):
            colour = theme.runs[place % len(theme.runs)]
            ridge = max(_LEAST, roof / bandwidth)
            self.plot(
                [_LEAST, ridge, _MOST], [min(roof, bandwidth * _LEAST), roof, roof], pen=pg.mkPen(colour, width=1)
            )
            rows = [row for row in result["gemm"] if row["format"] == fmt and row["tops"]]
            self.plot(
                [intensity(fmt, row["m"]) for row in rows], [row["tops"] for row in rows], pen=None,
                symbol=SYMBOLS[place % len(SYMBOLS)], symbolBrush=colour, symbolPen=None, symbolSize=8,
            )  # fmt: skip
            text = pg.TextItem(fmt, color=colour, anchor=(1, 1))
            text.setPos(math.log10(_MOST) - place % 4 * _LABEL_STEP, math.log10(roof))
            self.addItem(text)
        self.setXRange(math.log10(_LEAST), math.log10(_MOST), padding=0.02)
