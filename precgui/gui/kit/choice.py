"""A choice of one of some entries, and what keeps the wheel from changing values on a page that scrolls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtWidgets import QComboBox, QWidget


class _WheelGuard(QObject):
    """Lets the wheel scroll the page instead of changing a value without the focus."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Wheel and isinstance(watched, QWidget) and not watched.hasFocus():
            event.ignore()
            return True
        return super().eventFilter(watched, event)


def ignore_wheel(widget: QWidget) -> None:
    """From now on the wheel does nothing to `widget` unless it has the focus."""
    widget.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    widget.installEventFilter(_WheelGuard(widget))


class Choice(QComboBox):
    """One of some entries. `about` is read by screen readers; `chosen` is called when another entry is current."""

    def __init__(self, about: str, chosen: Callable[[], object] | None = None, entries: Sequence[str] = ()) -> None:
        super().__init__()
        self.setAccessibleName(about)
        ignore_wheel(self)
        self.addItems(entries)
        if chosen is not None:
            self.currentIndexChanged.connect(lambda _: chosen())

    def offer(self, entries: Sequence[tuple[str, Any]]) -> None:
        """Texts, and what they stand for. The entry that was chosen stays so, by its text; else the first is."""
        if list(entries) == [(self.itemText(place), self.itemData(place)) for place in range(self.count())]:
            return
        before, had = self.currentText(), self.currentData()
        was_blocked = self.blockSignals(True)
        self.clear()
        for text, data in entries:
            self.addItem(text, data)
        self.setCurrentIndex(max(0, self.findText(before)) if entries else -1)
        self.blockSignals(was_blocked)
        if (self.currentText(), self.currentData()) != (before, had):
            self.currentIndexChanged.emit(self.currentIndex())
