"""One recorded series of one run as a line: fed from the tail of the record, drawn from its pyramid."""

from __future__ import annotations

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtGui import QColor, QPen

from precgui.gui.plots.marks import first_in_pixels
from precgui.gui.plots.pyramid import RAW_POINTS_PER_PIXEL, Drawn, GrowingIndices, Pyramid
from precgui.gui.plots.signals import Scale, to_plot
from precgui.gui.plots.smoothing import trailing_mean
from precgui.runs.growable import GrowableArray
from precgui.runs.run import SignalSource
from precgui.runs.signals import Axis

DOT_PX = 8
MOST_DOTS = 100  # more points than this in view are a line without dots
OPAQUE_PX = 3.0  # broader lines let shine through what they meet
_PALE = 0.45
_FAINT = 0.25  # of what was recorded, under its mean
_EMPTY = np.empty(0)


class NonFinite:
    """Where a growing series was NaN or infinite: every one of them, from the record and not from the picture."""

    def __init__(self) -> None:
        self._index = GrowingIndices()
        self._y = _EMPTY
        self.nans = 0  # how many of them are NaN; the others are infinite

    def __len__(self) -> int:
        return self._index.size

    @property
    def index(self) -> NDArray[np.int32]:
        return self._index.values

    def update(self, y: NDArray[np.float64], known: int | None = None) -> None:
        """Take the whole series as it is now; its first `known` values (default: all so far) are unchanged."""
        known = min(len(self._y), len(y)) if known is None else known
        kept = int(self.index.searchsorted(np.int32(known)))
        fresh = known + np.flatnonzero(~np.isfinite(y[known:]))
        self.nans += int(np.isnan(y[fresh]).sum()) - int(np.isnan(self._y[self.index[kept:]]).sum())
        self._index.truncate(kept)
        self._index.extend(fresh)
        self._y = y

    def in_view(self, x: NDArray[np.float64], x0: float, x1: float, pixels: int) -> NDArray[np.int32]:
        """The first of them in each pixel of the width between x0 and x1; `x` of the whole series ascends."""
        bad = self.index
        ends = np.array([x.searchsorted(x0), x.searchsorted(x1, "right")], bad.dtype)
        start, stop = bad.searchsorted(ends).tolist()
        return bad[first_in_pixels(lambda places: x[bad[places]], start, stop, x0, x1, pixels)]

    def sentence(self) -> str:
        """`2 NaN, 1 Inf`; empty when everything was finite."""
        counts = ((self.nans, "NaN"), (len(self) - self.nans, "Inf"))
        return ", ".join(f"{count} {word}" for count, word in counts if count)


class Curve:
    """The series `name` of a run; `factor` and `scale` lead from recorded values to plot coordinates.

    Its graphics items are made when they are drawn first: in one picture of many runs they never are.
    """

    def __init__(
        self, run: SignalSource, name: str, label: str, factor: float, *, key: str, dotted: bool = False
    ) -> None:
        self.run, self.name, self.label, self.dotted = run, name, label, dotted
        self.line: pg.PlotCurveItem | None = None
        self.mean_line: pg.PlotCurveItem | None = None
        self.dot_x, self.dot_y = _EMPTY, _EMPTY  # where dots are drawn
        self.points = 1  # that are averaged
        self.raw_per_pixel = RAW_POINTS_PER_PIXEL  # with more points in view the extremes of blocks are drawn
        self._key = key
        self._visible = True
        self._style: tuple[str, tuple[float, ...], float] | None = None  # colour, dash, width
        self.x: NDArray[np.float64] = _EMPTY
        self.y: NDArray[np.float64] = _EMPTY
        self._factor = factor
        self._restart("linear", "step")

    def _restart(self, scale: Scale, over: Axis) -> None:
        self._scale, self._over, self._complete = scale, over, False
        self.pyramid, self.nonfinite, self._drawn = Pyramid(), NonFinite(), GrowableArray()
        self._last: tuple[tuple[float, float, int, int], Drawn] | None = None  # range, width, and what was drawn for it
        self.means, self._mean_pyramid, self._drawn_means = GrowableArray(), Pyramid(), GrowableArray()

    def smooth(self, points: int) -> None:
        """Draw the mean of this many points over the recorded ones; 1: only these."""
        self.points = points
        self.means, self._mean_pyramid, self._drawn_means = GrowableArray(), Pyramid(), GrowableArray()
        self._update_means(0)
        self.set_visible(self._visible)

    def _update_means(self, known: int) -> None:
        """Average what has come after the first `known` values."""
        if self.points == 1:
            return
        start = max(0, known - self.points + 1)
        fresh = trailing_mean(self.y[start:], self.points)[known - start :]
        for kept, values in ((self.means, fresh), (self._drawn_means, to_plot(fresh, self._factor, self._scale))):
            kept.truncate(known)
            kept.append(values)
        self._mean_pyramid.update(self.x, self._drawn_means.view, known)

    def set_style(self, colour: str, dash: tuple[float, ...], width_px: float) -> None:
        self._style = colour, dash, width_px
        for line, share in ((self.line, _FAINT if self.points > 1 else 1.0), (self.mean_line, 1.0)):
            if line is not None:
                _paint_line(line, colour, dash, width_px, share)

    def set_visible(self, visible: bool) -> None:
        self._visible = visible
        if self.line is not None:
            self.line.setVisible(visible)
        if self.mean_line is not None:
            self.mean_line.setVisible(visible and self.points > 1)

    def lines(self) -> list[pg.PlotCurveItem]:
        """The graphics items that exist."""
        return [line for line in (self.line, self.mean_line) if line is not None]

    def _new_line(self, kind: str) -> pg.PlotCurveItem:
        line = pg.PlotCurveItem(connect="finite", antialias=True)
        line.setObjectName(f"{kind} {self.name} of {self._key}")
        line.setVisible(self._visible)
        if self._style is not None:
            _paint_line(line, *self._style, _FAINT if kind == "line" and self.points > 1 else 1.0)
        return line

    def pull(self, scale: Scale, over: Axis) -> bool:
        """Take over what has been recorded since the last call. True when there is something new to draw."""
        if (scale, over) != (self._scale, self._over):
            self._restart(scale, over)
        if self._complete:
            return False
        self._complete = self.run.status != "running"
        x, y = self.run.series(self.name, over)
        known, before = self._unchanged(x), len(self.pyramid)
        self.x, self.y = x, y
        if known == before == len(x):
            return False
        self._last = None
        self.pyramid.update(x, self._to_plot(y, known), known)
        self.nonfinite.update(y, known)
        self._update_means(known)
        return True

    def _unchanged(self, x: NDArray[np.float64]) -> int:
        """How many points are where they were: readings after the last step move when a further step is done."""
        known, back = min(len(self.pyramid), len(x)), 1
        while known > 0 and x[known - 1] != self.pyramid.x[known - 1]:
            known, back = max(known - back, 0), 2 * back
        return known

    def _to_plot(self, y: NDArray[np.float64], known: int) -> NDArray[np.float64]:
        if self._scale == "linear" and self._factor == 1.0:
            return y
        self._drawn.truncate(known)
        self._drawn.append(to_plot(y[known:], self._factor, self._scale))
        return self._drawn.view

    def query(self, x0: float, x1: float, pixels: int) -> Drawn:
        """Points of the line between x0 and x1: means where it is smoothed, else what was recorded."""
        if self.points > 1:
            return self._mean_pyramid.query(x0, x1, pixels, self.raw_per_pixel)
        return self._recorded(x0, x1, pixels)

    def _recorded(self, x0: float, x1: float, pixels: int) -> Drawn:
        """The points of the pyramid; the value range of a picture and its lines need the same ones."""
        place = (x0, x1, pixels, self.raw_per_pixel)
        if self._last is None or self._last[0] != place:
            self._last = place, self.pyramid.query(*place)
        return self._last[1]

    def draw(self, x0: float, x1: float, pixels: int) -> bool:
        """Draw what lies between x0 and x1. True when every recorded point of it is drawn."""
        drawn = self._recorded(x0, x1, pixels)
        self.line = self.line or self._new_line("line")
        self.line.setData(drawn.x, drawn.y, connect="finite", antialias=drawn.exact)
        if self.points > 1:
            means = self._mean_pyramid.query(x0, x1, pixels)
            self.mean_line = self.mean_line or self._new_line("mean")
            self.mean_line.setData(means.x, means.y, connect="finite", antialias=means.exact)
        if self.dotted:
            self.place_dots(x0, x1, pixels)
        return drawn.exact

    def place_dots(self, x0: float, x1: float, pixels: int) -> bool:
        """Find where dots are drawn between x0 and x1. True when every recorded point there has one."""
        drawn = self._recorded(x0, x1, pixels)
        few = np.isfinite(drawn.y) & (drawn.exact and len(drawn.x) <= MOST_DOTS)
        self.dot_x, self.dot_y = drawn.x[few], drawn.y[few]
        return drawn.exact

    def bounds(self, x0: float, x1: float, pixels: int) -> tuple[float, float] | None:
        """The smallest and largest finite value between x0 and x1; None when there is none."""
        drawn = self._recorded(x0, x1, pixels)
        inside = drawn.y[drawn.inside]
        if not len(inside):
            return None
        low, high = float(inside.min()), float(inside.max())
        if low != low:  # NaN, which `fmin` leaves out at several times the cost
            low, high = float(np.fmin.reduce(inside)), float(np.fmax.reduce(inside))
        return None if low != low else (low, high)

    @property
    def is_blank(self) -> bool:
        """Whether the curve draws nothing at present."""
        return not len(self.dot_x) and (self.line is None or self.line.xData is None or not len(self.line.xData))

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


def _paint_line(line: pg.PlotCurveItem, colour: str, dash: tuple[float, ...], width_px: float, share: float) -> None:
    """Give a line its pen; `share` of its opacity."""
    drawn = QColor(colour)
    drawn.setAlphaF((1.0 if width_px <= OPAQUE_PX else _PALE) * share)
    pen = QPen(drawn)
    pen.setCosmetic(True)
    pen.setWidthF(width_px)
    if dash:
        pen.setDashPattern(dash)
    line.setPen(pen)
    line.setZValue(-width_px)  # a broad line lies under the others
