"""One reading over the last minutes: a line with gaps where the sensor was silent, or a band of states."""

from __future__ import annotations

import math
from array import array
from collections import deque
from typing import Literal

import numpy as np
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QWidget

from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.theme import themes
from precgui.words import _

Severity = Literal["ok", "warning", "error"]
HISTORY_S = 300.0
KEPT = 16_000  # readings; two of 20 a second over the history, and room before the older half goes
MIN_SPAN_S = 60.0
HEIGHT_PX, TEXT_PX = 76, 20


class Strip(QWidget):
    """A line, scaled from zero to the largest value; `limit` draws a dashed line (a power limit, all memory)."""

    def __init__(self, title: str, unit: str, top: float | None = None) -> None:
        super().__init__()
        self.title, self.unit, self._top = title, unit, top
        self.limit: float | None = None
        self.reason = ""
        self.times_s, self._values = array("d"), array("d")
        self.setFixedHeight(HEIGHT_PX)
        self.setMinimumWidth(200)
        self.setAccessibleName(title)

    def add(self, time_s: float, value: float, reason: str = "") -> None:
        """One reading; NaN is a gap, `reason` says why."""
        self.times_s.append(time_s)
        self._values.append(value)
        self.reason = reason
        if len(self.times_s) > KEPT and self.times_s[KEPT // 2] < time_s - HISTORY_S:
            del self.times_s[: KEPT // 2], self._values[: KEPT // 2]
        self.setToolTip(plain_tip(f"{self.title}: {reason}" if reason else ""))

    def current(self) -> str:
        """The newest value as text, or why there is none."""
        value = self._values[-1] if self._values else math.nan
        if math.isnan(value):
            return _("not available: {reason}").format(reason=self.reason)
        number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        limit = f"{self.limit:.4g}" if self.limit else ""
        if limit:
            return _("{number} of {limit} {unit}").format(number=number, limit=limit, unit=self.unit)
        return f"{number} {self.unit}"

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = themes().theme
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        area = QRectF(0, TEXT_PX, self.width(), self.height() - TEXT_PX - 2)
        painter.fillRect(area, QColor(theme.base))
        painter.setPen(QPen(QColor(theme.line), 1))
        painter.drawLine(area.bottomLeft(), area.bottomRight())
        text = QRectF(0, 0, self.width(), TEXT_PX)
        painter.setPen(QColor(theme.muted))
        painter.drawText(text, int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter), self.title)
        used = self.fontMetrics().horizontalAdvance(self.title) + 12
        reported = self.fontMetrics().elidedText(
            self.current(), Qt.TextElideMode.ElideRight, max(0, self.width() - used)
        )
        painter.setPen(QColor(theme.text))
        painter.drawText(text, int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter), reported)
        self._draw(painter, area)
        painter.end()

    def _draw(self, painter: QPainter, area: QRectF) -> None:
        theme = themes().theme
        times, values = np.frombuffer(self.times_s), np.frombuffer(self._values)
        start = int(np.searchsorted(times, times[-1] - HISTORY_S)) if times.size else 0
        times, values = times[start:].copy(), values[start:].copy()
        known = values[~np.isnan(values)]
        top = self._top or max(1e-9, 1.1 * max(float(known.max(initial=0.0)), self.limit or 0.0))
        if self.limit:
            y = area.bottom() - self.limit / top * area.height()
            painter.setPen(QPen(QColor(theme.warning), 1, Qt.PenStyle.DashLine))
            painter.drawLine(QPointF(0, y), QPointF(area.width(), y))
        painter.setPen(QPen(QColor(theme.accent), 1.4))
        for line in lines(times, values, area, top):
            painter.drawPolyline(line)


def visible_span_s(first_s: float, last_s: float) -> float:
    """Width of the picture in seconds: it grows with the history to HISTORY_S."""
    return min(HISTORY_S, max(MIN_SPAN_S, last_s - first_s))


def lines(times: np.ndarray, values: np.ndarray, area: QRectF, top: float) -> list[QPolygonF]:
    """The readings as polylines without the gaps; of many readings on one pixel the smallest and largest stay."""
    if times.size == 0:
        return []
    columns = np.floor(area.width() * (1 - (times[-1] - times) / visible_span_s(times[0], times[-1])))
    starts = np.concatenate(([0], np.flatnonzero(np.diff(columns)) + 1))
    lowest = np.minimum.reduceat(np.where(np.isnan(values), np.inf, values), starts)
    highest = np.maximum.reduceat(np.where(np.isnan(values), -np.inf, values), starts)
    scale = area.height() / top
    result, points = [], list[QPointF]()
    for x, low, high in zip(columns[starts].tolist(), lowest.tolist(), highest.tolist(), strict=True):
        if low > high:  # nothing but gaps on this pixel
            result.append(points)
            points = []
            continue
        points.append(QPointF(x, area.bottom() - min(low, top) * scale))
        if high > low:
            points.append(QPointF(x, area.bottom() - min(high, top) * scale))
    return [QPolygonF(points) for points in (*result, points) if points]


class Band(QWidget):
    """States over time as colours; the words of the present state stand above."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title
        self.states: deque[tuple[float, str, Severity]] = deque()
        self.setFixedHeight(TEXT_PX + 16)
        self.setMinimumWidth(200)
        self.setAccessibleName(title)

    def add(self, time_s: float, words: str, level: Severity) -> None:
        """The state at this time; `level` colours it."""
        self.states.append((time_s, words, level))
        while self.states and self.states[0][0] < time_s - HISTORY_S:
            self.states.popleft()
        self.setAccessibleDescription(words)

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = themes().theme
        painter = QPainter(self)
        text = QRectF(0, 0, self.width(), TEXT_PX)
        painter.setPen(QColor(theme.muted))
        painter.drawText(text, int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter), self.title)
        if self.states:
            now_s, words, level = self.states[-1]
            painter.setPen(QColor(theme.text if level == "ok" else getattr(theme, level)))
            painter.drawText(text, int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter), words)
            width_s = visible_span_s(self.states[0][0], now_s)
            ends = [time_s for time_s, _, _ in list(self.states)[1:]] + [now_s]
            for (time_s, _, then), end_s in zip(self.states, ends, strict=True):
                left, right = (self.width() * (1 - (now_s - t) / width_s) for t in (time_s, end_s))
                colour = theme.blend(theme.ok, 0.5) if then == "ok" else getattr(theme, then)
                painter.fillRect(QRectF(left, TEXT_PX, max(1.0, right - left), 12), QColor(colour))
        painter.end()
