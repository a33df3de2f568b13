"""Over what the plots go: steps or time."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QComboBox, QLabel, QWidget


class AxisChoice(QComboBox):
    """`chosen(over)`: another axis. `label` belongs beside it."""

    chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        for text, over in (("Step", "step"), ("Time", "time_s")):
            self.addItem(text, over)
        self.setAccessibleName("X axis")
        self.label = QLabel("&X axis", parent)
        self.label.setBuddy(self)
        self.currentIndexChanged.connect(lambda _: self.chosen.emit(self.currentData()))
