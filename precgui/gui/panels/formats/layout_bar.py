"""The structure of a format as a bar: sign, exponent and mantissa in the widths of their bits."""

from __future__ import annotations

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from precgui.formats.model import BlockFormat, FloatFormat
from precgui.formats.registry import get
from precgui.gui.panels.formats.bit_paint import field_colours
from precgui.gui.panels.formats.format_table import Row
from precgui.gui.theme import themes

BAR_HEIGHT = 34


class LayoutBar(QWidget):
    """Fields of one format from left to right; a bit is as wide in every format of up to 32 bits."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._fields: list[tuple[str, int]] = []
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        themes().changed.connect(self.update)

    def show_format(self, row: Row) -> None:
        fmt = get(row.element) if isinstance(row, BlockFormat) else row
        if isinstance(fmt, FloatFormat):
            parts = (("sign", fmt.sign_bits), ("exponent", fmt.exponent_bits), ("mantissa", fmt.mantissa_bits))
            self._fields = [(name, bits) for name, bits in parts if bits]
        else:
            self._fields = [("value", fmt.bits)]
        words = ", ".join(f"{bits} {name}" for name, bits in self._fields)
        self.setAccessibleName(f"Bits of {fmt.name}: {words}")
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(400, BAR_HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        theme, left = themes().theme, 0
        total = max(sum(bits for _, bits in self._fields), 32)
        unit = min(self.width() / total, 26.0)
        for name, bits in self._fields:
            width = round(unit * bits)
            box = QRect(left, 0, width, BAR_HEIGHT).adjusted(0, 0, -2, 0)
            colour = field_colours(theme)[name]
            painter.fillRect(box, QColor(theme.blend(colour, 0.85)))
            painter.setPen(QColor(theme.base))
            words = (
                f"{bits} {name}" if self.fontMetrics().horizontalAdvance(f"{bits} {name}") < width - 8 else str(bits)
            )
            painter.drawText(box, Qt.AlignmentFlag.AlignCenter, words)
            left += width
        painter.end()
