"""Compare: the open runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtWidgets import QVBoxLayout, QWidget

from precgui.gui.empty import EmptyState

if TYPE_CHECKING:
    from precgui.gui.state import State


class ComparePanel(QWidget):
    """Says what will be here."""

    def __init__(self, state: State, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.empty = EmptyState("compare", "Nothing to compare yet", "", "Choose runs", self)
        self.empty.button.clicked.connect(lambda: state.panel_wanted.emit("library"))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(24, 24, 24, 24)
        layout.addWidget(self.empty)
