"""The machine: what it is, what it can do in each format, what was measured, what it reads now, what to use."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QTabWidget, QVBoxLayout, QWidget

from precgui.gui.panels.hardware_advice import AdviceTab
from precgui.gui.panels.hardware_devices import DevicesTab
from precgui.gui.panels.hardware_live import LiveTab
from precgui.gui.panels.hardware_matrix import MatrixTab
from precgui.gui.panels.hardware_measured import MeasuredTab
from precgui.gui.panels.hardware_model import HardwareModel

TABS: tuple[tuple[str, str, Callable[[HardwareModel], QWidget]], ...] = (
    ("Devices", "what is in this machine", DevicesTab),
    ("Formats", "what each device does with each format", MatrixTab),
    ("Measured", "what this machine reaches, from one day to the next", MeasuredTab),
    ("Live", "what the sensors read now", LiveTab),
    ("Advice", "which precision to use for a task", AdviceTab),
)


class HardwarePanel(QWidget):
    """Tabs, each made when it is first looked at."""

    def __init__(self, state: object, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.state = state
        self.model = HardwareModel(self)
        self.tabs = QTabWidget(self)
        self.tabs.setDocumentMode(True)
        self._pages: list[QVBoxLayout] = []
        for title, tip, _ in TABS:
            page = QWidget()
            self._pages.append(QVBoxLayout(page))
            self._pages[-1].setContentsMargins(0, 0, 0, 0)
            self.tabs.setTabToolTip(self.tabs.addTab(page, title), tip)
        self._made: dict[int, QWidget] = {}
        self.tabs.currentChanged.connect(self.tab)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 8, 12, 8)
        column.addWidget(self.tabs)
        self.tab(0)

    def tab(self, index: int) -> QWidget:
        """The content of a tab, made now if it was not."""
        if index not in self._made:
            self._made[index] = TABS[index][2](self.model)
            self._pages[index].addWidget(self._made[index])
        return self._made[index]

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.model.ask_torch()
