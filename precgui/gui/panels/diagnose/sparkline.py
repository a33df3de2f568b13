"""A small curve of the numbers that prove a finding; NaN and Inf are marked, the threshold is a dashed line."""

from __future__ import annotations

import math

from PySide6.QtCore import QPointF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.theme import severity_colour, themes
from precgui.runs.diagnosis.findings import Evidence
from precgui.words import Sentence, _, translated

_HEIGHT, _MARGIN = 44, 5
_LEAST_SHARE = 1e-3  # of the largest value: a smaller span is that of the last digits of a constant


class Sparkline(QWidget):
    """Draws the series of one piece of evidence; its tool tip gives first, least, largest and last value."""

    def __init__(self, evidence: Evidence, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.evidence = evidence
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setToolTip(plain_tip(summary(evidence)))
        self.setAccessibleName(summary(evidence))
        themes().follow(self, self.update)

    def sizeHint(self) -> QSize:
        return QSize(160, _HEIGHT)

    def minimumSizeHint(self) -> QSize:
        return QSize(60, _HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        theme = themes().theme
        points = place(self.evidence, self.width(), self.height())
        painter.setPen(QPen(QColor(theme.line), 1, Qt.PenStyle.DashLine))
        if (limit := level(self.evidence, self.height())) is not None:
            painter.drawLine(QPointF(_MARGIN, limit), QPointF(self.width() - _MARGIN, limit))
        painter.setPen(QPen(QColor(theme.accent), 1.5))
        for part in points:
            if len(part) > 1:
                painter.drawPolyline([QPointF(x, y) for x, y in part])
            elif part:
                painter.drawEllipse(QPointF(*part[0]), 1.5, 1.5)
        painter.setPen(QPen(QColor(severity_colour("error")), 1.5))
        for x in broken(self.evidence, self.width()):
            painter.drawLine(QPointF(x, _MARGIN), QPointF(x, _MARGIN + 8))


def _span(evidence: Evidence) -> tuple[float, float]:
    known = [value for _step, value in evidence.series if math.isfinite(value)]
    if math.isfinite(evidence.limit):
        known.append(evidence.limit)
    low, high = min(known, default=0.0), max(known, default=1.0)
    least = _LEAST_SHARE * max(abs(low), abs(high))
    if high > low and high - low >= least:
        return low, high
    middle, room = (low + high) / 2, least / 2 or 0.5
    return middle - room, middle + room


def _x(evidence: Evidence, step: int, width: int) -> float:
    first, last = evidence.series[0][0], evidence.series[-1][0]
    return _MARGIN + (step - first) / max(last - first, 1) * (width - 2 * _MARGIN)


def place(evidence: Evidence, width: int, height: int) -> list[list[tuple[float, float]]]:
    """The finite values as unbroken parts of points in pixels."""
    low, high = _span(evidence)
    parts: list[list[tuple[float, float]]] = [[]]
    for step, value in evidence.series:
        if math.isfinite(value):
            y = height - _MARGIN - (value - low) / (high - low) * (height - 2 * _MARGIN)
            parts[-1].append((_x(evidence, step, width), y))
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]


def level(evidence: Evidence, height: int) -> float | None:
    """Where the threshold lies, in pixels from the top."""
    if not math.isfinite(evidence.limit):
        return None
    low, high = _span(evidence)
    return height - _MARGIN - (evidence.limit - low) / (high - low) * (height - 2 * _MARGIN)


def broken(evidence: Evidence, width: int) -> list[float]:
    """Where values are not finite, in pixels from the left."""
    return [_x(evidence, step, width) for step, value in evidence.series if not math.isfinite(value)]


def summary(evidence: Evidence) -> str:
    """The curve in words."""
    known = [value for _step, value in evidence.series if math.isfinite(value)]
    signal, many = translated(evidence.signal), len(evidence.series)
    steps = _("no steps")
    if evidence.series:
        steps = _("steps {first} to {last}").format(first=evidence.series[0][0], last=evidence.series[-1][0])
    if not known:
        return _("{signal}, {steps}: not finite").format(signal=signal, steps=steps)
    is_logarithm = evidence.signal.startswith("log") and " of " in evidence.signal
    zeros = sum(value == -math.inf for _step, value in evidence.series) if is_logarithm else 0
    lost = many - len(known) - zeros
    text = _("{signal}, {steps}: first {begin:.4g}, least {least:.4g}, largest {largest:.4g}, last {end:.4g}").format(
        signal=signal, steps=steps, begin=known[0], least=min(known), largest=max(known), end=known[-1]
    )
    if zeros:
        name = translated(evidence.signal.values["name"]) if isinstance(evidence.signal, Sentence) else signal
        text += (
            _("; the {name} is 0 at {zeros} of {count} points, the last among them")
            if evidence.series[-1][1] == -math.inf
            else _("; the {name} is 0 at {zeros} of {count} points")
        ).format(name=name, zeros=zeros, count=many)
    if lost:
        text += _("; {lost} of {count} points are not finite").format(lost=lost, count=many)
    return text
