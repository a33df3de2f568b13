"""All that a chart of curves draws of one run. An item is in the plot only while it has something to draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyqtgraph as pg

from precgui.gui.plots.curve import DOT_PX, Curve
from precgui.gui.plots.marks import MarkGroup, Track
from precgui.words import L_, _, translated

if TYPE_CHECKING:
    from precgui.gui.open_run import DrawnRun

_END_PX = 7
DOTTED = {
    "val_loss": L_("validation"),
    "val_accuracy": L_("validation"),
    "zeros_by_rounding": L_("zeros by rounding"),
}


class RunCurves:
    """All that a chart draws of one run; its marks are drawn with those of the other runs."""

    def __init__(self, opened: DrawnRun, curves: list[Curve], track: Track | None, *, named: bool, ended: bool) -> None:
        self.opened, self.curves, self.track = opened, curves, track
        self.style: tuple[object, ...] = ()  # in which all was drawn last
        self.has_end = ended
        self.is_read = False  # whether the chart has taken over what the run had
        self.names = [pg.TextItem(curve.label, anchor=(1, 1)) for curve in curves] if named else []
        self.inside: set[pg.GraphicsObject] = set()  # items that are in the plot
        for place, item in enumerate(self.names):
            item.setObjectName(f"name {item.toPlainText() or place} of {opened.key}")

    def set_visible(self, visible: bool) -> None:
        for curve in self.curves:
            curve.set_visible(visible)
        for name in self.names:
            name.setVisible(visible)

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
        """The lines that were drawn; `dense`: one picture of all runs has them."""
        for curve in self.curves:
            if curve.line is not None:
                self.put(plot, curve.line, there=not dense)
            if curve.mean_line is not None:
                self.put(plot, curve.mean_line, there=not dense and curve.points > 1)

    def end_mark(self, colour: str, base: str) -> MarkGroup | None:
        """A dot on the last finite point of a run that is over."""
        if not self.has_end or not self.curves or self.opened.run.status == "running":
            return None
        pyramid = self.curves[0].pyramid
        if not len(pyramid):
            return None
        last = np.flatnonzero(np.isfinite(pyramid.y[-1:]))
        last = last + len(pyramid) - 1 if len(last) else np.flatnonzero(np.isfinite(pyramid.y))[-1:]
        return MarkGroup("end", self.opened.key, pyramid.x[last], pyramid.y[last], "o", colour, base, _END_PX)

    def dot_marks(self, colour: str, base: str) -> list[MarkGroup]:
        """The dots of validations and other few points."""
        return [
            MarkGroup(f"dots {curve.name}", self.opened.key, curve.dot_x, curve.dot_y, "o", colour, base, DOT_PX)
            for curve in self.curves
            if curve.dotted
        ]


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
    return _("dots: {series}").format(series=_(", ").join(map(translated, meant))) if meant else ""
