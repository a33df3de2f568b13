"""A plot of a recorded signal: lines of all visible runs, drawn from pyramids, with marks for NaN, Inf and skips."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from precgui.gui.plots.chart import LOADING, Chart, CsvRow, ReadoutLine, Value, colour_of, dash_of
from precgui.gui.plots.curve import OPAQUE_PX, Curve
from precgui.gui.plots.dense_lines import DENSE_FROM, DENSE_RAW_PER_PIXEL, DenseLine, DenseLines
from precgui.gui.plots.marks import SYMBOL_PX, MarkGroup, Marks, Track, symbol_of
from precgui.gui.plots.pyramid import RAW_POINTS_PER_PIXEL
from precgui.gui.plots.run_curves import DOTTED, RunCurves, legend, place_names
from precgui.gui.plots.signals import READ_AT_ONCE, Signal, devices_of, signal_text, suited
from precgui.gui.theme import themes
from precgui.runs.baseline import LOSS_GAP, LOSS_MEAN
from precgui.runs.run import SignalSource
from precgui.runs.summary import sensor_rows
from precgui.sentences import kept_text
from precgui.words import L_, _, translated

if TYPE_CHECKING:
    from precgui.gui.open_run import DrawnRun

_SMOOTHED = L_("smoothed: mean of the last {points} points; faint: {drawn}")
_SMOOTHED_DENSE = L_("smoothed: mean of the last {points} points, {drawn}")


def device_sentences(runs: Sequence[DrawnRun], signal: Signal) -> str:
    """Why no device of these runs recorded this signal."""
    if any(opened.run.status == "running" and not opened.run.state_devices() for opened in runs):
        return _("Waiting for the first value.")
    if not any(opened.run.state_devices() for opened in runs):
        return _("What the devices did was not recorded in these runs.")
    lines: list[str] = []
    for opened in runs:
        for sensor in sensor_rows(opened.run):
            name = sensor.get("name", "GPU")
            unavailable = sensor.get("unavailable", sensor.get("untold"))  # as files of early versions call it
            if isinstance(unavailable, dict) and signal.series[0] in unavailable:
                why = translated(kept_text(unavailable[signal.series[0]]))
                lines.append(_("{name}: not available: {why}.").format(name=name, why=why))
            elif name == "NVML" and not sensor.get("found"):
                lines.append(f"NVML: {translated(kept_text(sensor.get('reason') or ''))}")
    absent = _("{signal}: not measured in these runs.").format(signal=translated(signal.title))
    return "\n".join(dict.fromkeys([absent, *lines]))


def power_sentences(runs: Sequence[DrawnRun]) -> str:
    """Which power sensors these runs tried, and why none could be read."""
    lines: list[str] = []
    for opened in runs:
        for sensor in sensor_rows(opened.run):
            reason = translated(kept_text(sensor["reason"])) if sensor.get("reason") else _("no reading yet")
            name = sensor.get("name") or _("sensor")
            line = f"{name}: {reason}"
            if line not in lines:
                lines.append(line)
    if not lines:
        running = any(opened.run.status == "running" for opened in runs)
        if running:
            return _("Looking for power sensors.")
        return _("The file does not say which power sensors were looked for.")
    return "\n".join([_("No power was measured. These sensors were looked for:"), *lines])


MARGIN = 0.07  # of the value range, above and below
_LEAST_FILL = 0.55  # of the height: with less data in it the value range shrinks
_LEAST_OCTAVES = 2.0
_ROOM_FOR_NAME = 0.8  # of the height, above which the name of a line stands below it
READ_AT_ONCE_S = 0.05  # after which the other runs wait for the next turn: norms of weights take longer
_LOSSES = ("loss", LOSS_MEAN, LOSS_GAP)
_LARGEST = 1e300  # the range of an axis must not overflow


class CurveChart(Chart):
    """The chart of every signal that has a value at each step, epoch or reading."""

    def __init__(self, signal: Signal) -> None:
        super().__init__(signal)
        self._drawn: dict[str, RunCurves] = {}
        self._points = 1  # that a line is the mean of
        self._dense = DenseLines()
        self._dense.setObjectName("dense lines")
        self.marks = Marks()
        for item in (self._dense, self.marks):
            self.plotItem.addItem(item, ignoreBounds=True)

    def set_smoothing(self, points: int) -> None:
        self._points = points if self.signal.noisy else 1
        for part in self._drawn.values():
            self._smooth(part.curves)
        self.restyle_runs()

    def _smooth(self, curves: Sequence[Curve]) -> None:
        """Smooth curves as chosen; evaluations are few and stay as recorded."""
        for curve in curves:
            if not curve.dotted:
                curve.smooth(self._points)

    def set_runs(self, runs: Sequence[DrawnRun]) -> None:
        self.runs = list(runs)
        self._take_signal(suited(self.signal, [opened.run for opened in runs if opened.visible]))
        requested = {opened.key: opened for opened in runs}
        for key in [key for key in self._drawn if key not in requested]:
            self._forget(key)
        for opened in runs:
            self._refresh(opened)
        self.restyle_runs()

    def _take_signal(self, signal: Signal) -> None:
        """Draw a signal with the words and the unit that fit the runs."""
        if signal == self.signal:
            return
        if signal.factor != self.signal.factor:
            for key in list(self._drawn):
                self._forget(key)
        self.signal = signal
        self.value_axis.setLabel(escape(translated(signal.axis)))
        self.setAccessibleName(translated(signal.title))

    def _refresh(self, opened: DrawnRun) -> None:
        """Make the curves of a run; again when a device has joined."""
        names = self._series(opened.run)
        known = self._drawn.get(opened.key)
        if known is not None and [curve.name for curve in known.curves] == [name for name, _ in names]:
            known.opened = opened  # a copy of it may have another colour
            return
        self._forget(opened.key)
        curves = [
            Curve(opened.run, name, label, self.signal.factor, key=opened.key, dotted=name in DOTTED)
            for name, label in names
        ]
        self._smooth(curves)
        track = Track(opened.run) if self.signal.key == "scale" else None
        named = devices_of(self.signal, opened.run) is not None and len(curves) > 1
        created = self._drawn[opened.key] = RunCurves(opened, curves, track, named=named, ended=self.signal.ended)
        for name in created.names:
            created.put(self.plotItem, name, there=True)

    def _forget(self, key: str) -> None:
        if (known := self._drawn.pop(key, None)) is not None:
            known.forget(self.plotItem)

    def _series(self, run: SignalSource) -> list[tuple[str, str]]:
        """(name for SignalSource.series, label) of each line of a run."""
        devices = devices_of(self.signal, run)
        if devices is not None:
            return [(f"{self.signal.series[0]}:{device}", device) for device in devices]
        return list(zip(self.signal.series, map(translated, self.signal.labels), strict=True))

    def restyle(self) -> None:
        super().restyle()
        self.restyle_runs()

    def restyle_runs(self) -> None:
        for part in self._drawn.values():
            colour, dash = colour_of(part.opened), dash_of(part.opened)
            style = (colour, dash, part.opened.line_px, part.opened.visible, self._points)
            if style == part.style:
                continue
            part.style = style
            for curve in part.curves:
                curve.set_style(colour, dash, part.opened.line_px)
            part.set_visible(part.opened.visible)
            for name in part.names:
                name.setColor(colour)

    @property
    def has_unread_runs(self) -> bool:
        return any(not part.is_read for part in self._drawn.values())

    def pull(self) -> bool:
        fresh, unread, end = False, 0, time.perf_counter() + READ_AT_ONCE_S
        for opened in self.runs:
            part = self._part(opened)
            if not part.is_read:
                unread += 1
                if unread > READ_AT_ONCE or (unread > 1 and time.perf_counter() > end):
                    continue
            part.is_read = True
            for curve in part.curves:
                fresh |= curve.pull(self.scale, self.over)
            if part.track is not None:
                fresh |= part.track.pull()
        return fresh

    def _part(self, opened: DrawnRun) -> RunCurves:
        """The curves of a run, one for each device that has reported by now."""
        known = self._drawn[opened.key]
        if opened.run.status == "running" and devices_of(self.signal, opened.run) is not None:
            self._refresh(opened)
            if self._drawn[opened.key] is not known:
                self.restyle_runs()
        return self._drawn[opened.key]

    def draw(self) -> None:
        x0, x1 = self.x_range()
        parts = self._visible()
        dense = self._is_dense(parts)
        self._set_detail(parts, dense)
        if self.auto_y:
            self._fit([curve for part in parts for curve in part.curves if len(curve.x)], x0, x1)
        exact = self._draw_lines(parts, x0, x1, dense)
        self._draw_marks(parts, x0, x1)
        drawn = _("all steps drawn") if exact else _("least and largest of each pixel drawn")
        note = drawn
        if self._points > 1:
            note = translated(_SMOOTHED_DENSE if dense else _SMOOTHED).format(points=self._points, drawn=drawn)
        self.note = _("; ").join(part for part in (note, legend(parts)) if part)

    @staticmethod
    def _is_dense(parts: Sequence[RunCurves]) -> bool:
        return sum(not curve.dotted for part in parts for curve in part.curves) >= DENSE_FROM

    @staticmethod
    def _set_detail(parts: Sequence[RunCurves], dense: bool) -> None:
        """Set how many points a line is drawn from: more in one picture of all runs, where they cost little."""
        detail = DENSE_RAW_PER_PIXEL if dense else RAW_POINTS_PER_PIXEL
        for part in parts:
            for curve in part.curves:
                curve.raw_per_pixel = detail

    def _draw_lines(self, parts: Sequence[RunCurves], x0: float, x1: float, dense: bool) -> bool:
        """Draw each line, or all lines of usual width as one picture. True when every recorded point is drawn."""
        exact, width_px = True, self.width_px()
        lines: list[DenseLine] = []
        for part in parts:
            merge = dense and part.opened.line_px <= OPAQUE_PX
            for curve in part.curves:
                if not len(curve.x) and curve.is_blank:
                    continue
                if merge and curve.dotted:
                    exact &= curve.place_dots(x0, x1, width_px)
                elif merge:
                    drawn = curve.query(x0, x1, width_px)
                    lines.append(DenseLine(colour_of(part.opened), dash_of(part.opened), drawn.x, drawn.y))
                    exact = False
                else:
                    exact &= curve.draw(x0, x1, width_px)
            part.put_lines(self.plotItem, dense=merge)
        if lines:
            bottom, top = self.view.viewRange()[1]
            self._dense.show_lines(lines, (x0, x1), (bottom, top), (width_px, int(self.view.height())))
        else:
            self._dense.clear()
        return exact

    def _visible(self) -> list[RunCurves]:
        return [self._drawn[opened.key] for opened in self.visible_runs()]

    def _fit(self, curves: Sequence[Curve], x0: float, x1: float) -> None:
        """Show all finite values in view; keep the range while they fill it well, so that the picture is calm."""
        width_px = self.width_px()
        results = [bounds for curve in curves if (bounds := curve.bounds(x0, x1, width_px)) is not None]
        if not results:
            return
        low = max(min(b[0] for b in results), -_LARGEST)
        high = min(max(b[1] for b in results), _LARGEST)
        least = self._least_span(low, high)
        if high - low < least:
            low, high = (low + high - least) / 2, (low + high + least) / 2
        bottom, top = self.view.viewRange()[1]
        if bottom <= low and high <= top and high - low >= _LEAST_FILL * (top - bottom):
            return
        margin = MARGIN * (high - low)
        self.view.setYRange(low - margin, high + margin, padding=0)

    def _least_span(self, low: float, high: float) -> float:
        if self.scale == "log2":
            return _LEAST_OCTAVES
        if self.scale == "log10":
            return 0.3
        return 0.1 * max(abs(low), abs(high)) if low == high and low != 0 else 1e-9 * max(abs(low), abs(high)) or 1.0

    def _draw_marks(self, parts: Sequence[RunCurves], x0: float, x1: float) -> None:
        bottom, top = self.view.viewRange()[1]
        pixel = (top - bottom) / max(self.view.height(), 1.0)
        base, groups = themes().theme.base, []
        for place, part in enumerate(parts):
            colour, key = colour_of(part.opened), part.opened.key
            place_names(part, x1, bottom + _ROOM_FOR_NAME * (top - bottom))
            groups += part.dot_marks(colour, base)
            if (end := part.end_mark(colour, base)) is not None:
                groups.append(end)
            if any(len(curve.nonfinite) for curve in part.curves):
                edge_y = top - pixel * (SYMBOL_PX * (0.5 + place) + 2)
                groups.append(MarkGroup("edge", key, *self._edge_marks(part, x0, x1, edge_y), colour))
            if part.track is not None:
                groups.append(MarkGroup("skips", key, *self._skips(part, x0, x1), "d", colour))
        self.marks.show_groups(groups)

    def _edge_marks(
        self, part: RunCurves, x0: float, x1: float, y: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], list[str]]:
        places, symbols = [np.empty(0)], []
        for curve in part.curves:
            if not len(curve.nonfinite) or self._unmeasured(curve):
                continue
            chosen = curve.nonfinite.in_view(curve.x, x0, x1, self.width_px())
            places.append(curve.x[chosen])
            symbols += [symbol_of(value) for value in curve.y[chosen]]
        x = np.concatenate(places)
        return x, np.full(len(x), y), symbols

    def _skips(self, part: RunCurves, x0: float, x1: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Skipped steps, at the loss scale that they were skipped with."""
        track, pyramid = part.track, part.curves[0].pyramid
        assert track is not None
        x = track.in_view(("skipped_step",), self.over, x0, x1, self.width_px())[1]
        index = np.searchsorted(pyramid.x, x)
        x, index = x[index < len(pyramid)], index[index < len(pyramid)]
        y = pyramid.y[index]
        return x[np.isfinite(y)], y[np.isfinite(y)]

    @staticmethod
    def _unmeasured(curve: Curve) -> bool:
        """Whether a curve is NaN throughout: the signal was not recorded, which differs from having become NaN."""
        if not len(curve.y) or curve.nonfinite.nans < len(curve.y):
            return False
        return curve.name not in _LOSSES or not curve.run.events("nonfinite_loss")

    def is_empty(self) -> bool:
        curves = [curve for part in self._visible() for curve in part.curves]
        return all(len(curve.y) == 0 or self._unmeasured(curve) for curve in curves)

    def empty_sentence(self) -> str:
        runs = self.visible_runs()
        if not self.runs:
            return translated(LOADING)
        if not runs:
            return _("All runs are hidden: tick one in the list of runs.")
        if self.signal.key == "power":
            return power_sentences(runs)
        if devices_of(self.signal, runs[-1].run) is not None:
            return device_sentences(runs, self.signal)
        waiting = all(len(curve.y) == 0 for part in self._visible() for curve in part.curves)
        if waiting and runs[-1].run.status == "running":
            return _("Waiting for the first value.")
        return translated(self.signal.absent)

    def last_x(self) -> float | None:
        ends = [float(c.x[-1]) for part in self._visible() for c in part.curves if len(c.x)]
        return max(ends, default=None)

    def readings(self, x: float) -> list[ReadoutLine]:
        results = []
        for part in self._visible():
            values = []
            for curve in part.curves:
                index = curve.nearest(x)
                if index is not None and not self._unmeasured(curve):
                    own = curve is part.curves[0] and devices_of(self.signal, part.opened.run) is None
                    label = "" if own else curve.label
                    text = signal_text(float(curve.y[index]), self.signal)
                    values.append(Value(text, float(curve.x[index]), label))
                    if curve.points > 1 and index < len(curve.means):
                        mean = signal_text(float(curve.means.view[index]), self.signal)
                        values.append(
                            Value(mean, float(curve.x[index]), _("mean of {count}").format(count=curve.points))
                        )
            if values:
                results.append(ReadoutLine(colour_of(part.opened), part.opened.name, tuple(values)))
        return results

    def neighbour(self, x: float, by: int) -> float | None:
        """The place of the recorded point `by` points away from the one nearest to x, in the first run with points."""
        for part in self._visible():
            for curve in part.curves:
                if (index := curve.nearest(x)) is not None:
                    return float(curve.x[min(max(index + by, 0), len(curve.x) - 1)])
        return None

    def rows(self) -> Iterator[CsvRow]:
        for part in self._visible():
            run = part.opened.run
            for curve in part.curves:
                steps, values = run.series(curve.name, "step")
                times = run.series(curve.name, "time_s")[0]
                triples = zip(steps.tolist(), times.tolist(), values.tolist(), strict=True)
                for step, time_s, value in triples:
                    yield CsvRow(part.opened.name, curve.name, step, time_s, value)
