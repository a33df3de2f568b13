"""The present load of every core as a row of bars, and the programs that cause it."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.panels.hardware.strip_chart import TEXT_PX
from precgui.gui.theme import themes
from precgui.words import _

_BAR_PX, _GAP_PX = 40, 2
_BUSY = 90.0  # percent from which a core is drawn in the colour of a warning


class CoreBars(QWidget):
    """One bar for each logical core, as high as the share of the last half second in which it worked."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: tuple[float, ...] = ()
        self.setFixedHeight(TEXT_PX + _BAR_PX + 4)
        self.setMinimumWidth(200)
        self.setAccessibleName(_("Load of each core"))

    def show_loads(self, loads: Sequence[float]) -> None:
        """Draw these loads, in percent."""
        self.loads = tuple(loads)
        words = ", ".join(
            _("core {core}: {load:.0f} %").format(core=core, load=load) for core, load in enumerate(self.loads)
        )
        self.setAccessibleDescription(words)
        self.setToolTip(plain_tip(words))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        theme = themes().theme
        painter = QPainter(self)
        painter.setPen(QColor(theme.muted))
        busy = sum(load >= _BUSY for load in self.loads)
        painter.drawText(
            0, TEXT_PX - 5, _("Load of each core: {busy} of {count} busy").format(busy=busy, count=len(self.loads))
        )
        width = min(24.0, (self.width() + _GAP_PX) / max(len(self.loads), 1) - _GAP_PX)
        for place, load in enumerate(self.loads):
            left, high = place * (width + _GAP_PX), _BAR_PX * min(load, 100.0) / 100
            painter.fillRect(QRectF(left, TEXT_PX, width, _BAR_PX), QColor(theme.line))
            colour = theme.warning if load >= _BUSY else theme.accent
            painter.fillRect(QRectF(left, TEXT_PX + _BAR_PX - high, width, high), QColor(colour))
        painter.end()
