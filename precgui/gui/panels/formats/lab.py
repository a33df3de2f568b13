"""The rounding lab: experiments with sliders, one at a time."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QComboBox, QListWidget, QSplitter, QVBoxLayout, QWidget

from precgui.gui.kit.pages import PageStack
from precgui.gui.panels.formats.experiment import Experiment
from precgui.gui.panels.formats.lab_failures import LongSum, Overflowing, Underflow
from precgui.gui.panels.formats.lab_functions import Dot, Functions, Softmax
from precgui.words import _, translated

NARROW_PX = 900  # below it, a menu takes the place of the list
EXPERIMENTS: tuple[tuple[str, Callable[[], Experiment]], ...] = (
    (Underflow.title, Underflow),
    (Overflowing.title, Overflowing),
    (LongSum.title, LongSum),
    (Softmax.title, Softmax),
    (Dot.title, Dot),
    (Functions.title, Functions),
)


class LabTab(QWidget):
    """A list of experiments, or a menu of them where there is little room, and the chosen one."""

    def __init__(self, session: object, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.list = QListWidget()
        self.list.setAccessibleName(_("Experiments"))
        self.list.setSpacing(4)
        self.list.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.menu = QComboBox()
        self.menu.setAccessibleName(_("Experiment"))
        self.stack = PageStack()
        self._experiments: dict[int, Experiment] = {}
        for title, _kind in EXPERIMENTS:
            self.list.addItem(translated(title))
            self.menu.addItem(translated(title))
        self.list.setMinimumWidth(self.list.sizeHintForColumn(0) + 12)
        self.list.currentRowChanged.connect(self._choose)
        self.list.currentRowChanged.connect(self.menu.setCurrentIndex)
        self.menu.currentIndexChanged.connect(self.list.setCurrentRow)
        self.list.setCurrentRow(0)
        split = QSplitter()
        split.setChildrenCollapsible(False)
        split.addWidget(self.list)
        split.addWidget(self.stack)
        split.setSizes([230, 870])
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 12, 4, 4)
        column.addWidget(self.menu)
        column.addWidget(split, 1)

    def experiment(self, row: int) -> Experiment:
        """An experiment by its place in the list, created now if it was not."""
        if row not in self._experiments:
            self._experiments[row] = EXPERIMENTS[row][1]()
            self.stack.addWidget(self._experiments[row])
        return self._experiments[row]

    def _choose(self, row: int) -> None:
        self.stack.setCurrentWidget(self.experiment(row))

    def resizeEvent(self, event: QResizeEvent) -> None:
        narrow = self.width() < NARROW_PX
        self.list.setVisible(not narrow)
        self.menu.setVisible(narrow)
