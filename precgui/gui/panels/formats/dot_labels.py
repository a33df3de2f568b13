"""Where the names of dots stand, so that they lie neither on another dot nor on one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRectF, QSizeF

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
