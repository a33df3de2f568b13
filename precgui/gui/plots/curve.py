"""One recorded series of one run as a line: fed from the tail of the record, drawn from its pyramid."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtGui import QColor, QPen

from precgui.gui.plots.marks import paint, scatter
from precgui.gui.plots.pyramid import Pyramid
from precgui.gui.plots.signals import Scale, to_plot
from precgui.runs.run import Axis, Run

DOT_PX = 8
MOST_DOTS = 400  # more points than this in view are a line without dots
_EMPTY = np.empty(0)


@dataclass(slots=True)
class NonFinite:
    """Where a growing series was NaN or infinite: every one of them, from the record and not from the picture."""

    x: NDArray[np.float64] = field(default_factory=lambda: _EMPTY)
    value: NDArray[np.float64] = field(default_factory=lambda: _EMPTY)
    _seen: int = 0

    def __len__(self) -> int:
        return len(self.x)

    def feed(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
        """Look at the part of the whole series (x, y) that has not been looked at yet."""
        tail = slice(self._seen, len(y))
        bad = ~np.isfinite(y[tail])
        if bad.any():
            self.x = np.concatenate([self.x, x[tail][bad]])
            self.value = np.concatenate([self.value, y[tail][bad]])
        self._seen = len(y)

    def first(self) -> float | None:
        return float(self.x[0]) if len(self.x) else None

    def sentence(self) -> str:
        """`2 NaN, 1 Inf`; empty when everything was finite."""
        nan, inf = int(np.isnan(self.value).sum()), int(np.isinf(self.value).sum())
        return ", ".join(f"{count} {word}" for count, word in ((nan, "NaN"), (inf, "Inf")) if count)


class Curve:
    """The series `name` of a run; `factor` and `scale` lead from recorded values to plot coordinates."""

    def __init__(self, run: Run, name: str, label: str, factor: float, dotted: bool = False) -> None:
        self.run, self.name, self.label = run, name, label
        self.line = pg.PlotCurveItem(connect="finite", antialias=True)
        self.dots = scatter(DOT_PX) if dotted else None
        self.x: NDArray[np.float64] = _EMPTY
        self.y: NDArray[np.float64] = _EMPTY
        self._factor = factor
        self._restart("linear", "step")

    def _restart(self, scale: Scale, over: Axis) -> None:
        self._scale, self._over = scale, over
        self.pyramid, self.nonfinite = Pyramid(), NonFinite()

    def set_style(self, colour: str, dash: tuple[float, ...], base: str) -> None:
        pen = QPen(QColor(colour))
        pen.setCosmetic(True)
        pen.setWidthF(1.0)
        if dash:
            pen.setDashPattern(dash)
        self.line.setPen(pen)
        if self.dots is not None:
            paint(self.dots, colour, base)

    def set_visible(self, visible: bool) -> None:
        for item in self.items():
            item.setVisible(visible)

    def items(self) -> list[pg.GraphicsObject]:
        return [self.line] if self.dots is None else [self.line, self.dots]

    def pull(self, scale: Scale, over: Axis) -> bool:
        """Take over what has been recorded since the last call. True when there is something new to draw."""
        if (scale, over) != (self._scale, self._over):
            self._restart(scale, over)
        x, y = self.run.series(self.name, over)
        known = len(self.pyramid)
        if len(x) < known or (known and x[known - 1] != self.pyramid.x[-1]):
            self._restart(scale, over)
            known = 0
        self.x, self.y = x, y
        if len(x) == known:
            return False
        self.pyramid.append(x[known:], to_plot(y[known:], self._factor, scale))
        self.nonfinite.feed(x, y)
        return True

    def draw(self, x0: float, x1: float, pixels: int) -> bool:
        """Draw what lies between x0 and x1. True when every recorded point of it is drawn."""
        drawn = self.pyramid.query(x0, x1, pixels)
        self.line.setData(drawn.x, drawn.y, connect="finite")
        if self.dots is not None:
            few = drawn.exact and len(drawn.x) <= MOST_DOTS
            self.dots.setData(drawn.x if few else _EMPTY, drawn.y if few else _EMPTY)
        return drawn.exact

    def bounds(self, x0: float, x1: float) -> tuple[float, float] | None:
        return self.pyramid.bounds(x0, x1)

    def nearest(self, x: float) -> int | None:
        """The index of the recorded point nearest to x; None without points."""
        if not len(self.x):
            return None
        after = int(np.searchsorted(self.x, x))
        if after == 0:
            return 0
        if after == len(self.x):
            return after - 1
        return after if self.x[after] - x < x - self.x[after - 1] else after - 1

    def drawn_point(self, index: int) -> tuple[float, float]:
        """Where the recorded point of that index lies in the plot; y is NaN when it cannot be drawn."""
        value = float(self.pyramid.y[index])
        return float(self.pyramid.x[index]), value if np.isfinite(value) else np.nan
