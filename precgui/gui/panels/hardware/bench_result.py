"""One bench result shown: bars of one size, the roofline, and the table of all figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QComboBox, QGridLayout, QSizePolicy, QTableView, QVBoxLayout, QWidget

from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.panels.hardware.bench_table import WIDTHS_PX, RowsModel, rows_of
from precgui.gui.plots.roofline import Roofline, RooflineData
from precgui.gui.theme import themes
from precgui.hardware.measured import best_tops, copy_gb_s, number_text
from precgui.words import _, translated

ROW_PX, BAR_PX, NAME_PX = 36, 18, 70
_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "e4m3fn": 1, "int8": 1}


def intensity(fmt: str, size: int) -> float:
    """Operations per byte of a size^3 product whose three matrices move once."""
    return 2 * size**3 / (3 * size**2 * _BYTES[fmt])


def roofline_data(result: Mapping[str, Any] | None) -> RooflineData | None:
    """The roofline of a bench result, None where it has no bandwidth yet."""
    bandwidth = (copy_gb_s(result) or 0.0) * 1e-3
    if result is None or not bandwidth:
        return None
    best = best_tops(result)
    points = {
        fmt: [(intensity(fmt, row["m"]), row["tops"]) for row in result["gemm"] if row["format"] == fmt and row["tops"]]
        for fmt in best
    }
    return RooflineData(bandwidth, best, points)


@dataclass(frozen=True, slots=True)
class Bar:
    """One format: rates in 10^12 operations a second; `words` stand beside the bar."""

    name: str
    tops: float | None
    peak_tops: float | None
    earlier_tops: float | None
    words: str
    wrong_peak: bool = False


class Bars(QWidget):
    """Horizontal bars on one linear scale, which begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self._bars: list[Bar] = []
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(_("Measured rates by format"))
        themes().follow(self, self.update)

    def show_bars(self, bars: list[Bar]) -> None:
        self._bars = bars
        self.setFixedHeight(max(1, len(bars)) * ROW_PX + 4)
        self.setAccessibleDescription(". ".join(f"{bar.name}: {bar.words}" for bar in bars))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rates = [rate for bar in self._bars for rate in (bar.tops, bar.peak_tops, bar.earlier_tops) if rate]
        largest = max(rates, default=1.0)
        for row, bar in enumerate(self._bars):
            self._draw(painter, bar, float(row * ROW_PX), (self.width() - NAME_PX - 8) / largest)
        painter.end()

    def _draw(self, painter: QPainter, bar: Bar, top: float, scale: float) -> None:
        theme = themes().theme
        painter.setPen(QColor(theme.text))
        left = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(QRectF(0, top, NAME_PX - 6, BAR_PX), left, bar.name)
        if bar.peak_tops:
            painter.setPen(QPen(QColor(theme.muted), 1, Qt.PenStyle.DashLine))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(QRectF(NAME_PX, top + 0.5, bar.peak_tops * scale, BAR_PX - 1))
        if bar.tops:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(theme.error if bar.wrong_peak else theme.accent))
            painter.drawRect(QRectF(NAME_PX, top + 3, max(1.0, bar.tops * scale), BAR_PX - 6))
        if bar.earlier_tops:
            painter.setPen(QPen(QColor(theme.text), 2))
            x = NAME_PX + bar.earlier_tops * scale
            painter.drawLine(round(x), round(top), round(x), round(top + BAR_PX))
        painter.setPen(QColor(theme.error if bar.wrong_peak else theme.muted))
        painter.drawText(QRectF(NAME_PX, top + BAR_PX, self.width() - NAME_PX, ROW_PX - BAR_PX), left, bar.words)


TWO_COLUMNS_PX = 820
PARTS = 3  # bars, roofline, table
Result = Mapping[str, Any]


class ResultView(QWidget):
    """A result beside the one before it. `size_box` chooses the size of the bars; who makes the view places it."""

    def __init__(self) -> None:
        super().__init__()
        self.size_box = QComboBox()
        self.size_box.setAccessibleName(_("Size"))
        self.size_box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.bars, self.roofline, self.table, self.rows = Bars(), Roofline(), QTableView(), RowsModel()
        let_copy(self.table)
        self.roofline.setFixedHeight(300)
        self._result: Result | None = None
        self._earlier: Result | None = None
        self._set_up_table()
        self._pictures = QGridLayout()
        self._place(columns=2)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(8)
        column.addLayout(self._pictures)
        column.addWidget(self.table, 1)
        self.size_box.currentIndexChanged.connect(self._show_bars)

    def _set_up_table(self) -> None:
        self.table.setAccessibleName(_("All figures"))
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.table.setModel(self.rows)
        self.table.verticalHeader().hide()
        self.table.verticalHeader().setDefaultSectionSize(26)
        self.table.setShowGrid(False)
        self.table.setMinimumHeight(220)
        self.table.horizontalHeader().setStretchLastSection(True)
        for section, width in enumerate(WIDTHS_PX):
            self.table.setColumnWidth(section, width)

    def _place(self, columns: int) -> None:
        """The pictures side by side, or one below the other where there is no room."""
        self._pictures.addWidget(self.bars, 0, 0, Qt.AlignmentFlag.AlignTop)
        self._pictures.addWidget(self.roofline, *((0, 1) if columns == 2 else (1, 0)))
        self._pictures.setColumnStretch(0, 1)
        self._pictures.setColumnStretch(1, columns - 1)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place(columns=2 if event.size().width() >= TWO_COLUMNS_PX else 1)

    def show_result(self, result: Result | None, earlier: Result | None) -> None:
        """Show all of a result, or nothing."""
        for part in range(PARTS):
            self.show_part(part, result, earlier)

    def show_part(self, part: int, result: Result | None, earlier: Result | None) -> None:
        """Show one of PARTS of a result that may have grown: each paints for some milliseconds, and all at once would
        be felt."""
        self._result, self._earlier = result, earlier
        if part == 0:
            self._fill_sizes()
            self._show_bars()
        elif part == 1:
            self.roofline.show_data(roofline_data(result))
        else:
            self.rows.show_rows(rows_of(result, earlier) if result else [])

    def _fill_sizes(self) -> None:
        sizes = sorted({row["m"] for row in self._result["gemm"]}) if self._result else []
        if [self.size_box.itemData(i) for i in range(self.size_box.count())] != sizes:
            self.size_box.blockSignals(True)
            self.size_box.clear()
            for size in sizes:
                self.size_box.addItem(_("Size {size}").format(size=size), size)
            self.size_box.setCurrentIndex(self._best_covered(sizes))
            self.size_box.blockSignals(False)

    def _best_covered(self, sizes: list[int]) -> int:
        """The place of the size at which most formats were measured, the largest of those; -1 without sizes."""
        rates = self._result["gemm"] if self._result else []
        counts = [sum(bool(row["tops"]) for row in rates if row["m"] == size) for size in sizes]
        return max(range(len(sizes)), key=lambda place: (counts[place], place), default=-1)

    def _show_bars(self) -> None:
        result, size = self._result, self.size_box.currentData()
        if result is None or size is None:
            self.bars.show_bars([])
            return
        earlier = self._earlier["gemm"] if self._earlier else []
        before = {(row["format"], row["m"]): row["tops"] for row in earlier}
        rows = [row for row in result["gemm"] if row["m"] == size]
        fp32 = next((row["tops"] for row in rows if row["format"] == "fp32"), None)
        self.bars.show_bars([_bar(row, fp32, before.get((row["format"], size))) for row in rows])


def _bar(row: Mapping[str, Any], fp32: float | None, earlier: float | None) -> Bar:
    tops, share = row["tops"], row.get("share")
    if not tops:
        return Bar(row["format"], None, row.get("peak_tops"), earlier, translated(row["note"]) or _("not measured"))
    parts = [number_text(tops)]
    if fp32:
        parts.append(f"{tops / fp32:.2f} x FP32")
    wrong_peak = bool(share and share > 1)
    if share:
        text = (
            _("{share:.0%} of the peak {peak}, which is wrong") if wrong_peak else _("{share:.0%} of the peak {peak}")
        )
        parts.append(text.format(share=share, peak=number_text(row["peak_tops"])))
    elif row["note"]:
        parts.append(translated(row["note"]))
    return Bar(row["format"], tops, row.get("peak_tops"), earlier, "   ".join(parts), wrong_peak)
