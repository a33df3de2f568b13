"""Colours, fonts and words of the bit grid."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPixmap

from precgui.formats import text
from precgui.formats.model import FloatFormat
from precgui.formats.report import Report
from precgui.gui.colours import Theme
from precgui.gui.kit.measures import TEXT_SCALE, fixed_font
from precgui.gui.panels.formats.bit_layout import Line
from precgui.gui.panels.formats.fact_list import category_text
from precgui.words import _, n_, translated


def words(line: Line, report: Report, name: str) -> str:
    match line.what:
        case "name":
            return name
        case "layout":
            fmt = report.format
            if isinstance(fmt, FloatFormat):
                return f"{fmt.sign_bits} + {fmt.exponent_bits} + {fmt.mantissa_bits}"
            return n_("{count} bit", "{count} bits", fmt.bits).format(count=fmt.bits)
        case "hex":
            return report.bits
        case "value":
            return report.value_text
        case "error":
            return errorwords(report)
        case _:
            return translated(report.note) or category_text(report.stored.category)


def errorwords(report: Report) -> str:
    """The error for a narrow column: exact, or signed and in ulps."""
    if report.error is None:
        return ""
    if report.error == 0:
        return _("exact")
    assert report.error_ulp is not None
    sign = "+" if report.error > 0 else ""
    return f"{sign}{text.approximate(report.error, 3)}  ({sign}{text.approximate(report.error_ulp, 2)} ulp)"


class Brush:
    """Colours, fonts and cells of one paint; a cell is drawn once, for all bits drawn alike."""

    def __init__(self, theme: Theme, font: QFont, pixel_ratio: float) -> None:
        self.theme = theme
        self._ratio = pixel_ratio
        self._cells: dict[tuple[str, int], QPixmap] = {}
        self.chosen = QColor(theme.blend(theme.accent, 0.08))
        self.line = QColor(theme.blend(theme.line, 0.7))
        self.cursor = QColor(theme.text)
        self.mono = fixed_font()
        self.mono.setPointSizeF(font.pointSizeF())
        self.bold = QFont(font)
        self.bold.setBold(True)
        self.small = QFont(font)
        self.small.setPointSizeF(font.pointSizeF() * TEXT_SCALE["small"])
        self.field = {name: _shades(theme, colour) for name, colour in field_colours(theme).items()}
        self._metrics = {id(each): QFontMetrics(each) for each in (self.mono, self.bold, self.small)}

    def cell(self, field: str, on: int, size: QSize) -> QPixmap:
        """The picture of a bit of that field, set or clear; all cells of one paint have one size."""
        pixmap = self._cells.get((field, on))
        if pixmap is None:
            pixmap = self._cells[field, on] = QPixmap(size * self._ratio)
            pixmap.setDevicePixelRatio(self._ratio)
            set_back, clear_back, set_text, clear_text = self.field[field]
            pixmap.fill(set_back if on else clear_back)
            painter = QPainter(pixmap)
            painter.setFont(self.mono)
            painter.setPen(set_text if on else clear_text)
            painter.drawText(QRect(QPoint(0, 0), size), Qt.AlignmentFlag.AlignCenter, str(on))
            painter.end()
        return pixmap

    def metrics(self, line: Line) -> QFontMetrics:
        return self._metrics[id(self.font(line))]

    def font(self, line: Line) -> QFont:
        if line.what == "name":
            return self.bold
        return self.mono if line.what in ("hex", "value") else self.small

    def pen(self, line: Line, report: Report) -> QColor:
        if line.what == "class" and report.note:
            lost = report.stored.real.kind != "finite" or "overflow" in report.note or "underflow" in report.note
            return QColor(self.theme.error if lost else self.theme.warning)
        quiet = line.what in ("layout", "error", "class")
        return QColor(self.theme.muted if quiet else self.theme.text)


def _shades(theme: Theme, colour: str) -> tuple[QColor, QColor, QColor, QColor]:
    """Background and text of a set bit and of a clear one."""
    return (QColor(theme.blend(colour, 0.85)), QColor(theme.blend(colour, 0.14)), QColor(theme.base),
            QColor(theme.blend(colour, 0.85)))  # fmt: skip


def field_colours(theme: Theme) -> dict[str, str]:
    """The colour of each field of a code."""
    return {"sign": theme.error, "exponent": theme.ok, "mantissa": theme.info, "value": theme.accent}
