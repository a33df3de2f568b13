"""The sheet over an empty window: three questions, each the beginning of a path through the places of the window."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QObject, QSize, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QAbstractButton, QCommandLinkButton, QFrame, QScrollArea, QWidget

from precgui.gui.kit.icons import icon
from precgui.gui.kit.parts import button, column, holder, label, row
from precgui.gui.shell.guided_path import FirstPath, PathChoice
from precgui.gui.shell.precision_card import PrecisionCard
from precgui.gui.theme import themes
from precgui.words import L_, _, translated

HEADING = L_("Where do you want to begin?")
LATER = L_("Not now")
_AGAIN = L_("Help > First steps shows this sheet again.")
_WIDTH_PX, _EDGE_PX = 600, 12
_SHADE = 0.72  # opacity of the cover over the window


class FirstRunSheet(QWidget):
    """Covers `host`. `chosen` carries a path; `closed` comes when it was skipped. Tab and the arrows stay inside it.

    `recipe_requested` comes with the choice that leaves the recipe open.
    """

    chosen = Signal(object)
    recipe_requested = Signal()
    closed = Signal()

    def __init__(self, paths: Sequence[FirstPath], host: QWidget) -> None:
        super().__init__(host)
        themes().dress(self)
        self.setAccessibleName(translated(HEADING))
        self._host = host
        self.advice = label("", "muted")
        self.precision = PrecisionCard(next(path for path in paths if path.choices))
        self.precision.chosen.connect(self._choose)
        self.cards = {path.name: self._card(path) for path in paths if not path.choices}
        self.later = button(translated(LATER), self.skip, _("Close this sheet (Esc)"))
        choices, measure = self.precision.choices.values(), self.precision.measure
        self._stops: list[QAbstractButton] = [*choices, measure, *self.cards.values(), self.later]
        self._frame = QFrame(self)
        self._frame.setProperty("kind", "overlay")
        self._inner = inner = QWidget()
        self._foot = holder(row((label(translated(_AGAIN), "muted"), 1), self.later, margins=(16, 0, 16, 8)))
        head, cards = (label(translated(HEADING), "title"), self.advice), (self.precision, *self.cards.values())
        column(*head, *cards, spacing=12, margins=(16, 8, 16, 8), on=inner)
        column((_scrolled(inner), 1), self._foot, spacing=0, margins=(8, 8, 8, 8), on=self._frame)
        for watched in (host, inner, *self._stops):
            watched.installEventFilter(self)
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

    def _choose(self, choice: PathChoice) -> None:
        if choice.path is None:
            self.recipe_requested.emit()
        else:
            self.chosen.emit(choice.path)

    def show_advice(self, sentence: str) -> None:
        """Show what is advised here, for which model."""
        self.advice.setText(sentence)
        self._place()

    def open(self) -> None:
        """Show the sheet with the first card under the keys."""
        self._place()
        self.show()
        self.raise_()
        self._stops[0].setFocus(Qt.FocusReason.TabFocusReason)

    def skip(self) -> None:
        """Close the sheet; it comes back from Help alone."""
        self.closed.emit()

    def _place(self) -> None:
        self.setGeometry(self._host.rect())
        self.advice.setVisible(bool(self.advice.text()))
        width = min(_WIDTH_PX, self.width() - 2 * _EDGE_PX)
        layout = self._inner.layout()
        wanted = layout.totalHeightForWidth(width - 16) if layout is not None else 0
        wanted += self._foot.sizeHint().height() + 18
        height = min(wanted, self.height() - 2 * _EDGE_PX)
        self._frame.setGeometry((self.width() - width) // 2, (self.height() - height) // 2, width, height)

    def paintEvent(self, event: QPaintEvent) -> None:
        shade = QColor(themes().theme.window)
        shade.setAlphaF(_SHADE)
        painter = QPainter(self)
        painter.fillRect(event.rect(), shade)
        painter.end()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        changed: dict[QObject, QEvent.Type] = {self._host: QEvent.Type.Resize, self._inner: QEvent.Type.LayoutRequest}
        if changed.get(watched) == event.type():
            self._place()
        is_key = isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress
        if is_key and isinstance(event, QKeyEvent) and isinstance(watched, QAbstractButton):
            return self._press(self._stops.index(watched), Qt.Key(event.key()))
        return super().eventFilter(watched, event)

    def _press(self, at: int, key: Qt.Key) -> bool:
        if key == Qt.Key.Key_Escape:
            self.skip()
            return True
        if key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._stops[at].click()
            return True
        on, back = (
            (Qt.Key.Key_Tab, Qt.Key.Key_Down, Qt.Key.Key_Right),
            (Qt.Key.Key_Backtab, Qt.Key.Key_Up, Qt.Key.Key_Left),
        )
        by = 1 if key in on else -1 if key in back else 0
        if by:
            here, stops = self._stops[at], [each for each in self._stops if not each.isHidden() and each.isEnabled()]
            next_at = (stops.index(here) + by) % len(stops) if here in stops else 0
            stops[next_at].setFocus(Qt.FocusReason.TabFocusReason)
        return bool(by)

    def _recolour(self) -> None:
        for card in self.cards.values():
            card.setIcon(icon(card.property("drawing"), themes().theme.accent, 28))
        self.update()


def _scrolled(inner: QWidget) -> QScrollArea:
    """An area without a frame that scrolls up and down."""
    scroller = QScrollArea()
    scroller.setWidget(inner)
    for surface in (inner, scroller.viewport()):
        surface.setAutoFillBackground(False)
    scroller.setWidgetResizable(True)
    scroller.setFrameShape(QFrame.Shape.NoFrame)
    scroller.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    scroller.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    return scroller
