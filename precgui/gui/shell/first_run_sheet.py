"""The sheet over an empty window: three questions, each the beginning of a path through the places of the window."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QObject, QSize, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QCommandLinkButton, QFrame, QPushButton, QScrollArea, QWidget

from precgui.gui.kit.icons import icon
from precgui.gui.kit.parts import button, column, label, row
from precgui.gui.shell.first_paths import FirstPath
from precgui.gui.theme import themes
from precgui.words import L_, _, translated

HEADING = L_("Where do you want to begin?")
LATER = L_("Not now")
_AGAIN = L_("Help > First steps shows this sheet again.")
_WIDTH_PX, _EDGE_PX = 560, 24
_SHADE = 0.72  # opacity of the cover over the window


class FirstRunSheet(QWidget):
    """Covers `host`. `chosen` carries a path; `closed` comes when it was skipped. Tab and the arrows stay inside it."""

    chosen = Signal(object)
    closed = Signal()

    def __init__(self, paths: Sequence[FirstPath], host: QWidget) -> None:
        super().__init__(host)
        themes().dress(self)
        self.setAccessibleName(translated(HEADING))
        self._host = host
        self.advice = label("", "muted")
        self.cards = {path.name: self._card(path) for path in paths}
        self.later = button(translated(LATER), self.skip, _("Close this sheet (Esc)"))
        self._stops: list[QPushButton] = [*self.cards.values(), self.later]
        for part in self._stops:
            part.installEventFilter(self)
        self._frame = QFrame(self)
        self._frame.setProperty("kind", "overlay")
        inner = QWidget()
        foot = row((label(translated(_AGAIN), "muted"), 1), self.later)
        column(
            label(translated(HEADING), "title"),
            self.advice,
            *self.cards.values(),
            foot,
            spacing=12,
            margins=(16, 12, 16, 12),
            on=inner,
        )
        self._inner = inner
        scroller = QScrollArea()
        scroller.setWidget(inner)
        for surface in (inner, scroller.viewport()):
            surface.setAutoFillBackground(False)
        scroller.setWidgetResizable(True)
        scroller.setFrameShape(QFrame.Shape.NoFrame)
        scroller.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroller.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        column(scroller, margins=(8, 8, 8, 8), on=self._frame)
        host.installEventFilter(self)
        themes().follow(self, self._recolour)
        self._recolour()
        self._place()

    def _card(self, path: FirstPath) -> QCommandLinkButton:
        card = QCommandLinkButton(translated(path.title), translated(path.about))
        card.setAccessibleDescription(translated(path.about))
        card.setIconSize(QSize(28, 28))
        card.setProperty("drawing", path.icon)
        card.clicked.connect(lambda: self.chosen.emit(path))
        return card

    def show_advice(self, sentence: str) -> None:
        """Show what is advised here, as Run says it."""
        self.advice.setText(sentence)
        self._place()

    def open(self) -> None:
        """Show the sheet with the first card under the keys."""
        self._place()
        self.show()
        self.raise_()
        next(iter(self.cards.values())).setFocus(Qt.FocusReason.TabFocusReason)

    def skip(self) -> None:
        """Close the sheet; it comes back from Help alone."""
        self.closed.emit()

    def _place(self) -> None:
        self.setGeometry(self._host.rect())
        self.advice.setVisible(bool(self.advice.text()))
        width = min(_WIDTH_PX, self.width() - 2 * _EDGE_PX)
        layout = self._inner.layout()
        wanted = layout.totalHeightForWidth(width - 16) if layout is not None else 0
        height = min(wanted + 18, self.height() - 2 * _EDGE_PX)
        self._frame.setGeometry((self.width() - width) // 2, (self.height() - height) // 2, width, height)

    def paintEvent(self, event: QPaintEvent) -> None:
        shade = QColor(themes().theme.window)
        shade.setAlphaF(_SHADE)
        painter = QPainter(self)
        painter.fillRect(event.rect(), shade)
        painter.end()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._host and event.type() == QEvent.Type.Resize:
            self._place()
        is_key = isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress
        if is_key and isinstance(event, QKeyEvent) and isinstance(watched, QPushButton):
            return self._press(self._stops.index(watched), Qt.Key(event.key()))
        return super().eventFilter(watched, event)

    def _press(self, at: int, key: Qt.Key) -> bool:
        if key == Qt.Key.Key_Escape:
            self.skip()
            return True
        if key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._stops[at].click()
            return True
        by = {Qt.Key.Key_Tab: 1, Qt.Key.Key_Down: 1, Qt.Key.Key_Backtab: -1, Qt.Key.Key_Up: -1}.get(key, 0)
        if by:
            self._stops[(at + by) % len(self._stops)].setFocus(Qt.FocusReason.TabFocusReason)
        return bool(by)

    def _recolour(self) -> None:
        for card in self.cards.values():
            card.setIcon(icon(card.property("drawing"), themes().theme.accent, 28))
        self.update()
