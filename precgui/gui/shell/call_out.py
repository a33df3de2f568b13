"""A call-out: a sentence with an arrow to the very button or field that it is about, which has a frame around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from PySide6.QtCore import QEvent, QObject, QPoint, QRect, QSize, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QPainter, QPaintEvent, QPen, QPolygon
from PySide6.QtWidgets import QAbstractItemView, QToolButton, QWidget

from precgui.gui.kit.parts import column, label, row
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.theme import themes
from precgui.words import _

_WIDTHS_PX = (300, 220, 420)  # the next one where the one before covers what it should not
_ARROW_PX, _GAP_PX, _EDGE_PX = 10, 6, 8
_RADIUS_PX = 8
_OF_TARGET = 1000  # times as grave as to cover what the sentence is about


class TargetFrame(QWidget):
    """A frame around a part of the window, through which the mouse reaches it."""

    def __init__(self, host: QWidget) -> None:
        super().__init__(host)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(themes().theme.accent), 2))
        painter.drawRoundedRect(self.rect().adjusted(1, 1, -1, -1), _RADIUS_PX, _RADIUS_PX)
        painter.end()


class CallOut(QWidget):
    """Lies over `host`. `passed` asks for the next step, `returned` for the place of this one, `ended` for no more."""

    passed = Signal()
    returned = Signal()
    ended = Signal()

    def __init__(self, host: QWidget) -> None:
        super().__init__(host)
        themes().dress(self)
        self._host = host
        self.frame = TargetFrame(host)
        self.count, self.text = label("", "muted", wrap=False), label("")
        self.go = self._link(_("Go there"), self.returned, _("Show the place of this step"))
        self.skip = self._link(_("Next"), self.passed, _("Go on without this step"))
        self.end = self._link(_("End"), self.ended, _("End these steps (Esc); Help > First steps begins them again"))
        self._side, self._at = Qt.Edge.TopEdge, 0  # where the arrow is, and how far along that edge
        foot = row((self.count, 1), self.go, self.skip, self.end, spacing=2)
        margin = _ARROW_PX + 10
        column(self.text, foot, spacing=8, margins=(margin + 2, margin, margin, margin - 4), on=self)
        themes().follow(self, self.update)
        self.frame.hide()
        self.hide()

    def _link(self, text: str, signal: object, tip: str) -> QToolButton:
        link = QToolButton()
        link.setText(text)
        link.setToolTip(plain_tip(tip))
        link.setProperty("kind", "link")
        link.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        link.clicked.connect(signal)
        link.installEventFilter(self)
        return link

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress and event.key() == Qt.Key.Key_Escape:
            self.ended.emit()
            return True
        return super().eventFilter(watched, event)

    def tell(self, count: str, text: str) -> None:
        """Show the sentence of a step."""
        if (self.count.text(), self.text.text()) != (count, text):
            self.count.setText(count)
            self.text.setText(text)
            self.setAccessibleName(f"{count}: {text}")

    def point_at(self, target: QWidget | None, about: Sequence[QWidget] = ()) -> None:
        """Stand beside a part of the window, and off what the sentence is `about`, as far as there is room.

        At the lower edge, with a way there, while the part is not in view.
        """
        area = _in_view(target, self._host)
        self.go.setVisible(area is None)
        self.frame.setVisible(area is not None)
        if target is None or area is None:
            self._side, self._at = Qt.Edge.BottomEdge, -1
            placed = self._sized(_WIDTHS_PX[0])
            placed.moveCenter(QPoint(self._host.width() // 2, 0))
            placed.moveBottom(self._host.height() - 48)
        else:
            framed = area.adjusted(-4, -4, 4, 4)
            self.frame.setGeometry(framed)
            shown = (filled_area(each, self._host) for each in about)
            kept = [filled_area(target, self._host), *(each for each in shown if not each.isEmpty())]
            placed = self._beside(framed, kept)
        if self.geometry() != placed:
            self.setGeometry(placed)
        self.show()
        self.frame.raise_()
        self.raise_()
        self.update()

    def _sized(self, width_px: int) -> QRect:
        width = min(width_px, self._host.width() - 2 * _EDGE_PX)
        layout = self.layout()
        return QRect(0, 0, width, layout.totalHeightForWidth(width) if layout is not None else 0)

    def _beside(self, area: QRect, kept: Sequence[QRect]) -> QRect:
        """The first place beside the part, else anywhere, that covers least of it and of all others that are `kept`."""
        inside = self._host.rect().adjusted(_EDGE_PX, _EDGE_PX, -_EDGE_PX, -_EDGE_PX)
        sizes = [self._sized(width) for width in _WIDTHS_PX]
        beside = chain.from_iterable(_adjacent(area, size, inside) for size in sizes)
        apart = chain.from_iterable(_apart(area, size, inside, kept) for size in sizes)
        best, least = None, 0
        for edge, placed in chain[tuple[Qt.Edge | None, QRect]](beside, apart):
            parts = [_pixels(placed & each) for each in kept]
            covered = _OF_TARGET * parts[0] + sum(parts[1:])
            if best is None or covered < least:
                best, least = (edge, placed), covered
            if not covered:
                break
        assert best is not None
        return self._pointing(*best, area)

    def _pointing(self, edge: Qt.Edge | None, placed: QRect, area: QRect) -> QRect:
        self._side = edge or Qt.Edge.BottomEdge
        is_across = edge in (Qt.Edge.TopEdge, Qt.Edge.BottomEdge)
        at = area.center().x() - placed.left() if is_across else area.center().y() - placed.top()
        most = (placed.width() if is_across else placed.height()) - 3 * _ARROW_PX
        self._at = min(max(at, 3 * _ARROW_PX), most) if edge is not None else -1
        return placed

    def paintEvent(self, event: QPaintEvent) -> None:
        theme, painter = themes().theme, QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(theme.accent), 1.5))
        painter.setBrush(QColor(theme.base))
        box = self.rect().adjusted(_ARROW_PX, _ARROW_PX, -_ARROW_PX, -_ARROW_PX)
        painter.drawRoundedRect(box, _RADIUS_PX, _RADIUS_PX)
        if self._at >= 0:
            tip, left, right = _arrow(self._side, self._at, box, self.rect())
            painter.setPen(Qt.PenStyle.NoPen)
            painter.drawPolygon(QPolygon([tip, left, right]))
            painter.setPen(QPen(QColor(theme.accent), 1.5))
            painter.drawPolyline(QPolygon([left, tip, right]))
        painter.end()


def _adjacent(area: QRect, size: QRect, inside: QRect) -> Iterator[tuple[Qt.Edge, QRect]]:
    """Places below, above, right and left of a part, with the side of the arrow: in its middle, then towards an end."""
    middle, end = area.center(), 3 * _ARROW_PX
    across = (middle.x() - size.width() // 2, middle.x() - end, middle.x() + end - size.width())
    down = (middle.y() - size.height() // 2, middle.y() - end, middle.y() + end - size.height())
    below, above = area.bottom() + _GAP_PX, area.top() - _GAP_PX - size.height()
    right, left = area.right() + _GAP_PX, area.left() - _GAP_PX - size.width()
    corners = [(Qt.Edge.TopEdge, x, below) for x in across] + [(Qt.Edge.BottomEdge, x, above) for x in across]
    corners += [(Qt.Edge.LeftEdge, right, y) for y in down] + [(Qt.Edge.RightEdge, left, y) for y in down]
    for edge, x, y in corners:
        placed = _moved_into(QRect(QPoint(x, y), size.size()), inside)
        if not placed.intersects(area):
            yield edge, placed


def _apart(area: QRect, size: QRect, inside: QRect, kept: Sequence[QRect]) -> Iterator[tuple[None, QRect]]:
    """Places beside the parts that are kept and at the edges of the window, the nearest to the part first."""
    x = [inside.left(), area.center().x() - size.width() // 2, inside.right()]
    y = [inside.top(), area.bottom() - _GAP_PX - size.height(), inside.bottom()]
    for each in kept:
        x += [each.right() + _GAP_PX, each.left() - _GAP_PX - size.width()]
        y += [each.bottom() + _GAP_PX, each.top() - _GAP_PX - size.height()]
    corners = [QPoint(left, top) for left in x for top in y]
    places = [_moved_into(QRect(corner, size.size()), inside) for corner in corners]
    places.sort(key=lambda placed: (placed.center() - area.center()).manhattanLength())
    yield from ((None, placed) for placed in places)


def _pixels(area: QRect) -> int:
    return 0 if area.isEmpty() else area.width() * area.height()


def _moved_into(placed: QRect, inside: QRect) -> QRect:
    moved = QRect(placed)
    moved.moveLeft(max(inside.left(), min(moved.left(), inside.right() - moved.width())))
    moved.moveTop(max(inside.top(), min(moved.top(), inside.bottom() - moved.height())))
    return moved


def filled_area(part: QWidget, host: QWidget) -> QRect:
    """The part of a widget that is in view and, of a list or table, has headings or rows; empty where there is none."""
    area = _in_view(part, host) or QRect()
    if isinstance(part, QAbstractItemView) and (model := part.model()) is not None:
        last = part.visualRect(model.index(model.rowCount() - 1, 0)).bottom() if model.rowCount() else 0
        area &= QRect(part.mapTo(host, QPoint()), QSize(part.width(), part.viewport().y() + last + 1))
    return area


def _in_view(target: QWidget | None, host: QWidget) -> QRect | None:
    """The part of a widget that is in view, in the coordinates of `host`; None where nothing of it is."""
    if target is None or not target.isVisible():
        return None
    area = QRect(target.mapTo(host, QPoint()), target.size())
    parent = target.parentWidget()
    while parent is not None and parent is not host:  # `visibleRegion` would leave out what its own parts cover
        area &= QRect(parent.mapTo(host, QPoint()), parent.size())
        parent = parent.parentWidget()
    return None if area.isEmpty() else area


def _arrow(side: Qt.Edge, at: int, box: QRect, whole: QRect) -> tuple[QPoint, QPoint, QPoint]:
    """The tip and the two feet of the arrow."""
    half = _ARROW_PX
    if side in (Qt.Edge.TopEdge, Qt.Edge.BottomEdge):
        tip = whole.top() if side == Qt.Edge.TopEdge else whole.bottom()
        foot = box.top() + 1 if side == Qt.Edge.TopEdge else box.bottom() - 1
        return QPoint(at, tip), QPoint(at - half, foot), QPoint(at + half, foot)
    tip = whole.left() if side == Qt.Edge.LeftEdge else whole.right()
    foot = box.left() + 1 if side == Qt.Edge.LeftEdge else box.right() - 1
    return QPoint(tip, at), QPoint(foot, at - half), QPoint(foot, at + half)
