"""Choosing formats from a menu, and the clipboard."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from PySide6.QtCore import Signal
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QLineEdit, QMenu, QToolButton, QWidget, QWidgetAction

from precgui.formats.registry import MAIN, UnknownFormatError, formats, get


class FormatMenu(QToolButton):
    """A button with a check box for each format and a field for a custom one."""

    changed = Signal(list)

    def __init__(self, chosen: Sequence[str], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setText("Formats")
        self.setToolTip("Which formats are shown")
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self._menu = QMenu(self)
        self._menu.setToolTipsVisible(True)
        self._actions: dict[str, QAction] = {}
        for words, names in (("The seven main formats", MAIN), ("All formats", tuple(formats()))):
            self._menu.addAction(words, partial(self.choose, names))
        self._menu.addSeparator()
        self.custom = QLineEdit()
        self.custom.setPlaceholderText("custom: e5m7, e4m3b11fnuz …")
        self.custom.setAccessibleName("Custom format")
        self.custom.returnPressed.connect(self._add_custom)
        holder = QWidgetAction(self._menu)
        holder.setDefaultWidget(self.custom)
        self._menu.addAction(holder)
        for name in formats():
            self._add(name)
        self.setMenu(self._menu)
        self.choose(chosen, tell=False)

    def _add(self, name: str) -> None:
        action = self._menu.addAction(name)
        action.setCheckable(True)
        action.setToolTip(get(name).title)
        action.toggled.connect(lambda _: self.changed.emit(self.chosen()))
        self._actions[name] = action

    def chosen(self) -> list[str]:
        return [name for name, action in self._actions.items() if action.isChecked()]

    def choose(self, names: Sequence[str], *, tell: bool = True) -> None:
        """Check these formats and no others."""
        for name in names:
            if name not in self._actions:
                self._add(name)
        for name, action in self._actions.items():
            action.blockSignals(True)
            action.setChecked(name in names)
            action.blockSignals(False)
        if tell:
            self.changed.emit(self.chosen())

    def _add_custom(self) -> None:
        try:
            name = get(self.custom.text()).name
        except UnknownFormatError as error:
            self.custom.setToolTip(str(error))
            self.custom.setProperty("faulty", True)
            self.custom.style().polish(self.custom)
            return
        self.custom.setProperty("faulty", False)
        self.custom.style().polish(self.custom)
        self.custom.clear()
        if name not in self._actions:
            self._add(name)
        self._actions[name].setChecked(True)


def copy_text(words: str) -> None:
    QGuiApplication.clipboard().setText(words)
