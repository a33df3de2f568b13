"""All formats in one picture: how far they reach, how finely they divide, what a value costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QEvent, QPointF, QRectF, QSizeF, Qt, QTimer
from PySide6.QtWidgets import QHBoxLayout, QSplitter, QVBoxLayout, QWidget

from precgui.formats import text
from precgui.formats.arrays import Floats
from precgui.formats.model import FloatFormat, Format
from precgui.formats.registry import MAIN, get
from precgui.formats.sorted_values import SortedValues
from precgui.gui.answer import Answer, thread
from precgui.gui.format_colours import format_colour
from precgui.gui.kit.busy import Busy
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.panels.formats.choose import FormatMenu
from precgui.gui.panels.formats.plotting import Plot, brush, pen
from precgui.gui.panels.formats.recorded import Recorded
from precgui.gui.panels.formats.run_source import RunSource
from precgui.gui.panels.formats.tensor_source import TensorSource
from precgui.gui.theme import themes
from precgui.words import _, n_

START = (*MAIN, "e3m2", "e2m1", "int8", "nf4")
HALF = 0.28
ROOM_FOR_WORDS = 38  # pixels of a row from which on words stand above the bars
LOG_2 = math.log10(2)
DIGITS = (-0.65, 1.55)  # log10 of the significant digits that are in view
AXES_PX = 50  # of the height of a plot
Anchor = tuple[float, float]
# Of a label, 0 to 1 from its left and its upper edge, and the side of the dot it stands at.
SIDES: tuple[tuple[Anchor, Anchor], ...] = (
    ((0.5, 1.0), (0.0, -1.0)),  # above
    ((0.0, 0.5), (1.0, 0.0)),  # at the right
    ((0.5, 0.0), (0.0, 1.0)),  # below
    ((1.0, 0.5), (-1.0, 0.0)),  # at the left
    ((0.0, 1.0), (0.7, -0.7)),  # between these four
    ((0.0, 0.0), (0.7, 0.7)),
    ((1.0, 0.0), (-0.7, 0.7)),
    ((1.0, 1.0), (-0.7, -0.7)),
)


class RangesTab(QWidget):
    """Bars over decades at the left, digits against decades at the right."""

    def __init__(self, session: object, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._names: list[str] = list(START)
        self.menu = FormatMenu(START, self)
        self.menu.changed.connect(self._choose)
        hint = self._hint = PlainLabel(_("Solid: normal values. Light: subnormal values, with fewer and fewer digits."))
        hint.setProperty("kind", "muted")
        hint.setObjectName("hint")
        hint.setWordWrap(True)
        self._tensor: tuple[str, NDArray[np.int_], Floats] | None = None
        self.sorting = Answer(self, answered=self._show_tensor, failed=hint.setText)
        self.source, self.runs = TensorSource(), RunSource(session)
        self.source.loaded.connect(self._take_file)
        self.runs.loaded.connect(self._take_recorded)
        for fault in (self.source.failed, self.runs.failed):
            fault.connect(hint.setText)
        row = QHBoxLayout()
        row.addWidget(self.source)
        row.addWidget(self.runs)
        row.addStretch(1)
        row.addWidget(self.menu)
        self.bars = Plot(bottom=_("magnitude, as a power of ten"))
        self.bars.setMouseEnabled(x=True, y=False)
        self.bars.setAccessibleName(_("Range of each format"))
        self.dots = Plot(bottom=_("decades from smallest to largest"), left=_("significant decimal digits"))
        self.dots.setAccessibleName(_("Digits against decades"))
        split = QSplitter(Qt.Orientation.Horizontal)
        split.setChildrenCollapsible(False)
        for plot in (self.bars, self.dots):
            split.addWidget(plot)
        split.setSizes([640, 440])
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 12, 4, 4)
        column.addLayout(row)
        column.addWidget(hint)
        column.addWidget(Busy(self.source.work, self.sorting))
        column.addWidget(split, 1)
        themes().follow(self, self._draw)
        self._draw()

    def resizeEvent(self, event: QEvent) -> None:
        QTimer.singleShot(0, self, self._draw)

    def _choose(self, names: list[str]) -> None:
        self._names = names
        self._draw()

    def _take_file(self, values: Floats, name: str) -> None:
        self.runs.show_steps(False)
        self.sorting.ask(thread(lambda: (name, *_shares(SortedValues(values)))), latest_only=True)

    def _take_recorded(self, recorded: Recorded) -> None:
        self.sorting.cancel()
        self._show_tensor(
            (_("{title}, step {step}").format(title=recorded.title, step=recorded.step), *recorded.binades())
        )

    def _show_tensor(self, floats: tuple[str, NDArray[np.int_], Floats]) -> None:
        name, exponents, _shares = floats
        self._tensor = floats if exponents.size else None
        if exponents.size:
            text = _("Values of {name}: from 2^{first} to 2^{last}, darker where there are more.")
            self._hint.setText(text.format(name=name, first=exponents[0], last=exponents[-1] + 1))
        else:
            self._hint.setText(_("Values of {name}: it holds nothing but zeros.").format(name=name))
        self._draw()

    def _draw(self) -> None:
        formats = sorted((get(name) for name in self._names), key=lambda fmt: -fmt.decimal_digits)
        self._draw_bars(formats)
        self._draw_dots(formats)

    def _draw_bars(self, formats: list[Format]) -> None:
        item = self.bars.getPlotItem()
        item.clear()
        item.getAxis("left").setWidth(96)
        named = [(-n, fmt.name) for n, fmt in enumerate(formats)]
        item.getAxis("left").setTicks([named if self._tensor is None else [*named, (-len(formats), "tensor")]])
        reach = [span(fmt) for fmt in formats]
        roomy = self.bars.height() - AXES_PX >= ROOM_FOR_WORDS * len(formats)
        for n, (fmt, (smallest, normal, largest)) in enumerate(zip(formats, reach, strict=True)):
            for start, end, opacity in ((smallest, normal, 0.3), (normal, largest, 0.85)):
                if end > start:
                    item.addItem(pg.BarGraphItem(x0=[start], x1=[end], y0=[-n - HALF], y1=[-n + HALF], pen=None,
                                                 brush=brush(format_colour(fmt.name), opacity)))  # fmt: skip
            words = _("{count:.1f} digits, {size}").format(count=fmt.decimal_digits, size=_size(fmt))
            if not roomy:
                continue
            label = pg.TextItem(words, color=themes().theme.muted, anchor=(0.5, 1))
            label.setPos((max(smallest, -48) + min(largest, 40)) / 2, -n + HALF - 0.04)
            item.addItem(label)
        if self._tensor is not None:
            self._draw_tensor(*self._tensor[1:], -len(formats))
        if formats:
            ends = (-52, 45 if any(each[2] > 60 for each in reach) else 42)
            self.bars.setXRange(*ends, padding=0)
            self._mark_cut(reach, ends)
            self.bars.setYRange(-len(formats) + (0.4 if self._tensor is None else -0.6), 0.8, padding=0)

    def _mark_cut(self, reach: list[tuple[float, float, float]], ends: tuple[int, int]) -> None:
        """An arrow at each end of a bar that goes on outside the picture."""
        for n, (smallest, _least_normal, largest) in enumerate(reach):
            for goes_on, arrow, end, anchor in (
                (smallest < ends[0], "◂", ends[0], (0.0, 0.5)),
                (largest > ends[1], "▸", ends[1], (1.0, 0.5)),
            ):
                if goes_on:
                    mark = pg.TextItem(arrow, color=themes().theme.text, anchor=anchor)
                    mark.setPos(end, -n)
                    self.bars.getPlotItem().addItem(mark)

    def _draw_tensor(self, exponents: NDArray[np.int_], share: Floats, y: int) -> None:
        """A row of its own, one field for each power of two, and lines at its ends across all formats."""
        item, theme, ends = self.bars.getPlotItem(), themes().theme, exponents * LOG_2
        most = float(share.max()) or 1.0
        for left, part in zip(ends.tolist(), share.tolist(), strict=True):
            if part:
                item.addItem(pg.BarGraphItem(x0=[left], x1=[left + LOG_2], y0=[y - HALF], y1=[y + HALF], pen=None,
                                             brush=brush(theme.text, 0.1 + 0.9 * part / most)))  # fmt: skip
        for edge in (float(ends[0]), float(ends[-1]) + LOG_2):
            item.addItem(pg.InfiniteLine(edge, pen=pen(theme.text, 1.0, 0.6, dashed=True)))

    def _draw_dots(self, formats: list[Format]) -> None:
        item = self.dots.getPlotItem()
        item.clear()
        places: dict[tuple[float, float], list[str]] = {}
        room = _dot_px(get("fp64")) / max(self.dots.width() - AXES_PX, 100)  # half a dot at each end
        self.dots.setXRange(-0.4 - 1.8 * room, 2.8 + 3.6 * room, padding=0)
        self.dots.setYRange(*DIGITS, padding=0)
        for fmt in formats:
            smallest, _, largest = span(fmt)
            where = (round(math.log10(max(largest - smallest, 0.1)), 2), round(math.log10(fmt.decimal_digits), 2))
            view = {
                "size": _dot_px(fmt),
                "pen": pen(themes().theme.base),
                "brush": brush(format_colour(fmt.name), 0.75),
            }
            dot = pg.ScatterPlotItem([where[0]], [where[1]], **view)
            item.addItem(dot)
            places.setdefault(where, []).append(fmt.name)
        self._label_dots(places)
        decades, digits = (1, 3, 10, 30, 100, 600), (0.3, 0.5, 1, 2, 3, 7, 16)
        item.getAxis("bottom").setTicks([[(math.log10(v), str(v)) for v in decades]])
        item.getAxis("left").setTicks([[(math.log10(v), str(v)) for v in digits]])

    def _label_dots(self, places: dict[tuple[float, float], list[str]]) -> None:
        box = self.dots.getPlotItem().getViewBox()
        labels, dots = [], []
        for where, names in places.items():
            label = pg.TextItem(", ".join(names), color=themes().theme.text)
            radius_px = max(_dot_px(get(name)) for name in names) / 2
            dots.append(LabelledDot(box.mapFromView(QPointF(*where)), radius_px, label.boundingRect().size()))
            labels.append(label)
        for label, place in zip(labels, place_labels(dots, box.rect()), strict=True):
            label.setAnchor(place.anchor)
            label.setPos(box.mapToView(place.point))
            self.dots.getPlotItem().addItem(label, ignoreBounds=True)


def _dot_px(fmt: Format) -> float:
    """The diameter of the dot of a format; its area grows with the bits."""
    return 8 + 5 * math.sqrt(fmt.bits)


def _shares(values: SortedValues) -> tuple[NDArray[np.int_], Floats]:
    exponents, counts = values.binades()
    return exponents, counts / max(values.size, 1)


def _size(fmt: Format) -> str:
    """Bytes; also bits where they do not fill them. TF32 is kept as FP32."""
    if fmt.bits in (8, 16, 32, 64):
        return n_("{count} byte", "{count} bytes", fmt.bits // 8).format(count=fmt.bits // 8)
    if fmt.name == "tf32":
        return _("{bits} bits in 4 bytes").format(bits=fmt.bits)
    return _("{bits} bits, {bytes:g} bytes").format(bits=fmt.bits, bytes=fmt.bits / 8)


def span(fmt: Format) -> tuple[float, float, float]:
    """log10 of the smallest positive, the smallest normal and the largest value."""
    smallest = fmt.min_positive if isinstance(fmt, FloatFormat) else _least(fmt)
    normal = fmt.min_normal if isinstance(fmt, FloatFormat) and fmt.min_normal is not None else smallest
    return _log10(smallest), _log10(normal), _log10(max(fmt.max_finite, smallest))


def _least(fmt: Format) -> Fraction:
    return min(abs(fmt.value(n)) for n in range(fmt.min_ordinal, fmt.max_ordinal + 1) if fmt.value(n))


def _log10(value: Fraction) -> float:
    """The decimal logarithm of a positive rational, also beyond the range of doubles."""
    mantissa, _, exponent = text.approximate(value, 17).partition("e")
    return math.log10(float(mantissa)) + int(exponent or 0)


@dataclass(frozen=True)
class LabelledDot:
    """A dot at a place of the plot, in pixels from its upper left corner, and the size of its label in pixels."""

    centre: QPointF
    radius_px: float
    label: QSizeF


@dataclass(frozen=True)
class LabelPlace:
    """The anchor of the label and the point that it is fixed to, in the pixels of the dots."""

    anchor: Anchor
    point: QPointF


def place_labels(dots: Sequence[LabelledDot], room: QRectF) -> list[LabelPlace]:
    """A place for each label in turn: the first side on which it covers least of the dots, the labels and the edge."""
    circles = [
        QRectF(dot.centre.x() - dot.radius_px, dot.centre.y() - dot.radius_px, 2 * dot.radius_px, 2 * dot.radius_px)
        for dot in dots
    ]
    taken: list[QRectF] = []
    places: list[LabelPlace] = []
    for index, dot in enumerate(dots):
        others = [*circles[:index], *circles[index + 1 :], *taken]
        options = [_option(dot, anchor, side) for anchor, side in SIDES]
        costs = [_covered_px(box, others) + _outside_px(box, room) for _, box in options]
        place, box = options[costs.index(min(costs))]
        taken.append(box)
        places.append(place)
    return places


def _option(dot: LabelledDot, anchor: Anchor, side: Anchor) -> tuple[LabelPlace, QRectF]:
    point = dot.centre + QPointF(*side) * dot.radius_px
    corner = point - QPointF(anchor[0] * dot.label.width(), anchor[1] * dot.label.height())
    return LabelPlace(anchor, point), QRectF(corner, dot.label)


def _covered_px(box: QRectF, others: Sequence[QRectF]) -> float:
    common = [box.intersected(other) for other in others]
    return sum(part.width() * part.height() for part in common)


def _outside_px(box: QRectF, room: QRectF) -> float:
    inside = box.intersected(room)
    return box.width() * box.height() - inside.width() * inside.height()
