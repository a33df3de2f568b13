"""Measured rates as bars: one per format, the theoretical peak as the frame, the earlier day as a tick."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from precgui.gui.theme import themes

ROW_PX, BAR_PX, NAME_PX = 36, 18, 70


@dataclass(frozen=True, slots=True)
class Bar:
    """One format: rates in 10^12 operations a second; `words` stand beside the bar."""

    name: str
    tops: float | None
    peak_tops: float | None
    earlier_tops: float | None
    words: str
    wrong_peak: bool = False


class Bars(QWidget):
    """Horizontal bars on one linear scale, which begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self._bars: list[Bar] = []
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName("Measured rates by format")
        themes().changed.connect(self.update)

    def show_bars(self, bars: list[Bar]) -> None:
        self._bars = bars
        self.setFixedHeight(max(1, len(bars)) * ROW_PX + 4)
        self.setAccessibleDescription(". ".join(f"{bar.name}: {bar.words}" for bar in bars))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rates = [rate for bar in self._bars for rate in (bar.tops, bar.peak_tops, bar.earlier_tops) if rate]
        largest = max(rates, default=1.0)
        for row, bar in enumerate(self._bars):
            self._draw(painter, bar, float(row * ROW_PX), (self.width() - NAME_PX - 8) / largest)
        painter.end()

    def _draw(self, painter: QPainter, bar: Bar, top: float, scale: float) -> None:
        theme = themes().theme
        painter.setPen(QColor(theme.text))
        left = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(QRectF(0, top, NAME_PX - 6, BAR_PX), left, bar.name)
        if bar.peak_tops:
            painter.setPen(QPen(QColor(theme.muted), 1, Qt.PenStyle.DashLine))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(QRectF(NAME_PX, top + 0.5, bar.peak_tops * scale, BAR_PX - 1))
        if bar.tops:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(theme.error if bar.wrong_peak else theme.accent))
            painter.drawRect(QRectF(NAME_PX, top + 3, max(1.0, bar.tops * scale), BAR_PX - 6))
        if bar.earlier_tops:
            painter.setPen(QPen(QColor(theme.text), 2))
            x = NAME_PX + bar.earlier_tops * scale
            painter.drawLine(round(x), round(top), round(x), round(top + BAR_PX))
        painter.setPen(QColor(theme.error if bar.wrong_peak else theme.muted))
        painter.drawText(QRectF(NAME_PX, top + BAR_PX, self.width() - NAME_PX, ROW_PX - BAR_PX), left, bar.words)
