"""A heat map of named rows over the steps: the share of each cell as a colour, with every name readable."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PySide6.QtCore import QEvent, QPoint, QRect, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QHelpEvent,
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QToolTip, QWidget

from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.plots.signals import grouped
from precgui.gui.theme import themes
from precgui.runs.tensors.confidence import share_text
from precgui.words import _

_LEVELS = 256
_NAMES_SHARE, _NAMES_MOST_PX = 0.42, 260  # of the width, for the names
_GAP_PX, _LEGEND_PX = 8, 90
_LEGEND = (0.0, 0.01, 0.1, 0.5, 1.0)


class ShareGrid(Protocol):
    """`share` (rows, steps) from 0 to 1, NaN where nothing was recorded, of `names` (rows,) at `steps` (steps,)."""

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def steps(self) -> NDArray[np.int64]: ...
    @property
    def share(self) -> NDArray[np.float64]: ...


class HeatMap(QAbstractScrollArea):
    """Rows keep the height of a line of text and scroll. `cell_chosen` gives the row and the recorded step.

    `title` and `about` are its accessible name and description; `cell_text` is the sentence on a cell, with the
    placeholders `name`, `step` and `share`.
    """

    cell_chosen = Signal(int, float)

    def __init__(self, title: str, about: str, cell_text: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._cell_text = cell_text
        self.shares: ShareGrid | None = None
        self.entry, self.step = 0, float("nan")
        self._picture: QImage | None = None
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(title)
        self.setAccessibleDescription(about)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setMouseTracking(True)
        themes().follow(self, self._redraw)

    def show_shares(self, shares: ShareGrid | None) -> None:
        """Show these; the chosen cell stays where it is."""
        self.shares = shares
        self.entry = min(self.entry, len(shares.names) - 1) if shares is not None else 0
        self._redraw()

    def choose(self, entry: int, step: float | None) -> None:
        """Mark a cell; None marks the row only."""
        self.entry, self.step = entry, float("nan") if step is None else step
        top, height = entry * self.row_px, self.verticalScrollBar().pageStep()
        bar = self.verticalScrollBar()
        if not bar.value() <= top <= bar.value() + height - self.row_px:
            bar.setValue(top - height // 2)
        self.viewport().update()

    @property
    def row_px(self) -> int:
        return self.fontMetrics().height() + 3

    def height_px(self, rows: int) -> int:
        """The height at which that many rows need no scroll bar."""
        return self._head_px() + rows * self.row_px + self.row_px + 4

    def _head_px(self) -> int:
        return self.row_px + 6

    def _names_px(self) -> int:
        names = self.shares.names if self.shares is not None else ()
        widest = max((self.fontMetrics().horizontalAdvance(name) for name in names), default=0)
        return min(widest + _GAP_PX, round(_NAMES_SHARE * self.viewport().width()), _NAMES_MOST_PX)

    def area(self) -> QRect:
        """Where the cells are, in pixels of the viewport."""
        left, below = self._names_px() + _GAP_PX, self.row_px + 4
        whole = self.viewport().rect()
        return QRect(
            left, self._head_px(), max(whole.width() - left - 4, 1), max(whole.height() - self._head_px() - below, 1)
        )

    def _redraw(self) -> None:
        self._picture = None
        rows = len(self.shares.names) if self.shares is not None else 0
        page = self.area().height()
        self.verticalScrollBar().setRange(0, max(rows * self.row_px - page, 0))
        self.verticalScrollBar().setPageStep(page)
        self.verticalScrollBar().setSingleStep(self.row_px)
        self.viewport().update()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._redraw()

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        self.viewport().update()

    def column_of(self, x: NDArray[np.float64]) -> NDArray[np.intp]:
        """The recorded step at places from 0 to 1; a step reaches to the next one that is recorded."""
        assert self.shares is not None
        steps = self.shares.steps
        first, last = self._ends()
        return np.clip(np.searchsorted(steps, first + x * (last - first), "right") - 1, 0, len(steps) - 1)

    def _ends(self) -> tuple[float, float]:
        steps = self.shares.steps if self.shares is not None else np.zeros(1)
        gap = float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0
        return float(steps[0]), float(steps[-1]) + gap

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        theme, area = themes().theme, self.area()
        painter.fillRect(self.viewport().rect(), QColor(theme.base))
        if self.shares is None or not len(self.shares.steps):
            return
        self._draw_cells(painter, area)
        self._draw_names(painter, area)
        self._draw_legend(painter, area)
        self._draw_steps(painter, area)
        if self.hasFocus():
            painter.setPen(QPen(QColor(theme.accent), 1))
            painter.drawRect(area.adjusted(-1, -1, 0, 0))

    def _draw_cells(self, painter: QPainter, area: QRect) -> None:
        if self._picture is None or self._picture.width() != area.width():
            self._picture = self._painted(area.width())
        offset, height = self.verticalScrollBar().value(), self.row_px
        painter.setClipRect(area)
        target = QRect(area.left(), area.top() - offset, area.width(), self._picture.height() * height)
        painter.drawImage(target, self._picture)
        painter.setPen(QPen(QColor(themes().theme.base), 1))
        for row in range(self._picture.height() + 1):
            y = area.top() - offset + row * height
            painter.drawLine(area.left(), y, area.right(), y)
        self._draw_chosen(painter, area)
        painter.setClipping(False)

    def _draw_chosen(self, painter: QPainter, area: QRect) -> None:
        top = area.top() - self.verticalScrollBar().value() + self.entry * self.row_px
        painter.setPen(QPen(QColor(themes().theme.text), 1))
        painter.drawRect(QRect(area.left(), top, area.width() - 1, self.row_px - 1))
        if not isnan(self.step):
            first, last = self._ends()
            x = area.left() + round((self.step - first) / (last - first) * area.width())
            painter.drawLine(x, area.top(), x, area.bottom())

    def _painted(self, width: int) -> QImage:
        """The cells, one pixel high each."""
        assert self.shares is not None
        columns = self.column_of((np.arange(width) + 0.5) / width)
        share = self.shares.share[:, columns]
        colours = np.array([QColor(colour_of(level / (_LEVELS - 1))).rgb() for level in range(_LEVELS)], np.uint32)
        place = np.round(np.sqrt(np.clip(np.nan_to_num(share), 0, 1)) * (_LEVELS - 1)).astype(np.intp)
        pixels = np.where(np.isnan(share), np.uint32(QColor(themes().theme.base).rgb()), colours[place])
        data = np.ascontiguousarray(pixels, np.uint32)
        return QImage(data.tobytes(), width, len(data), 4 * width, QImage.Format.Format_RGB32).copy()

    def _draw_names(self, painter: QPainter, area: QRect) -> None:
        assert self.shares is not None
        theme, metrics, height = themes().theme, self.fontMetrics(), self.row_px
        offset, width = self.verticalScrollBar().value(), self._names_px()
        painter.setClipRect(QRect(0, area.top(), area.left(), area.height()))
        for row in range(offset // height, min((offset + area.height()) // height + 1, len(self.shares.names))):
            own = QRect(0, area.top() - offset + row * height, width, height)
            painter.setPen(QColor(theme.text if row == self.entry else theme.muted))
            name = metrics.elidedText(self.shares.names[row], Qt.TextElideMode.ElideMiddle, width)
            painter.drawText(own, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, name)
        painter.setClipping(False)

    def _draw_legend(self, painter: QPainter, area: QRect) -> None:
        """Swatches with their share above the cells."""
        theme, metrics, x = themes().theme, self.fontMetrics(), area.left()
        side, texts = self.row_px - 6, [share_text(share) for share in _LEGEND]
        whole_px = sum(side + 4 + metrics.horizontalAdvance(text) for text in texts)
        gap_px = min((area.width() - whole_px) // (len(texts) - 1), 16)
        x = min(x, area.right() - whole_px - 4 * (len(texts) - 1))  # over the names where cells have no room for it
        for share, text in zip(_LEGEND, texts, strict=True):
            painter.fillRect(QRect(x, 3, side, side), QColor(colour_of(share**0.5)))
            painter.setPen(QPen(QColor(theme.line), 1))
            painter.drawRect(QRect(x, 3, side, side))
            painter.setPen(QColor(theme.muted))
            painter.drawText(x + side + 4, 3 + metrics.ascent(), text)
            x += side + 4 + metrics.horizontalAdvance(text) + max(gap_px, 4)

    def _draw_steps(self, painter: QPainter, area: QRect) -> None:
        assert self.shares is not None
        first, last = self._ends()
        painter.setPen(QColor(themes().theme.muted))
        y = area.bottom() + 4
        painter.drawText(QRect(0, y, area.left() - _GAP_PX, self.row_px), Qt.AlignmentFlag.AlignRight, _("step"))
        count = max(min(area.width() // _LEGEND_PX, 6), 2)
        for part in range(count):
            step, x = first + part / (count - 1) * (last - first), area.left() + part * area.width() // (count - 1)
            text = grouped(round(min(step, float(self.shares.steps[-1]))))
            width = self.fontMetrics().horizontalAdvance(text)
            left = min(max(x - width // 2, area.left()), area.right() - width)
            painter.drawText(left, y + self.fontMetrics().ascent(), text)

    def cell_at(self, place: QPoint) -> tuple[int, float] | None:
        """Entry and recorded step under a place of the viewport; on a name the step is the last one."""
        area = self.area()
        if self.shares is None or not len(self.shares.steps) or not area.top() <= place.y() <= area.bottom():
            return None
        entry = (place.y() - area.top() + self.verticalScrollBar().value()) // self.row_px
        if not entry < len(self.shares.names) or place.x() > area.right():
            return None
        x = (place.x() - area.left() + 0.5) / area.width() if place.x() >= area.left() else 1.0
        return entry, float(self.shares.steps[self.column_of(np.array([x]))[0]])

    def mousePressEvent(self, event: QMouseEvent) -> None:
        cell = self.cell_at(event.position().toPoint())
        if cell is not None:
            self.cell_chosen.emit(*cell)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        moves = {Qt.Key.Key_Up: (-1, 0), Qt.Key.Key_Down: (1, 0), Qt.Key.Key_Left: (0, -1), Qt.Key.Key_Right: (0, 1)}
        move = moves.get(Qt.Key(event.key()))
        if move is None or self.shares is None or not len(self.shares.steps):
            event.ignore()
            return
        steps = self.shares.steps
        at = len(steps) - 1 if isnan(self.step) else int(np.abs(steps - self.step).argmin())
        entry = min(max(self.entry + move[0], 0), len(self.shares.names) - 1)
        self.cell_chosen.emit(entry, float(steps[min(max(at + move[1], 0), len(steps) - 1)]))

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.viewport().update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.viewport().update()

    def viewportEvent(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent):
            text = self.text_of(self.cell_at(event.pos()))
            QToolTip.showText(event.globalPos(), plain_tip(text), self) if text else QToolTip.hideText()
            return True
        return super().viewportEvent(event)

    def text_of(self, cell: tuple[int, float] | None) -> str:
        """A cell in words."""
        if cell is None or self.shares is None:
            return ""
        entry, step = cell
        share = float(self.shares.share[entry, int(np.flatnonzero(self.shares.steps == step)[0])])
        name, at = self.shares.names[entry], grouped(round(step))
        if isnan(share):
            return _("{name}\nstep {step}: nothing recorded").format(name=name, step=at)
        return self._cell_text.format(name=name, step=at, share=share_text(share))


def colour_of(level: float) -> str:
    """The colour of a level from 0 to 1, from that of a quiet ground to that of an error."""
    theme = themes().theme
    ground = theme.blend(theme.accent, 0.16)
    return theme.blend(theme.warning, level / 0.6, ground) if level < 0.6 else theme.blend(
        theme.error, (level - 0.6) / 0.4, theme.warning)  # fmt: skip
