"""Pictures of one run as inline SVG, without script and in the colours of the page: curves and exponents."""

from __future__ import annotations

import math
from html import escape

import numpy as np
from numpy.typing import NDArray

from precgui.runs.run import Run
from precgui.runs.tensors.what_if import BIAS, range_of
from precgui.runs.tensors.what_if_table import all_rows
from precgui.sentences import ENGLISH, L_, Sentence, Wording, filled, together

_COLUMNS = 400  # of a curve: each shows the least and the largest value of its steps
_MOST_CELLS = 100  # steps of the picture of exponents
_WIDTH, _HEIGHT, _LEFT = 800, 200, 70
_DECADES = 4.0  # orders of magnitude down to which a share of values is visible

_ON_PLAIN_AXIS = L_("{title}, {largest:.4g} to {smallest:.4g}, steps {first:.0f} to {last:.0f}")
_ON_LOG_AXIS = L_("{title}, {largest:.4g} to {smallest:.4g} on a log{base} axis, steps {first:.0f} to {last:.0f}")
_NOT_ON_PLAIN_AXIS = L_("{count} steps with NaN or Inf are not drawn")
_NOT_ON_LOG_AXIS = L_("{count} steps with NaN, Inf or 0 are not drawn")

Values = NDArray[np.float64]


def curve_picture(title: str, steps: Values, values: Values, base: int = 0, wording: Wording = ENGLISH) -> str:
    """A series as an area between the extremes of the steps of each column, its values as logarithms of `base`.

    With `base` 0 they are drawn as they are. Values that cannot be drawn are counted in the caption. Empty where
    fewer than two values, or only equal ones, can be.
    """
    drawable = np.isfinite(values) & ((values > 0) if base else True)
    x, y = steps[drawable], values[drawable]
    if len(y) < 2 or y.max() == y.min():
        return ""
    shown = np.log(y) / math.log(base) if base else y
    edges = np.unique(np.linspace(0, len(y), min(_COLUMNS, len(y)), endpoint=False).astype(int))
    across = _LEFT + (_WIDTH - _LEFT) * (x[edges] - x[0]) / (x[-1] - x[0])
    down = _HEIGHT * (shown.max() - shown) / (shown.max() - shown.min())
    upper, lower = np.minimum.reduceat(down, edges), np.maximum.reduceat(down, edges)
    points = [f"{a:.1f},{b:.1f} {a:.1f},{c:.1f}" for a, b, c in zip(across, upper, lower, strict=True)]
    text = _caption(title, x, y, base, len(values) - len(y))
    ticks = "".join(
        f'<text x="{_LEFT - 6}" y="{place:.0f}" text-anchor="end">{_value(value, base)}</text>'
        for value, place in ((y.max(), 12), (y.min(), _HEIGHT))
    )
    return _figure(wording.shown(text), f'{ticks}<polyline points="{" ".join(points)}"/>', _HEIGHT)


def _caption(title: str, steps: Values, values: Values, base: int, left_out: int) -> Sentence:
    """The ranges of a curve, and how many steps it leaves out."""
    drawn = filled(
        _ON_LOG_AXIS if base else _ON_PLAIN_AXIS,
        title=title, largest=values.max(), smallest=values.min(), base=base, first=steps[0], last=steps[-1],
    )  # fmt: skip
    lost = filled(_NOT_ON_LOG_AXIS if base else _NOT_ON_PLAIN_AXIS, count=left_out) if left_out else ""
    return together(drawn, lost, between="; ")


def _value(value: float, base: int) -> str:
    return f"2^{math.log2(value):.3g}" if base == 2 else f"{value:.3g}"


def exponent_picture(run: Run, kind: str = "gradient", wording: Wording = ENGLISH) -> str:
    """The exponents of all tensors of a kind over the steps: the darker, the more values; limits of FP16 as lines.

    Empty without two measured steps.
    """
    history = run.tensors().get(kind)
    if history is None or len(history) < 2:
        return ""
    columns = all_rows(history, _MOST_CELLS).columns()
    step = max(1, -(-len(columns.steps) // _MOST_CELLS))
    counts = np.add.reduceat(columns.exponents.sum(1), np.arange(0, len(columns.steps), step), axis=0)[:, 1:-1]
    used = np.flatnonzero(counts.sum(0))
    if not len(used):
        return ""
    fp16 = range_of("fp16")
    low = min(int(used[0]) + 1 - BIAS, fp16.zero_below) - 2
    high = max(int(used[-1]) + 1 - BIAS, fp16.largest) + 2
    return _exponents(kind, columns.steps[::step], counts, low, high, wording)


def _exponents(kind: str, steps: NDArray[np.int64], counts: Values, low: int, high: int, wording: Wording) -> str:
    """`counts` (columns, 254) of the bins from 1 on, without those of Inf and NaN."""
    wide, tall = (_WIDTH - _LEFT) / len(counts), _HEIGHT / (high - low + 1)

    def top(exponent: float) -> float:
        return (high - exponent) * tall

    cells = []
    with np.errstate(divide="ignore"):
        dark = 1 + np.log10(counts / np.maximum(counts.sum(1, keepdims=True), 1)) / _DECADES
    for column, bin in zip(*np.nonzero(dark > 0), strict=True):
        exponent = int(bin) + 1 - BIAS
        opacity = 0.1 + 0.9 * float(dark[column, bin])
        cells.append(
            f'<rect x="{_LEFT + column * wide:.1f}" y="{top(exponent):.1f}" width="{wide + 0.3:.1f}" '
            f'height="{tall + 0.2:.1f}" opacity="{opacity:.2f}"/>'
        )
    fp16 = range_of("fp16")
    limits = ((fp16.largest + 1, L_("FP16: Inf above")), (fp16.smallest_normal, L_("FP16: fewer digits below")),
              (fp16.zero_below, L_("FP16: 0 below")))  # fmt: skip
    lines = [
        f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH}" y1="{top(exponent - 1):.1f}" y2="{top(exponent - 1):.1f}"/>'
        f'<text x="{_WIDTH - 4}" y="{top(exponent - 1) - 3:.1f}" text-anchor="end">{escape(wording.shown(name))}</text>'
        for exponent, name in limits
    ]
    ends = [
        f'<text x="{_LEFT - 6}" y="{place:.0f}" text-anchor="end">2^{exponent}</text>'
        for exponent, place in ((high, 12), (low, _HEIGHT))
    ]
    text = Sentence(
        "Exponents of every {kind} as recorded, unscaled, steps {first} to {last}: the darker, the more values. A loss "
        "scale moves them up by its exponent.",
        kind=kind,
        first=steps[0],
        last=steps[-1],
    )
    return _figure(wording.shown(text), "".join((*cells, *lines, *ends)), _HEIGHT)


def _figure(caption: str, parts: str, height: int) -> str:
    return (
        f'<figure><svg viewBox="0 -4 {_WIDTH} {height + 8}" role="img">{parts}</svg>'
        f'<figcaption class="muted">{escape(caption)}</figcaption></figure>'
    )
