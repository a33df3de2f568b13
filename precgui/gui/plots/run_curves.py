"""All that a chart of curves draws of one run. An item is in the plot only while it has something to draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyqtgraph as pg

from precgui.gui.plots.curve import Curve
from precgui.gui.plots.marks import Track, scatter

if TYPE_CHECKING:
    from precgui.gui.open_runs import DrawnRun

_END_PX = 7
DOTTED = {"val_loss": "validation", "val_accuracy": "validation", "zeros_by_rounding": "zeros by rounding"}


class RunCurves:
    """All that a chart draws of one run."""

    def __init__(self, opened: DrawnRun, curves: list[Curve], track: Track | None, *, named: bool, ended: bool) -> None:
        self.opened, self.curves, self.track = opened, curves, track
        self.style: tuple[object, ...] = ()  # in which all was drawn last
        self.end = scatter(_END_PX) if ended else None
        self.edge, self.skips = scatter(), scatter()
        self.names = [pg.TextItem(curve.label, anchor=(1, 1)) for curve in curves] if named else []
        self.inside: set[pg.GraphicsObject] = set()  # items that are in the plot
        self._name_items()

    def _name_items(self) -> None:
        """Object names such as `line loss of KEY` and `edge of KEY`, by which an item of the plot is found."""
        named = {"edge": self.edge, "skips": self.skips} | ({} if self.end is None else {"end": self.end})
        for curve in self.curves:
            named |= {f"line {curve.name}": curve.line, f"mean {curve.name}": curve.mean_line}
            named |= {} if curve.dots is None else {f"dots {curve.name}": curve.dots}
        named |= {f"name {item.toPlainText() or place}": item for place, item in enumerate(self.names)}
        for name, item in named.items():
            item.setObjectName(f"{name} of {self.opened.key}")

    def items(self) -> list[pg.GraphicsObject]:
        ends = [] if self.end is None else [self.end]
        return [*(item for curve in self.curves for item in curve.items()), *ends, self.edge, self.skips, *self.names]

    def put(self, plot: pg.PlotItem, item: pg.GraphicsObject, there: bool) -> None:
        """Add an item to the plot, or take it out: thousands of empty ones would cost every frame."""
        if there == (item in self.inside):
            return
        if there:
            self.inside.add(item)
            plot.addItem(item, ignoreBounds=True)
        else:
            self.inside.discard(item)
            plot.removeItem(item)

    def forget(self, plot: pg.PlotItem) -> None:
        """Take everything out of the plot."""
        for item in list(self.inside):
            self.put(plot, item, there=False)

    def put_lines(self, plot: pg.PlotItem, *, dense: bool) -> None:
        """The lines and dots that have something to draw; `dense`: one picture of all runs has the lines."""
        for curve in self.curves:
            self.put(plot, curve.line, there=not dense)
            self.put(plot, curve.mean_line, there=not dense and curve.points > 1)
            if curve.dots is not None:
                self.put(plot, curve.dots, there=len(curve.dots.data) > 0)

    def draw_end(self, plot: pg.PlotItem) -> None:
        """A dot on the last finite point of a run that is over."""
        if self.end is None:
            return
        pyramid = self.curves[0].pyramid
        if self.opened.run.status == "running" or not len(pyramid):
            self.put(plot, self.end, there=False)
            return
        last = np.flatnonzero(np.isfinite(pyramid.y[-1:]))
        last = last + len(pyramid) - 1 if len(last) else np.flatnonzero(np.isfinite(pyramid.y))[-1:]
        self.end.setData(pyramid.x[last], pyramid.y[last])
        self.put(plot, self.end, there=len(last) > 0)


def place_names(part: RunCurves, x1: float, highest: float) -> None:
    """The names of the devices, each on the last point in view of its line, or below one that is above `highest`."""
    for name, curve in zip(part.names, part.curves, strict=False):
        last = int(np.searchsorted(curve.pyramid.x, x1, "right")) - 1
        there = last >= 0 and bool(np.isfinite(curve.pyramid.y[last]))
        name.setText(curve.label if there else "")
        if there:
            name.setAnchor((1, 0 if curve.pyramid.y[last] > highest else 1))
            name.setPos(curve.pyramid.x[last], curve.pyramid.y[last])


def legend(parts: Sequence[RunCurves]) -> str:
    """The meaning of the dots: a second series has the colour and dash of the run's own curve."""
    drawn = [curve.name for part in parts for curve in part.curves[1:] if len(curve.y)]
    meant = dict.fromkeys(DOTTED[name] for name in drawn if name in DOTTED)
    return f"dots: {', '.join(meant)}" if meant else ""
