"""The operations of a step on two rails, the forward pass above and the backward pass below, with range and error."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QHelpEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QToolTip, QWidget

from precgui.formats.model import FloatFormat
from precgui.formats.registry import formats
from precgui.gui.format_colours import format_colour
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.theme import themes
from precgui.runs.anatomy import StepOperation
from precgui.words import L_, _, p_, paragraph, translated

_RAIL, _RANGE, _ERROR = 0.3, 0.4, 0.3  # shares of the height of one pass
_MOST_ERROR, _LEAST_ERROR = 0.0, -9.0  # decades
_LABELS_PX, _GAP_PX, _NOTCH_PX = 92, 10, 7
_ABOUT = L_(
    "Operations from left to right in the order in which they ran, the forward pass above, the backward pass below. "
    "Colour: the format of the result; a notch: a cast; below each rail the largest value as a part of the range of "
    "its format, in powers of two, and the error that the operation itself makes. Arrow keys choose an operation."
)


class StepRails(QWidget):
    """`operation_chosen` carries the index of an operation that was clicked or reached by the arrow keys."""

    operation_chosen = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._operations: Sequence[StepOperation] = ()
        self._passes: tuple[list[int], list[int]] = ([], [])
        self.chosen = -1
        self.setMinimumHeight(220)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName(_("Operations of the step"))
        self.setAccessibleDescription(translated(_ABOUT))
        themes().follow(self, self.update)

    def show_operations(self, operations: Sequence[StepOperation]) -> None:
        """Show these; none is chosen."""
        self._operations, self.chosen = operations, -1
        backward = [index for index, one in enumerate(operations) if one.backward]
        self._passes = ([index for index, one in enumerate(operations) if not one.backward], backward)
        self.update()

    def choose(self, index: int) -> None:
        """Mark an operation."""
        self.chosen = index
        self.update()
        self.operation_chosen.emit(index)

    def area(self, place: int) -> QRectF:
        """Where the forward (0) or the backward (1) pass is drawn."""
        height = (self.height() - _GAP_PX) / 2
        return QRectF(_LABELS_PX, place * (height + _GAP_PX), max(1, self.width() - _LABELS_PX - 4), height)

    def operation_at(self, point: QPointF) -> int:
        """The index of the operation at a place, -1 where there is none."""
        for place, indices in enumerate(self._passes):
            area = self.area(place)
            if indices and area.contains(point):
                return indices[min(len(indices) - 1, int((point.x() - area.left()) / area.width() * len(indices)))]
        return -1

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        for place, title in enumerate((_("Forward"), _("Backward"))):
            self._paint_labels(painter, self.area(place), title)
            self._paint_pass(painter, self.area(place), self._passes[place])
        painter.end()

    def _paint_labels(self, painter: QPainter, area: QRectF, title: str) -> None:
        painter.setPen(QColor(themes().theme.muted))
        align = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        top = area.top()
        for text, share in ((title, _RAIL), (_("Largest value"), _RANGE), (_("Local error"), _ERROR)):
            height = share * area.height()
            painter.drawText(QRectF(0, top, _LABELS_PX - 6, height), align, text)
            top += height
            painter.drawLine(QPointF(area.left(), top), QPointF(area.right(), top))

    def _paint_pass(self, painter: QPainter, area: QRectF, indices: list[int]) -> None:
        theme = themes().theme
        width = area.width() / max(1, len(indices))
        rail, middle = _RAIL * area.height(), (_RAIL + _RANGE) * area.height()
        for number, index in enumerate(indices):
            one, left = self._operations[index], area.left() + number * width
            colour = QColor(format_colour(one.format) if one.finite else theme.error)
            painter.fillRect(QRectF(left, area.top() + 6, max(1.0, width - (width > 4)), rail - 10), colour)
            if one.asked_by:
                _notch(painter, QPointF(left + width / 2, area.top() + 6), QColor(theme.text))
            used = range_used(one)
            if used is not None:
                height = used * (_RANGE * area.height() - 6)
                bottom = area.top() + middle
                painter.fillRect(QRectF(left, bottom - height, max(1.0, width - (width > 4)), height), colour)
            height = error_share(one.local_error) * (_ERROR * area.height() - 6)
            bar = QRectF(left, area.bottom() - height, max(1.0, width - (width > 4)), height)
            painter.fillRect(bar, QColor(theme.muted))
            if index == self.chosen:
                painter.setPen(QPen(QColor(theme.accent), 2))
                painter.drawRect(QRectF(left, area.top() + 1, max(3.0, width), area.height() - 2))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if (index := self.operation_at(event.position())) >= 0:
            self.choose(index)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        step = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}.get(Qt.Key(event.key()))
        if step is None or not self._operations:
            super().keyPressEvent(event)
            return
        self.choose(max(0, min(len(self._operations) - 1, self.chosen + step)))

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            index = self.operation_at(QPointF(event.pos()))
            text = describe(self._operations[index]) if index >= 0 else ""
            QToolTip.showText(event.globalPos(), plain_tip(text), self)
            return True
        return super().event(event)


class FormatLegend(QWidget):
    """A square and a text for each format of a step."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._formats: dict[str, str] = {}
        self.setMinimumHeight(20)
        themes().follow(self, self.update)

    @property
    def text(self) -> str:
        """All texts of the legend."""
        return ", ".join(self._formats.values())

    def show_formats(self, formats: dict[str, str]) -> None:
        """Show a text for each format; the empty name stands for the colour of NaN and Inf."""
        self._formats = formats
        self.setAccessibleName(self.text)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, left, middle = QPainter(self), 0, self.height() // 2
        for name, text in self._formats.items():
            painter.fillRect(left, middle - 5, 10, 10, QColor(format_colour(name) if name else themes().theme.error))
            painter.setPen(QColor(themes().theme.text))
            width = painter.fontMetrics().horizontalAdvance(text)
            painter.drawText(left + 15, middle + painter.fontMetrics().ascent() // 2, text)
            left += width + 32
        painter.end()


def _notch(painter: QPainter, tip: QPointF, colour: QColor) -> None:
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(colour)
    half = _NOTCH_PX / 2
    painter.drawPolygon(QPolygonF([tip + QPointF(-half, -5), tip + QPointF(half, -5), tip + QPointF(0, 2)]))


def range_used(operation: StepOperation) -> float | None:
    """Where the largest value lies between the smallest normal number of its format (0) and the largest (1)."""
    fmt = formats().get(operation.format)
    if not isinstance(fmt, FloatFormat) or fmt.min_normal is None or not operation.largest:
        return None
    low, high = math.log2(float(fmt.min_normal)), math.log2(float(fmt.max_finite))
    return min(1.0, max(0.0, (math.log2(operation.largest) - low) / (high - low)))


def error_share(error: float | None) -> float:
    """The height of an error: 0 at 1e-9 and below, 1 at 1."""
    if not error:
        return 0.0
    return min(1.0, max(0.0, (math.log10(error) - _LEAST_ERROR) / (_MOST_ERROR - _LEAST_ERROR)))


def describe(operation: StepOperation) -> str:
    """One operation in a sentence or two."""
    text = _(
        "{operation} in {module}, {way}, {line}: {inputs} to {format}, largest value {largest}, local error {error}."
    )
    sentences = [
        text.format(
            operation=operation.operation,
            module=operation.module or _("the step"),
            way=_("backward") if operation.backward else _("forward"),
            line=translated(operation.line),
            inputs=_(", ").join(operation.inputs) or _("no floating-point numbers"),
            format=operation.format,
            largest=_("not finite") if operation.largest is None else f"{operation.largest:.4g}",
            error=f"{operation.local_error:.2e}" if operation.local_error else p_("a value", "none"),
        )
    ]
    if operation.rounding_error:
        sentences.append(_("One rounding makes an error of {error:.2e}.").format(error=operation.rounding_error))
    if operation.asked_by:
        sentences.append(_("The cast was asked for by {who}.").format(who=translated(operation.asked_by)))
    return paragraph(*sentences)
