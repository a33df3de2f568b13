"""Horizontal bars with a name on the left and a value on the right, painted in the colours of the theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from precgui.gui.theme import themes

_ROW, _GAP, _NAME, _VALUE = 20, 6, 220, 110
_NAME_SHARE = 0.35  # of the width, at most, for a name that needs more than _NAME


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar from `start` to `end` on the axis, in a colour of the theme by name, or a run colour by index."""

    start: float
    end: float
    colour: str | int
    tip: str = ""


@dataclass(frozen=True, slots=True)
class BarRow:
    """One row; `strong` marks the row that matters."""

    name: str
    segments: tuple[Segment, ...]
    value: str
    strong: bool = False


def part_colour(number: int) -> QColor:
    """The colour of the part of that number: those of runs, then paler ones."""
    theme = themes().theme
    colour = theme.runs[number % len(theme.runs)]
    return QColor(colour if number < len(theme.runs) else theme.blend(colour, 0.5))


class BarChart(QWidget):
    """Rows on one axis from the least to the largest value; logarithmic where factors are shown."""

    def __init__(self, *, logarithmic: bool = False, names_px: int = _NAME, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._logarithmic, self._names_px = logarithmic, names_px
        self._rows: Sequence[BarRow] = ()
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        themes().follow(self, self.update)

    def set_rows(self, rows: Sequence[BarRow]) -> None:
        """Show these rows; the accessible description gives them in words."""
        self._rows = rows
        self.setAccessibleDescription("; ".join(f"{row.name} {row.value}" for row in rows))
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(480, len(self._rows) * (_ROW + _GAP) + _GAP)

    def minimumSizeHint(self) -> QSize:
        return QSize(self._names_px + _VALUE + 60, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, theme, name_width = QPainter(self), themes().theme, self._name_width()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        flags = Qt.AlignmentFlag.AlignVCenter
        for number, row in enumerate(self._rows):
            top = _GAP + number * (_ROW + _GAP)
            font = painter.font()
            font.setBold(row.strong)
            painter.setFont(font)
            painter.setPen(QColor(theme.text))
            name = painter.fontMetrics().elidedText(row.name, Qt.TextElideMode.ElideRight, name_width - 8)
            painter.drawText(QRectF(0, top, name_width - 8, _ROW), flags | Qt.AlignmentFlag.AlignLeft, name)
            painter.drawText(
                QRectF(self.width() - _VALUE, top, _VALUE, _ROW), flags | Qt.AlignmentFlag.AlignRight, row.value
            )
            painter.setPen(Qt.PenStyle.NoPen)
            for segment in row.segments:
                painter.setBrush(self._colour(segment.colour))
                painter.drawRect(self._rect(segment, top))

    def _name_width(self) -> int:
        """Pixels for the names: as many as the longest needs, within the share that bars can spare."""
        font = self.font()
        font.setBold(True)
        needed = max(
            (QFontMetrics(font).horizontalAdvance(row.name) + 16 for row in self._rows), default=self._names_px
        )
        return max(self._names_px, min(needed, int(self.width() * _NAME_SHARE)))

    def _colour(self, colour: str | int) -> QColor:
        return part_colour(colour) if isinstance(colour, int) else QColor(getattr(themes().theme, colour))

    def _rect(self, segment: Segment, top: int) -> QRectF:
        left, right = sorted((self._x(segment.start), self._x(segment.end)))
        return QRectF(left, top + 2, max(right - left, 1.5), _ROW - 4)

    def _x(self, value: float) -> float:
        ends = [end for row in self._rows for s in row.segments for end in (s.start, s.end)] or [0.0, 1.0]
        low, high, at = min(ends), max(ends), value
        if self._logarithmic:
            low, high, at = (math.log(max(v, 1e-6)) for v in (low, high, value))
        name_width = self._name_width()
        width = self.width() - name_width - _VALUE - 8
        return name_width + (at - low) / max(high - low, 1e-9) * max(width, 1)
