"""Pictures of a study as inline SVG, without script and with the colours of the page: intervals, Pareto, loss bands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from precgui.runs.figures import Figure
from precgui.runs.line_styles import HUES, LineStyle, line_styles
from precgui.runs.study.bands import loss_bands
from precgui.runs.study.pareto import dominated
from precgui.runs.study.result import GroupMetric, Study
from precgui.runs.study.run_figures import RunFigures
from precgui.sentences import L_, Sentence, Wording, filled

WIDTH, LEFT, RIGHT, ROW = 760, 190, 20, 26
_PLOT_HEIGHT, _BOTTOM, _TOP = 280, 40, 14
_LETTER, _LINE = 7, 15  # of a label: width of a letter, height of a line


def interval_picture(study: Study, name: str, factor: float, unit: str, title: str) -> str:
    """Differences from the baseline with their intervals, a row a group, zero and the floor of the twin behind them."""
    rows = [(g.group, m) for g in study.groups if (m := g.metrics[name]).difference is not None and m.difference_ci95]
    if not rows:
        return ""
    floor = factor * study.twin.largest.get(name, 0.0)
    bounds = [factor * bound for _, m in rows for bound in m.difference_ci95 or ()]
    scale = PictureScale(min(*bounds, -floor, 0.0), max(*bounds, floor, 0.0), LEFT, WIDTH - RIGHT)
    height = ROW * len(rows) + 44
    band = f'<rect class="floor" x="{scale(-floor):.1f}" y="4" width="{max(scale(floor) - scale(-floor), 1):.1f}" '
    parts = [f'{band}height="{ROW * len(rows)}"/>', _vertical(scale(0), 4, ROW * len(rows) + 4, "axis")]
    for place, (group, figure) in enumerate(rows):
        parts.append(_interval_row(place, group, figure, factor, scale))
    parts += _ticks(scale, ROW * len(rows) + 4, unit)
    return _svg(height, title, parts)


def _interval_row(place: int, group: str, figure: GroupMetric, factor: float, scale: PictureScale) -> str:
    y = 4 + ROW * place + ROW / 2
    low, high = (scale(factor * bound) for bound in figure.difference_ci95 or (0, 0))
    at = scale(factor * (figure.difference or 0.0))
    return (
        f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{escape(_short(group))}</text>'
        f'<line class="ci" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>'
        f'<circle class="dot" cx="{at:.1f}" cy="{y}" r="4"/>'
    )


_BEATEN = {
    "no": "{group}",
    "perhaps": L_("{group}, perhaps dominated"),
    "surely": L_("{group}, surely dominated"),
}


def pareto_picture(study: Study, cost: Figure, wording: Wording) -> str:
    """The metric against a cost: a cross of intervals for each group; emulated arms are left out of the costs."""
    points = [(g, g.metrics["metric"], g.metrics[cost.key]) for g in study.groups if not g.emulated]
    points = [(g, m, c) for g, m, c in points if m.mean is not None and c.mean is not None]
    if len(points) < 2:
        return ""
    worse, share = dominated(study, cost.key), 100 if study.metric.get("unit") == "%" else 1
    x = PictureScale(*_bounds([c for _, _, c in points], cost.scale), LEFT - 100, WIDTH - 150)
    y = PictureScale(*_bounds([m for _, m, _ in points], share), _PLOT_HEIGHT - _BOTTOM, _TOP)
    parts, labels = [], _LabelPlaces()
    styles = line_styles(study.precisions)
    for group, metric, figure in points:
        name = wording.shown(filled(_BEATEN[worse[group.group]], group=_short(group.group)))
        ends = (_ends(x, figure, cost.scale), _ends(y, metric, share))
        parts.append(_cross(styles[group.group], name, *ends, labels.free(name, ends[0][0] + 8, ends[1][0] - 6)))
    below = _PLOT_HEIGHT - _BOTTOM
    parts += [*_ticks(x, below, cost.unit), *_side_ticks(y, LEFT - 100), _base_line(below)]
    title = Sentence("{metric} against {cost}", metric=study.metric.get("title"), cost=cost.in_words)
    return _svg(_PLOT_HEIGHT, wording.shown(title), parts)


Ends = tuple[float, float, float]


def _ends(scale: PictureScale, figure: GroupMetric, factor: float) -> Ends:
    """The mean and both ends of its interval, as places."""
    mean = figure.mean or 0.0
    low, high = figure.ci95 or (mean, mean)
    return scale(factor * mean), scale(factor * low), scale(factor * high)


class _LabelPlaces:
    """Heights of labels that lie over no other one."""

    def __init__(self) -> None:
        self._taken: list[tuple[float, float, float]] = []  # left, right, height

    def free(self, text: str, left: float, y: float) -> float:
        """The nearest height above the wanted one at which the text fits."""
        right = left + _LETTER * len(text)
        while any(left < other[1] and other[0] < right and abs(y - other[2]) < _LINE for other in self._taken):
            y -= _LINE
        self._taken.append((left, right, y))
        return y


def _cross(style: LineStyle, group: str, x: Ends, y: Ends, label_y: float) -> str:
    return (
        f'<g class="{_classes(style)}"><line x1="{x[1]:.1f}" x2="{x[2]:.1f}" y1="{y[0]:.1f}" y2="{y[0]:.1f}"/>'
        f'<line x1="{x[0]:.1f}" x2="{x[0]:.1f}" y1="{y[1]:.1f}" y2="{y[2]:.1f}"/>'
        f'<circle cx="{x[0]:.1f}" cy="{y[0]:.1f}" r="4"/>'
        f'<text x="{x[0] + 8:.1f}" y="{label_y:.1f}">{escape(group)}</text></g>'
    )


def _classes(style: LineStyle) -> str:
    """Classes of the page's own style: c0 to c6 for the hue, `pale` for its second half, d1 to d3 for a dash."""
    pale = " pale" if style.colour >= HUES else ""
    return f"c{style.colour % HUES}{pale} d{style.dash}"


def loss_picture(study: Study, runs: Sequence[RunFigures], wording: Wording) -> str:
    """The smoothed training loss of each group: the mean over the seeds and the range of all of them."""
    bands = loss_bands(study, runs)
    if not bands:
        return ""
    least, largest = min(float(band.low.min()) for band in bands), max(float(band.high.max()) for band in bands)
    x = PictureScale(0.0, max(float(band.x[-1]) for band in bands), LEFT - 100, WIDTH - 150)
    y = PictureScale(math.log10(least), math.log10(largest), _PLOT_HEIGHT - _BOTTOM, _TOP)
    parts = []
    styles = line_styles(study.precisions)
    for place, band in enumerate(bands):
        colour, group = _classes(styles[band.group]), band.group
        outline = [*_points(x, y, band.x, band.high), *reversed(_points(x, y, band.x, band.low))]
        parts.append(f'<polygon class="{colour} band" points="{" ".join(outline)}"/>')
        parts.append(f'<polyline class="{colour}" points="{" ".join(_points(x, y, band.x, band.mean))}"/>')
        label = f'x="{WIDTH - 140}" y="{_TOP + 10 + 18 * place}"'
        parts.append(f'<g class="{colour}"><text {label}>{escape(_short(group))}</text></g>')
    axis = [*_ticks(x, _PLOT_HEIGHT - _BOTTOM, wording.shown(L_("steps"))), _base_line(_PLOT_HEIGHT - _BOTTOM)]
    title = wording.shown(L_("Training loss, mean and range over the seeds"))
    return _svg(_PLOT_HEIGHT, title, [*_decades(y), *parts, *axis])


def _decades(y: PictureScale) -> list[str]:
    """Grid lines at powers of ten, or at round numbers where there are few."""
    tens = [10.0**power for power in range(math.ceil(y.low), math.floor(y.high) + 1)]
    marks = tens if len(tens) > 1 else _steps(PictureScale(10**y.low, 10**y.high, 0, 1))
    places = [value for value in marks if value > 0 and y.low <= math.log10(value) <= y.high]
    return [_grid_line(y(math.log10(value)), f"{value:g}") for value in places]


def _grid_line(y: float, text: str) -> str:
    return (
        f'<text x="{LEFT - 106}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        f'<line class="grid" x1="{LEFT - 100}" x2="{WIDTH - 150}" y1="{y:.1f}" y2="{y:.1f}"/>'
    )


class PictureScale:
    """A value to a place in the picture."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
        self.low, self.high, self._first = low - room, high + room, first
        self._factor = (last - first) / (self.high - self.low)

    def __call__(self, value: float) -> float:
        return self._first + (value - self.low) * self._factor


def _bounds(figures: Sequence[GroupMetric], factor: float) -> tuple[float, float]:
    ends = [factor * end for figure in figures for end in (*(figure.ci95 or ()), figure.mean or 0.0)]
    return min(ends), max(ends)


def _points(x: PictureScale, y: PictureScale, steps: NDArray[np.float64], values: NDArray[np.float64]) -> list[str]:
    return [f"{x(step):.1f},{y(math.log10(value)):.1f}" for step, value in zip(steps, values, strict=True)]


def _steps(scale: PictureScale) -> list[float]:
    """Round numbers inside the scale, about five."""
    span = scale.high - scale.low
    size = 10.0 ** math.floor(math.log10(span / 5))
    size *= next(factor for factor in (1, 2, 5, 10) if span / (size * factor) <= 6)
    return [size * n for n in range(math.ceil(scale.low / size), math.floor(scale.high / size) + 1)]


def _ticks(scale: PictureScale, y: float, unit: str) -> list[str]:
    labels = [_tick(scale(value), y, f"{value:g}") for value in _steps(scale)]
    return [*labels, f'<text x="{WIDTH - RIGHT}" y="{y + 34:.1f}" text-anchor="end">{escape(unit)}</text>']


def _tick(x: float, y: float, text: str) -> str:
    label = f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{text}</text>'
    return f"{label}{_vertical(x, y, y + 5, 'axis')}"


def _side_ticks(scale: PictureScale, x: float) -> list[str]:
    return [
        f'<text x="{x - 6:.1f}" y="{scale(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        for value in _steps(scale)
    ]


def _base_line(y: float) -> str:
    return f'<line class="axis" x1="{LEFT - 100}" x2="{WIDTH - 150}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _vertical(x: float, top: float, bottom: float, name: str) -> str:
    return f'<line class="{name}" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg></figure>'
    )


def _short(text: str) -> str:
    return text if len(text) <= 26 else f"{text[:25]}…"
