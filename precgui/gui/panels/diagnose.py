"""Diagnose: what went wrong in a run, where and why. Until it can tell, the way to the panels that help to find out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QPushButton, QVBoxLayout, QWidget

from precgui.gui.widgets.empty_state import EmptyState, set_paragraph
from precgui.gui.widgets.plain_text import PlainLabel

if TYPE_CHECKING:
    from precgui.gui.session import Session

_TEXT = "precgui does not yet find by itself what went wrong in a run. Its record holds what you need to find it:"
_WAYS = (
    ("live", "Live", "When: NaN, Inf, skipped steps and changes of the loss scale are marked; G leads to the first NaN "
     "of the loss."),
    ("inspect", "Inspect", "Where: the tab Tensors says which tensors lose values to zero or overflow, and in which "
     "format or at which loss scale they would not have, without a new run."),
    ("compare", "Compare", "Whether precision is to blame: train the same recipe in fp32, and see at which step the "
     "losses part."),
)  # fmt: skip


class DiagnosePanel(QWidget):
    """Says what is not there, and leads to what is."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.empty = EmptyState("diagnose", "No diagnosis yet", _TEXT)
        self.buttons: dict[str, QPushButton] = {}
        ways = QWidget(self)
        grid = QGridLayout(ways)
        grid.setSpacing(12)
        for row, (panel, name, told) in enumerate(_WAYS):
            button = self.buttons[panel] = QPushButton(name, ways)
            button.clicked.connect(partial(session.panel_wanted.emit, panel))
            text = PlainLabel(ways)
            set_paragraph(text, told)
            grid.addWidget(button, row, 0, Qt.AlignmentFlag.AlignTop)
            grid.addWidget(text, row, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(24, 24, 24, 24)
        layout.addStretch(2)
        layout.addWidget(self.empty)
        layout.addWidget(ways, 0, Qt.AlignmentFlag.AlignHCenter)
        layout.addStretch(3)
