"""The corner of the menu bar: the way back and forward, and the current run of the whole window."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QAction, QFontMetrics, QIcon
from PySide6.QtWidgets import QMenu, QToolButton, QWidget

from precgui.gui.kit.icons import icon
from precgui.gui.kit.parts import row
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.theme import themes
from precgui.words import L_, _, translated

if TYPE_CHECKING:
    from precgui.gui.session import Session

_NAME_PX = 220  # of the name of the run; a longer one is cut in the middle
_TIP = L_("The current run: Live, Compare, Inspect and Diagnose show it")


class CurrentRunBar(QWidget):
    """Two arrows, and a menu of the open runs under the name of the current one; the menu is there with a run.

    `resized`: a menu bar has to make room for another name; it does not see that by itself.
    """

    resized = Signal()

    def __init__(self, back: QAction, forward: QAction, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session: Session | None = None
        self.back, self.forward = self._arrow(back), self._arrow(forward)
        self.run = QToolButton()
        self.run.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.run.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.run.setIconSize(QSize(28, 14))
        self.run.setProperty("kind", "corner")
        self.run.setMenu(QMenu(self.run))
        self.run.menu().aboutToShow.connect(self._fill)
        row(self.back, self.forward, self.run, spacing=2, margins=(0, 0, 8, 0), on=self)
        self.run.hide()
        themes().follow(self, self._recolour)
        self._recolour()

    def _arrow(self, action: QAction) -> QToolButton:
        button = QToolButton()
        button.setDefaultAction(action)
        button.setProperty("kind", "corner")
        button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonIconOnly)
        button.setIconSize(QSize(16, 16))
        return button

    def attach(self, session: Session) -> None:
        """Follow the current run of a session."""
        self._session = session
        for signal in (session.runs.changed, session.runs.removed, session.runs.added):
            signal.connect(lambda _: self._show())
        session.runs.current_changed.connect(self._show)
        self._show()

    def _show(self) -> None:
        session = self._session
        opened = session.runs.get(session.runs.current or "") if session is not None else None
        self.run.setVisible(opened is not None)
        width = self.width()
        if opened is not None:
            metrics = QFontMetrics(self.run.font())
            self.run.setText(metrics.elidedText(opened.name, Qt.TextElideMode.ElideMiddle, _NAME_PX))
            self.run.setIcon(_swatch(opened))
            self.run.setToolTip(plain_tip(f"{opened.name}\n{translated(_TIP)}"))
            self.run.setAccessibleName(_("Current run: {name}").format(name=opened.name))
        if self.sizeHint().width() != width:
            self.resized.emit()

    def _fill(self) -> None:
        menu, session = self.run.menu(), self._session
        menu.clear()
        for key, opened in session.runs.items() if session is not None else ():
            action = menu.addAction(_swatch(opened), opened.name.replace("&", "&&"))
            action.setCheckable(True)
            action.setChecked(session is not None and key == session.runs.current)
            if session is not None:
                action.triggered.connect(partial(_choose, session, key))

    def _recolour(self) -> None:
        for button, drawing in ((self.back, "back"), (self.forward, "forward")):
            button.defaultAction().setIcon(icon(drawing, themes().theme.muted, 16))
        self._show()


def _choose(session: Session, key: str, _: bool = False) -> None:
    session.runs.choose(key)


def _swatch(opened: object) -> QIcon:
    from precgui.gui.open_run import OpenRun
    from precgui.gui.plots.export import swatch_icon  # pyqtgraph, not before the first paint

    assert isinstance(opened, OpenRun)
    return swatch_icon(opened)
