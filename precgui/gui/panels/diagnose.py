"""Diagnose: what went wrong in a run, where and why. The place for it; the rules come with the record of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtWidgets import QVBoxLayout, QWidget

from precgui.gui.empty import EmptyState

if TYPE_CHECKING:
    from precgui.gui.state import State


class DiagnosePanel(QWidget):
    """Says what will be here, and where the signs of trouble are shown today."""

    def __init__(self, state: State, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.empty = EmptyState(
            "diagnose",
            "No diagnosis yet",
            "This panel will name what went wrong in a run: the step, the module, the numbers that prove it and the "
            "fix. This version records what it needs; skipped steps, changes of the loss scale and NaN are marked in "
            "the Live panel.",
            "Look at the open runs",
            self,
        )
        self.empty.button.clicked.connect(lambda: state.panel_wanted.emit("live"))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(24, 24, 24, 24)
        layout.addWidget(self.empty)
