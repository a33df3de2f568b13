"""A call-out: a sentence with an arrow to the very button or field that it is about, which has a frame around it."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QPoint, QRect, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QPainter, QPaintEvent, QPen, QPolygon
from PySide6.QtWidgets import QToolButton, QWidget

from precgui.gui.kit.parts import column, label, row
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.theme import themes
from precgui.words import _

_WIDTH_PX = 300
_ARROW_PX, _GAP_PX, _EDGE_PX = 10, 6, 8
_RADIUS_PX = 8


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

    def point_at(self, target: QWidget | None) -> None:
        """Stand beside a part of the window; at the lower edge, with a way there, while it is not in view."""
        area = _in_view(target, self._host)
        self.go.setVisible(area is None)
        self.frame.setVisible(area is not None)
        width = min(_WIDTH_PX, self._host.width() - 2 * _EDGE_PX)
        layout = self.layout()
        size = QRect(0, 0, width, layout.totalHeightForWidth(width) if layout is not None else 0)
        if area is None:
            self._side = Qt.Edge.BottomEdge
            size.moveCenter(QPoint(self._host.width() // 2, 0))
            size.moveBottom(self._host.height() - 48)
            self._at = -1
        else:
            self.frame.setGeometry(area.adjusted(-4, -4, 4, 4))
            size = self._beside(area.adjusted(-4, -4, 4, 4), size)
        if self.geometry() != size:
            self.setGeometry(size)
        self.show()
        self.frame.raise_()
        self.raise_()
        self.update()

    def _beside(self, area: QRect, size: QRect) -> QRect:
        """Below the part, else above, right or left of it, else over its lower end, so that it lies in the window."""
        inside = self._host.rect().adjusted(_EDGE_PX, _EDGE_PX, -_EDGE_PX, -_EDGE_PX)
        size.moveCenter(area.center())
        for edge in (Qt.Edge.TopEdge, Qt.Edge.BottomEdge, Qt.Edge.LeftEdge, Qt.Edge.RightEdge):
            placed = QRect(size)
            if edge == Qt.Edge.TopEdge:
                placed.moveTop(area.bottom() + _GAP_PX)
            elif edge == Qt.Edge.BottomEdge:
                placed.moveBottom(area.top() - _GAP_PX)
            elif edge == Qt.Edge.LeftEdge:
                placed.moveLeft(area.right() + _GAP_PX)
            else:
                placed.moveRight(area.left() - _GAP_PX)
            moved = _moved_into(placed, inside)
            if not moved.intersects(area):
                return self._pointing(edge, moved, area)
        size.moveBottom(area.bottom() - _GAP_PX)
        return self._pointing(Qt.Edge.BottomEdge, _moved_into(size, inside), area, arrow=False)

    def _pointing(self, edge: Qt.Edge, placed: QRect, area: QRect, *, arrow: bool = True) -> QRect:
        self._side = edge
        is_across = edge in (Qt.Edge.TopEdge, Qt.Edge.BottomEdge)
        at = area.center().x() - placed.left() if is_across else area.center().y() - placed.top()
        most = (placed.width() if is_across else placed.height()) - 3 * _ARROW_PX
        self._at = min(max(at, 3 * _ARROW_PX), most) if arrow else -1
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


def _moved_into(placed: QRect, inside: QRect) -> QRect:
    moved = QRect(placed)
    moved.moveLeft(max(inside.left(), min(moved.left(), inside.right() - moved.width())))
    moved.moveTop(max(inside.top(), min(moved.top(), inside.bottom() - moved.height())))
    return moved


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
