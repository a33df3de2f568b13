"""A small picture of what a recipe learns, drawn in the colours of the theme."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise, product

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPen, QPixmap, QPolygonF

from precgui.gui.theme import themes

WIDTH, HEIGHT = 112, 64
_THREE = ("01111100", "11000110", "00000110", "00111100", "00000110", "00000110", "11000110", "01111100")
_SHIRT = ((20, 4), (28, 8), (36, 4), (52, 14), (46, 24), (40, 20), (40, 52), (16, 52), (16, 20), (10, 24), (4, 14))
_WORDS = ((0, 30), (36, 22), (64, 16), (0, 18), (24, 40), (0, 44), (50, 26), (0, 26), (32, 16))  # left, length


def recipe_picture(task: str, ratio: float = 1.0) -> QPixmap:
    """The picture of a task, `WIDTH` x `HEIGHT`; `ratio` is that of the screen. Plain for a task that is not known."""
    made = QPixmap(round(WIDTH * ratio), round(HEIGHT * ratio))
    made.setDevicePixelRatio(ratio)
    made.fill(QColor(themes().theme.blend(themes().theme.accent, 0.08)))
    painter = QPainter(made)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    _DRAWINGS.get(task, _network)(painter)
    painter.end()
    return made


def _colour(place: int) -> QColor:
    return QColor(themes().theme.runs[place % len(themes().theme.runs)])


def _digit(painter: QPainter, left: float = 32, top: float = 8, cell: float = 6, colour: int = 0) -> None:
    for row, line in enumerate(_THREE):
        for column, mark in enumerate(line):
            if mark == "1":
                pixel = QRectF(left + cell * column, top + cell * row, cell - 0.5, cell - 0.5)
                painter.fillRect(pixel, _colour(colour))


def _shirt(painter: QPainter) -> None:
    painter.setBrush(_colour(3))
    painter.drawPolygon(QPolygonF([QPointF(28 + x, 4 + y) for x, y in _SHIRT]))


def _tiles(painter: QPainter) -> None:
    for place in range(10):
        column, row = place % 5, place // 5
        painter.fillRect(QRectF(6 + 20.5 * column, 9 + 24 * row, 18, 21), _colour(place))


def _text(painter: QPainter) -> None:
    rows = (0, 0, 0, 1, 1, 2, 2, 3, 3)
    for place, ((left, length), row) in enumerate(zip(_WORDS, rows, strict=True)):
        painter.setBrush(_colour(1 if place % 4 == 0 else 2))
        painter.drawRoundedRect(QRectF(14 + left, 10 + 13 * row, length, 6), 3, 3)


def _regions(painter: QPainter) -> None:
    painter.fillRect(QRectF(10, 6, 92, 52), QColor(themes().theme.blend(_colour(6).name(), 0.35)))
    painter.setBrush(_colour(5))
    painter.drawEllipse(QRectF(18, 16, 40, 36))
    painter.setBrush(_colour(1))
    painter.drawEllipse(QRectF(60, 10, 30, 26))


def _boxes(painter: QPainter) -> None:
    _digit(painter, 18, 12, 3.2)
    _digit(painter, 66, 24, 3.2, 2)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.setPen(QPen(_colour(1), 2))
    for box in (QRectF(14, 8, 34, 34), QRectF(62, 20, 34, 34)):
        painter.drawRect(box)


def _line(painter: QPainter) -> None:
    chance = random.Random(3)
    painter.setBrush(_colour(2))
    for place in range(14):
        x = 12 + 6.6 * place
        painter.drawEllipse(QPointF(x, 54 - 0.44 * x + chance.uniform(-6, 6)), 2.2, 2.2)
    painter.setPen(QPen(_colour(1), 2))
    painter.drawLine(QPointF(8, 52), QPointF(104, 9))


def _noise_to_digit(painter: QPainter) -> None:
    chance = random.Random(1)
    for place in range(64):
        shade = QColor(themes().theme.blend(themes().theme.text, chance.uniform(0.1, 0.9)))
        painter.fillRect(QRectF(12 + 4 * (place % 8), 16 + 4 * (place // 8), 4, 4), shade)
    painter.setPen(QPen(_colour(1), 2))
    painter.drawLine(QPointF(50, 32), QPointF(62, 32))
    painter.drawPolyline(QPolygonF([QPointF(58, 28), QPointF(62, 32), QPointF(58, 36)]))
    painter.setPen(Qt.PenStyle.NoPen)
    _digit(painter, 68, 16, 4)


def _cart(painter: QPainter) -> None:
    painter.fillRect(QRectF(8, 50, 96, 2), QColor(themes().theme.muted))
    painter.setBrush(_colour(0))
    painter.drawRoundedRect(QRectF(38, 36, 36, 13), 3, 3)
    painter.setPen(QPen(_colour(1), 4, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap))
    painter.drawLine(QPointF(56, 36), QPointF(66, 8))


def _waves(painter: QPainter) -> None:
    """Two vowels, one after the other."""
    painter.setPen(QPen(_colour(0), 2))
    for left, waves in ((10, 3), (58, 6)):
        heights = [14 * math.sin(math.pi * n / 44) * math.sin(2 * math.pi * waves * n / 44) for n in range(45)]
        painter.drawPolyline(QPolygonF([QPointF(left + n, 32 - height) for n, height in enumerate(heights)]))


def _likings(painter: QPainter) -> None:
    """Users down, items across; few are known."""
    chance = random.Random(5)
    for row, place in product(range(5), range(9)):
        known = chance.random() < 0.35
        colour = _colour(1 if chance.random() < 0.5 else 0) if known else QColor(themes().theme.line)
        painter.fillRect(QRectF(11 + 10 * place, 7 + 10 * row, 8, 8), colour)


def _network(painter: QPainter) -> None:
    layers = [[QPointF(20 + 36 * n, 32 + 15 * (k - (count - 1) / 2)) for k in range(count)]
              for n, count in enumerate((3, 4, 2))]  # fmt: skip
    painter.setPen(QPen(QColor(themes().theme.line), 1))
    for left, right in pairwise(layers):
        for start in left:
            for end in right:
                painter.drawLine(start, end)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(_colour(0))
    for point in (point for layer in layers for point in layer):
        painter.drawEllipse(point, 4, 4)


_DRAWINGS: dict[str, Callable[[QPainter], None]] = {
    "digits": _digit, "fashion-mnist": _shirt, "cifar10": _tiles, "text": _text, "segmentation": _regions,
    "detection": _boxes, "regression": _line, "speech": _waves,
    "recommender": _likings, "gan": _noise_to_digit, "cartpole": _cart,
}  # fmt: skip
