"""One crosshair for all linked plots: it snaps to a recorded point, and every plot shows its value there."""

from __future__ import annotations

from collections.abc import Sequence

from precgui.gui.plots.chart import Chart
from precgui.gui.plots.curve_chart import CurveChart
from precgui.gui.plots.frame import PlotFrame


class Crosshair:
    """Follows the mouse at the pace of the redraw timer, or is moved point by point with the keys."""

    def __init__(self, frames: Sequence[PlotFrame]) -> None:
        self._frames = frames
        self._pointed: tuple[Chart, float] | None = None
        self._under: Chart | None = None
        self.place: float | None = None

    def point(self, chart: Chart, x: float) -> None:
        """Take a position of the mouse over a chart; the next `show_pointed` puts the crosshair there."""
        self._pointed = (chart, x)

    def show_pointed(self) -> None:
        """Stand on the recorded point nearest to the mouse, of the plot under it if that has any."""
        if self._pointed is None:
            return
        (chart, x), self._pointed = self._pointed, None
        near = _recorded_near(x, [chart]) or _recorded_near(x, [frame.chart for frame in self._frames])
        if near:
            self.put(min(near, key=lambda place: abs(place - x)), chart)

    def put(self, x: float, under: Chart | None = None) -> None:
        """Stand at x in every plot; the readout of the plot under the mouse names the place."""
        self.place, self._under = x, under
        headed = under or self._frames[0].chart
        for frame in self._frames:
            if not frame.isHidden():
                frame.chart.show_cursor(x, frame.chart is headed)

    def restyle(self) -> None:
        """Show the readouts in the colours of the present theme."""
        if self.place is not None:
            self.put(self.place, self._under)

    def hide(self) -> None:
        self._pointed = self.place = None
        for frame in self._frames:
            frame.chart.hide_cursor()

    def step(self, by: int, start: float) -> None:
        """Move to the next recorded point of the first run, or the one before; from `start` while it is nowhere."""
        for frame in self._frames:
            if isinstance(frame.chart, CurveChart):
                place = frame.chart.neighbour(start if self.place is None else self.place, by)
                if place is not None:
                    self.put(place)
                    return


def _recorded_near(x: float, charts: Sequence[Chart]) -> list[float]:
    return [value.x for chart in charts for reading in chart.readings(x) for value in reading.values]
