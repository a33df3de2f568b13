"""Rows of bits, one row for each format: painted in one widget so that a toggle repaints in a few milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from PySide6.QtCore import QEvent, QPoint, QRect, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QApplication, QScrollArea, QSizePolicy, QToolTip, QWidget

from precgui.formats.report import Report
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.panels.formats.bit_layout import RowLayout, field_of, field_text, lay_out, scale_for
from precgui.gui.panels.formats.bit_paint import Brush, words
from precgui.gui.theme import themes
from precgui.words import _

Bit = tuple[str, int]
WRITING_KEYS = frozenset(
    (Qt.Key.Key_Space, Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_0, Qt.Key.Key_1, Qt.Key.Key_PageUp,
     Qt.Key.Key_PageDown, Qt.Key.Key_Plus, Qt.Key.Key_Minus)
)  # fmt: skip


class BitGrid(QWidget):
    """Shows reports and asks for changes: it never changes a number itself.

    Click or drag to set bits, arrows to move, space to flip, 0 and 1 to write, page up and down to step one ulp; in
    fixed rows only the cursor moves.
    """

    bit_set = Signal(str, int, bool, bool)  # row, bit, on, part of a drag in progress
    stepped = Signal(str, int)
    selected = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._reports: dict[str, Report] = {}
        self._layout: list[RowLayout] = []
        self._cursor: Bit | None = None
        self._drag: tuple[str, bool] | None = None
        self._stale = False
        self._fixed: frozenset[str] = frozenset()
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMouseTracking(True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(_("Bits"))
        themes().follow(self, self.update)

    # What is shown

    def show_reports(self, reports: Sequence[Report]) -> None:
        """Show these, each under the name of its format."""
        self.show_rows({report.format.name: report for report in reports})

    def show_rows(self, reports: Mapping[str, Report], fixed: Iterable[str] = ()) -> None:
        """Show these under these names; the first becomes the chosen one when the chosen one is gone."""
        displayed = [(name, report.format) for name, report in reports.items()]
        same = displayed == [(name, report.format) for name, report in self._reports.items()]
        self._reports = dict(reports)
        self._stale, self._fixed = False, frozenset(fixed)
        if self._cursor is None or self._cursor[1] >= self._bits(self._cursor[0]):
            self._cursor = (displayed[0][0], displayed[0][1].bits - 1) if displayed else None
        if not same:
            self._arrange()
        self._describe()
        self.update()

    def _bits(self, name: str) -> int:
        return self._reports[name].format.bits if name in self._reports else 0

    def show_stale(self, stale: bool) -> None:
        """Fade the rows while what is typed is no number."""
        if stale != self._stale:
            self._stale = stale
            self.update()

    @property
    def chosen(self) -> str | None:
        return self._cursor[0] if self._cursor else None

    @property
    def row_names(self) -> list[str]:
        """The formats or operands of the rows, from the top."""
        return [row.name for row in self._layout]

    def cell_rect(self, name: str, bit: int) -> QRect:
        """Where a bit is drawn. Raises KeyError for a format that is not shown."""
        for row in self._layout:
            if row.name == name:
                return row.cells[bit]
        raise KeyError(name)

    def choose(self, name: str) -> None:
        if name in self._reports and name != self.chosen:
            self._move((name, self._reports[name].format.bits - 1))

    # Geometry

    def sizeHint(self) -> QSize:
        return QSize(900, self._layout[-1].rect.bottom() + 6 if self._layout else 60)

    def minimumSizeHint(self) -> QSize:
        return QSize(460, self.sizeHint().height())

    def resizeEvent(self, event: QEvent) -> None:
        font = QApplication.font(self)
        font.setPointSizeF(font.pointSizeF() * self._scale())
        self.setFont(font)
        self._arrange()

    def _scale(self) -> float:
        """The scale for the room beside a scroll bar, so that a bar caused by larger letters does not shrink them."""
        above = self.parentWidget()
        while above is not None and not isinstance(above, QScrollArea):
            above = above.parentWidget()
        return scale_for(max(self.width(), above.width() if above is not None else 0))

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.FontChange:
            self._arrange()

    def _arrange(self) -> None:
        formats = {name: report.format for name, report in self._reports.items()}
        self._layout = lay_out(formats, self.width(), self.fontMetrics(), self._scale())
        self.setFixedHeight(self.sizeHint().height())
        self.updateGeometry()
        self.update()

    def _bit_at(self, point: QPoint) -> Bit | None:
        for row in self._layout:
            if row.rect.contains(point):
                for bit, cell in row.cells.items():
                    if cell.contains(point):
                        return row.name, bit
        return None

    # Mouse

    def mousePressEvent(self, event: QMouseEvent) -> None:
        point = event.position().toPoint()
        hit = self._bit_at(point)
        if hit and hit[0] not in self._fixed and event.button() == Qt.MouseButton.LeftButton:
            name, bit = hit
            on = not self._is_on(name, bit)
            self._drag, self._cursor = (name, on), hit  # whoever sets the bit shows the row anew
            self.bit_set.emit(name, bit, on, False)
            self.update()
            return
        for row in self._layout:
            if row.rect.contains(point):
                self.choose(row.name)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        hit = self._bit_at(event.position().toPoint())
        free = hit is not None and hit[0] not in self._fixed
        self.setCursor(Qt.CursorShape.PointingHandCursor if free else Qt.CursorShape.ArrowCursor)
        if self._drag is None or hit is None or hit[0] != self._drag[0]:
            return
        if self._is_on(*hit) != self._drag[1]:
            self._move(hit)
            self.bit_set.emit(*hit, self._drag[1], True)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._drag = None

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip:
            hit = self._bit_at(self.mapFromGlobal(event.globalPos()))  # type: ignore[attr-defined]
            QToolTip.showText(event.globalPos(), plain_tip(self._tip(hit) if hit else ""), self)  # type: ignore[attr-defined]
            return True
        return super().event(event)

    def _tip(self, hit: Bit) -> str:
        name, bit = hit
        fmt = self._reports[name].format
        return _("{name}, bit {bit}: {field}").format(name=name, bit=bit, field=field_text(fmt, bit))

    # Keyboard

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if self._cursor is None:
            return super().keyPressEvent(event)
        name, bit = self._cursor
        key, last = event.key(), self._bits(name) - 1
        if name in self._fixed and key in WRITING_KEYS:
            return super().keyPressEvent(event)
        match key:
            case Qt.Key.Key_Left:
                self._move((name, min(bit + 1, last)))
            case Qt.Key.Key_Right:
                self._move((name, max(bit - 1, 0)))
            case Qt.Key.Key_Home:
                self._move((name, last))
            case Qt.Key.Key_End:
                self._move((name, 0))
            case Qt.Key.Key_Up | Qt.Key.Key_Down:
                self._move_row(-1 if key == Qt.Key.Key_Up else 1)
            case Qt.Key.Key_Space | Qt.Key.Key_Return | Qt.Key.Key_Enter:
                self.bit_set.emit(name, bit, not self._is_on(name, bit), False)
            case Qt.Key.Key_0 | Qt.Key.Key_1:
                self.bit_set.emit(name, bit, key == Qt.Key.Key_1, False)
                self._move((name, max(bit - 1, 0)))
            case Qt.Key.Key_PageUp | Qt.Key.Key_Plus:
                self.stepped.emit(name, 1)
            case Qt.Key.Key_PageDown | Qt.Key.Key_Minus:
                self.stepped.emit(name, -1)
            case _:
                super().keyPressEvent(event)
        return None

    def _move_row(self, by: int) -> None:
        assert self._cursor is not None
        names = list(self._reports)
        place = min(max(names.index(self._cursor[0]) + by, 0), len(names) - 1)
        bits = self._reports[names[place]].format.bits
        from_left = self._reports[self._cursor[0]].format.bits - 1 - self._cursor[1]
        self._move((names[place], max(bits - 1 - from_left, 0)))

    def _move(self, to: Bit) -> None:
        before = self.chosen
        self._cursor = to
        self._describe()
        self.update()
        if to[0] != before:
            self.selected.emit(to[0])

    def _is_on(self, name: str, bit: int) -> bool:
        return bool(self._reports[name].stored.code >> bit & 1)

    def _describe(self) -> None:
        if self._cursor is not None:
            name, bit = self._cursor
            state = "1" if self._is_on(name, bit) else "0"
            self.setAccessibleDescription(
                _("{bit} is {state}; {value}").format(
                    bit=self._tip(self._cursor), state=state, value=self._reports[name].value_text
                )
            )

    # Painting

    def focusInEvent(self, event: QEvent) -> None:
        self.update()

    def focusOutEvent(self, event: QEvent) -> None:
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setOpacity(0.45 if self._stale else 1.0)
        brush = Brush(themes().theme, self.font(), self.devicePixelRatioF())
        for row in self._layout:
            if row.rect.intersects(event.rect()):
                self._paint_row(painter, row, brush)
        painter.end()

    def _paint_row(self, painter: QPainter, row: RowLayout, brush: Brush) -> None:
        report = self._reports[row.name]
        if row.name == self.chosen:
            painter.fillRect(row.rect, brush.chosen)
        painter.setPen(brush.line)
        painter.drawLine(row.rect.bottomLeft(), row.rect.bottomRight())
        self._paint_cells(painter, row, report, brush)
        for line in row.lines:
            said = words(line, report, row.name)
            painter.setFont(brush.font(line))
            painter.setPen(brush.pen(line, report))
            displayed = brush.metrics(line).elidedText(said, Qt.TextElideMode.ElideRight, line.rect.width())
            painter.drawText(line.rect, line.flags, displayed)

    def _paint_cells(self, painter: QPainter, row: RowLayout, report: Report, brush: Brush) -> None:
        code, fmt = report.stored.code, report.format
        for bit, cell in row.cells.items():
            inner = cell.adjusted(1, 0, -1, 0)
            painter.drawPixmap(inner.topLeft(), brush.cell(field_of(fmt, bit), code >> bit & 1, inner.size()))
        if self._cursor and self._cursor[0] == row.name and self.hasFocus():
            painter.setPen(brush.cursor)
            painter.drawRect(row.cells[self._cursor[1]].adjusted(0, -2, -1, 1))
