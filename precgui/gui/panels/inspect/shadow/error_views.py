"""Error: the balance of a replayed step by source line, the error of each layer, and branches that tell a bias."""

from __future__ import annotations

from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from precgui.gui.kit.pages import PageStack
from precgui.gui.kit.segmented import SegmentedChoice
from precgui.gui.panels.inspect.shadow.error_tab import ErrorTab
from precgui.gui.panels.inspect.shadow.layer_view import LayerView
from precgui.gui.panels.inspect.shadow.twin_view import TwinView
from precgui.gui.session import Session
from precgui.words import L_, _

_LINES, _LAYERS, _TWINS = L_("By line"), L_("By layer"), L_("Twins")


class ErrorViews(QWidget):
    """Views of the same run; the one that is chosen reads its side files when it is shown."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.choice = SegmentedChoice((_LINES, _LAYERS, _TWINS), _("View of the error"), self)
        self.lines, self.layers = ErrorTab(session, self), LayerView(session, self)
        self.twins = TwinView(session, self)
        self._stack = PageStack(self)
        for view in (self.lines, self.layers, self.twins):
            self._stack.addWidget(view)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 8, 0, 0)
        column.setSpacing(0)
        head = QHBoxLayout()
        head.addWidget(self.choice)
        head.addStretch(1)
        column.addLayout(head)
        column.addWidget(self._stack, 1)
        self.choice.chosen.connect(self._choose)

    def show_run(self, key: str | None) -> None:
        self.lines.show_run(key)
        self.layers.show_run(key)
        self.twins.show_run(key)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.layers.refresh()
        self.twins.refresh()

    def _choose(self, name: str) -> None:
        views: dict[str, ErrorTab | LayerView | TwinView] = {
            _LINES: self.lines, _LAYERS: self.layers, _TWINS: self.twins,
        }  # fmt: skip
        view = views[name]
        view.refresh()
        self._stack.setCurrentWidget(view)
