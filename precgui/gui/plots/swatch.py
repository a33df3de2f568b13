"""A piece of a run's line, for lists and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QPointF, QSize, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap

from precgui.gui.plots.export import swatch_pen

if TYPE_CHECKING:
    from precgui.gui.state import OpenRun

SWATCH = QSize(30, 14)


def swatch_icon(opened: OpenRun, width: float = 2.0) -> QIcon:
    """A piece of the run's line, in its colour and dash."""
    ratio = 2.0
    image = QPixmap(SWATCH * ratio)
    image.setDevicePixelRatio(ratio)
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    painter.setPen(swatch_pen(opened, width))
    middle = SWATCH.height() / 2
    painter.drawLine(QPointF(1, middle), QPointF(SWATCH.width() - 1, middle))
    painter.end()
    icon = QIcon(image)
    icon.addPixmap(image, QIcon.Mode.Selected)  # Qt would tint the selected run, whose colour then is no longer its own
    return icon
