"""The mouse in a plot: wheel and drag zoom, shift or the middle button pans, a double click goes back."""

from __future__ import annotations

from typing import Any

import pyqtgraph as pg
from PySide6.QtCore import QRectF, Qt, Signal

_THIN_PX = 12  # a drag flatter than this zooms along one axis only


class PlotView(pg.ViewBox):  # type: ignore[misc]  # pyqtgraph is untyped
    """A view box whose wheel zooms along x (with Shift: along y) and whose drag zooms into a rectangle.

    `moved(x, y)` says which ranges the user has changed, `reset` that the zoom was reset.
    """

    moved = Signal(bool, bool)
    reset = Signal()

    def __init__(self) -> None:
        super().__init__(enableMenu=False)
        self.setMouseMode(pg.ViewBox.RectMode)
        self.disableAutoRange()
        self.setDefaultPadding(0)

    def wheelEvent(self, ev: Any, axis: int | None = None) -> None:
        if axis is None:
            axis = 1 if ev.modifiers() & Qt.KeyboardModifier.ShiftModifier else 0
        super().wheelEvent(ev, axis=axis)
        self.moved.emit(axis == 0, axis == 1)

    def mouseDragEvent(self, ev: Any, axis: int | None = None) -> None:
        if ev.button() == Qt.MouseButton.RightButton:
            ev.ignore()
            return
        shift = bool(ev.modifiers() & Qt.KeyboardModifier.ShiftModifier)
        if axis is not None or shift or ev.button() == Qt.MouseButton.MiddleButton:
            self._pan(ev, axis)
            return
        ev.accept()
        if not ev.isFinish():
            self.updateScaleBox(ev.buttonDownPos(), ev.pos())
            return
        self.rbScaleBox.hide()
        self.zoom_to(QRectF(ev.buttonDownPos(), ev.pos()).normalized())

    def _pan(self, ev: Any, axis: int | None) -> None:
        self.setMouseMode(pg.ViewBox.PanMode)
        super().mouseDragEvent(ev, axis)
        self.setMouseMode(pg.ViewBox.RectMode)
        self.moved.emit(axis != 1, axis != 0)

    def zoom_to(self, box: QRectF) -> None:
        """Zoom into a rectangle of this view in pixels; along one axis when it is thin, not at all when tiny."""
        wide, high = box.width() >= _THIN_PX, box.height() >= _THIN_PX
        if not wide and not high:
            return
        target = self.childGroup.mapRectFromParent(box)
        if wide:
            self.setXRange(target.left(), target.right(), padding=0)
        if high:
            self.setYRange(target.top(), target.bottom(), padding=0)
        self.moved.emit(wide, high)

    def mouseClickEvent(self, ev: Any) -> None:
        if ev.button() == Qt.MouseButton.LeftButton and ev.double():
            ev.accept()
            self.reset.emit()

    def keyPressEvent(self, ev: Any) -> None:
        ev.ignore()  # keys belong to the linked plots as a whole
