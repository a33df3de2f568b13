"""Parts from left to right, in as many lines as they need."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QRect, QSize
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QLineEdit, QSizePolicy, QWidget

GAP_PX = 8
_FRAME_PX = 24  # of a field, beside its text


class WrappingRow(QWidget):
    """A row of controls that wraps where the window is too narrow for it. Hidden parts take no room.

    `at_right` stands at the right end of the line that it falls into. `fills` takes what its line has left; a field
    asks for the room of its placeholder, and gets less where even a line of its own is shorter. `gap_px` is between
    parts.
    """

    def __init__(
        self,
        parts: Sequence[QWidget],
        parent: QWidget | None = None,
        *,
        at_right: QWidget | None = None,
        fills: QWidget | None = None,
        gap_px: int = GAP_PX,
    ) -> None:
        super().__init__(parent)
        self._parts, self._at_right = [*parts, *([at_right] if at_right is not None else [])], at_right
        self._fills, self._gap_px = fills, gap_px
        for part in self._parts:
            part.setParent(self)
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)  # Fixed: one line beside others
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def sizeHint(self) -> QSize:
        hints = [self._needed(part) for part in self._shown()]
        across = sum(hint.width() for hint in hints) + self._gap_px * max(0, len(hints) - 1)
        return QSize(across, max((hint.height() for hint in hints), default=0))

    def minimumSizeHint(self) -> QSize:
        """The size of the widest part: the others wrap below it."""
        hints = [part.minimumSizeHint() if part is self._fills else self._needed(part) for part in self._shown()]
        return QSize(
            max((hint.width() for hint in hints), default=0), max((hint.height() for hint in hints), default=0)
        )

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return max((place.bottom() + 1 for place in self._places(width)), default=0)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._renew()  # Qt sends no LayoutRequest to what is hidden

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.LayoutRequest:  # a part was shown, hidden or has another text
            self._renew()
        return super().event(event)

    def _renew(self) -> None:
        self.updateGeometry()
        self._arrange()

    def _shown(self) -> list[QWidget]:
        return [part for part in self._parts if not part.isHidden()]

    def _needed(self, part: QWidget) -> QSize:
        needed = part.sizeHint().expandedTo(part.minimumSize())
        if part is self._fills and isinstance(part, QLineEdit):
            text_px = part.fontMetrics().horizontalAdvance(part.placeholderText())
            needed = needed.expandedTo(QSize(text_px + _FRAME_PX, 0))
        return needed

    def _arrange(self) -> None:
        for part, place in zip(self._shown(), self._places(self.width()), strict=True):
            part.setGeometry(place)

    def _places(self, width: int) -> list[QRect]:
        """The rectangle of each part that is shown; those of a line have its middle."""
        places, top = list[QRect](), 0
        for line in self._lines(width):
            needed = [self._needed(part) for part in line]
            spare = width - sum(hint.width() for hint in needed) - self._gap_px * (len(line) - 1)
            high, left = max(hint.height() for hint in needed), 0
            for part, hint in zip(line, needed, strict=True):
                if part is self._fills:
                    hint.setWidth(hint.width() + spare)  # less than nothing on a line that is too short
                if part is self._at_right:
                    left = max(left, width - hint.width())
                places.append(QRect(left, top + (high - hint.height()) // 2, hint.width(), hint.height()))
                left += hint.width() + self._gap_px
            top += high + self._gap_px
        return places

    def _lines(self, width: int) -> list[list[QWidget]]:
        lines, left = list[list[QWidget]](), 0
        for part in self._shown():
            needed = self._needed(part).width()
            if not lines or needed > left:
                lines.append([])
                left = width
            lines[-1].append(part)
            left -= needed + self._gap_px
        return lines
