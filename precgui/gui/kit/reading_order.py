"""The order in which a person reads what can have the focus, from where it stands: a recursive X-Y cut of each part.

The parts of a widget are cut into bands from above, each band into columns from the left, and so on; what no straight
cut parts goes by its upper left corner. A part stays together, so a list is not left before its last button.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from PySide6.QtCore import QRect, Qt
from PySide6.QtWidgets import QScrollArea, QWidget

OVERLAP_PX = 2  # frames of neighbours may touch


class _Box(NamedTuple):
    rect: QRect
    stops: list[QWidget]


def tab_as_read(root: QWidget) -> None:
    """Let Tab go through the visible parts of `root` as they are read, not as they were made."""
    for before, after in pairwise(reading_order(root)):
        QWidget.setTabOrder(before, after)


def scroll_to(part: QWidget) -> None:
    """Bring a part into view. Qt does so within a page, not where the focus comes into it from outside."""
    around = part.parentWidget()
    while around is not None:
        if isinstance(around, QScrollArea):
            around.ensureWidgetVisible(part)
        around = around.parentWidget()


def reading_order(root: QWidget) -> list[QWidget]:
    """The visible parts of `root` that Tab reaches, as they are read."""
    return _read(_boxes(root))


def _boxes(parent: QWidget) -> list[_Box]:
    """The direct parts of a widget that hold a stop, each with the room that its stops take in `parent`."""
    boxes = []
    for child in parent.findChildren(QWidget, options=Qt.FindChildOption.FindDirectChildrenOnly):
        if not child.isVisible() or child.isWindow():
            continue
        inner = _boxes(child)
        if _is_stop(child):
            boxes.append(_Box(child.geometry(), [child, *_read(inner)]))
        elif inner:
            taken = QRect()
            for box in inner:
                taken |= box.rect
            taken &= child.rect()  # a page may be longer than the area in which it scrolls
            boxes.append(_Box(taken.translated(child.pos()), _read(inner)))
    return boxes


def _is_stop(part: QWidget) -> bool:
    tabbed = part.focusPolicy() & Qt.FocusPolicy.TabFocus
    return bool(tabbed) and part.isEnabled() and part.focusProxy() is None


def _read(boxes: list[_Box]) -> list[QWidget]:
    if len(boxes) > 1:
        for spans in (_rows, _columns):
            if len(groups := _cut(boxes, spans)) > 1:
                return [stop for group in groups for stop in _read(group)]
    boxes = sorted(boxes, key=lambda box: (box.rect.top(), box.rect.left()))
    return [stop for box in boxes for stop in box.stops]


def _rows(rect: QRect) -> tuple[int, int]:
    return rect.top(), rect.bottom()


def _columns(rect: QRect) -> tuple[int, int]:
    return rect.left(), rect.right()


def _cut(boxes: list[_Box], span: Callable[[QRect], tuple[int, int]]) -> list[list[_Box]]:
    """Groups of boxes whose spans do not overlap those of another group, in their order."""
    groups: list[list[_Box]] = []
    end = 0
    for box in sorted(boxes, key=lambda box: span(box.rect)[0]):
        first, last = span(box.rect)
        if groups and first < end - OVERLAP_PX:
            groups[-1].append(box)
            end = max(end, last)
        else:
            groups.append([box])
            end = last
    return groups
