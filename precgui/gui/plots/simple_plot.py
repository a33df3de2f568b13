"""The base of plots that stand alone: axes with names, colours of the theme, a sentence where nothing is drawn."""

from __future__ import annotations

import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QWidget

from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.plots.axes import ValueAxis, colour_axes
from precgui.gui.plots.menus import own_menu
from precgui.gui.plots.signals import Scale
from precgui.gui.theme import themes

_TOP_PX, _RIGHT_PX, _BOTTOM_PX = 8, 24, 6  # the title of the lower axis reaches 5 px below it


class SimplePlot(pg.PlotWidget):  # type: ignore[misc]  # pyqtgraph is untyped
    """Drag pans, the wheel zooms, a double click shows everything again. Subclasses make their items in `draw`."""

    def __init__(
        self, about: str, y_scale: Scale = "linear", padding: float = 0.02, parent: QWidget | None = None
    ) -> None:
        self._bottom, self._left = ValueAxis("bottom", "linear"), ValueAxis("left", y_scale)
        super().__init__(parent, axisItems={"bottom": self._bottom, "left": self._left}, enableMenu=False)
        own_menu(self)
        self.setAccessibleName(about)
        self.setFrameShape(pg.PlotWidget.Shape.NoFrame)
        self.setMinimumHeight(160)
        self.plotItem.hideButtons()
        self.plotItem.setContentsMargins(0, _TOP_PX, _RIGHT_PX, _BOTTOM_PX)
        self.plotItem.vb.setDefaultPadding(padding)
        self.resizeEvent(QResizeEvent(self.size(), self.size()))  # before it is shown: texts need a plot with a size
        self._left.setStyle(autoExpandTextSpace=True)  # values close to each other have long texts
        self._names = ("", "")
        self.empty = PlainLabel(self)
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.empty.setProperty("kind", "muted")
        self.empty.setWordWrap(True)
        self.empty.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.scene().sigMouseClicked.connect(lambda event: self.show_all() if event.double() else None)
        themes().follow(self, self.redraw)

    def redraw(self) -> None:
        """Draw everything anew, in the present colours."""
        self.plotItem.clear()
        why = self.draw()
        for axis, name in zip((self._bottom, self._left), self._names, strict=True):
            axis.setStyle(tickFont=self.font())
            axis.enableAutoSIPrefix(False)
            axis.setLabel(name)
            axis.setGrid(60)
        colour_axes(self)
        self.empty.setText(why)
        self.empty.setVisible(bool(why))
        for axis in (self._bottom, self._left):
            axis.hide() if why else axis.show()  # unlike setVisible they make room for its texts
        self._place_sentence()

    def show_all(self) -> None:
        """Let the axes hold everything that is drawn."""
        self.plotItem.vb.autoRange()

    def draw(self) -> str:
        """Add the items to the plot and name the axes; returns why there is nothing to draw, else an empty text."""
        raise NotImplementedError

    def name_axes(self, bottom: str, left: str) -> None:
        self._names = (bottom, left)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if hasattr(self, "empty"):
            self._place_sentence()

    def _place_sentence(self) -> None:
        self.empty.setGeometry(self.rect().adjusted(24, 24, -24, -24))
