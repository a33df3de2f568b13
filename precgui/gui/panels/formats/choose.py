"""Choosing formats from a menu, and the clipboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtCore import Signal
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QComboBox, QLineEdit, QMenu, QPushButton, QToolButton, QWidget, QWidgetAction

from precgui.formats.model import Format
from precgui.formats.registry import MAIN, UnknownFormatError, formats, get
from precgui.gui.kit.plain_text import plain_tip
from precgui.words import _, error_text


def tip_button(words: str, tip: str, slot: Callable[[], None]) -> QPushButton:
    button = QPushButton(words)
    button.setToolTip(plain_tip(tip))
    button.setAccessibleName(tip)
    button.setAutoRepeat(True)
    button.clicked.connect(slot)
    return button


def menu_button(words: str, fill: Callable[[QMenu], None]) -> QToolButton:
    """A button whose menu is filled anew each time it opens."""
    button = QToolButton()
    button.setText(words)
    button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
    menu = QMenu(button)
    menu.aboutToShow.connect(menu.clear)
    menu.aboutToShow.connect(lambda: fill(menu))
    button.setMenu(menu)
    return button


class FormatMenu(QToolButton):
    """A button with a check box for each format and a field for a custom one."""

    changed = Signal(list)

    def __init__(self, chosen: Sequence[str], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setText(_("Formats"))
        self.setToolTip(_("Which formats are shown"))
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self._menu = QMenu(self)
        self._menu.setToolTipsVisible(True)
        self._actions: dict[str, QAction] = {}
        for words, names in ((_("The seven main formats"), MAIN), (_("All formats"), tuple(formats()))):
            self._menu.addAction(words, partial(self.choose, names))
        self._menu.addSeparator()
        self.custom = QLineEdit()
        self.custom.setPlaceholderText(_("custom: e5m7, e4m3b11fnuz …"))
        self.custom.setAccessibleName(_("Custom format"))
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
        action.setToolTip(plain_tip(get(name).title))
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
            self.custom.setToolTip(plain_tip(error_text(error)))
            self.custom.setProperty("faulty", True)
            self.custom.style().polish(self.custom)
            return
        self.custom.setProperty("faulty", False)
        self.custom.style().polish(self.custom)
        self.custom.clear()
        if name not in self._actions:
            self._add(name)
        self._actions[name].setChecked(True)


class FormatChoice(QComboBox):
    """One format: a name from the list, or any other that is typed, `eXmY` and aliases too.

    With `instead` the list begins with those words, which stand for no format. `changed` comes with every valid choice;
    other text is marked and leaves the last choice as it was.
    """

    changed = Signal()
    failed = Signal(str)

    def __init__(
        self, chosen: str = "", instead: str = "", names: Sequence[str] = (), parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._instead = instead
        self._chosen: Format | None = None
        self.setEditable(True)
        self.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self.addItems([*([instead] if instead else []), *(names or formats())])
        self.setMinimumContentsLength(9)
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.setToolTip(_("A format from the list, or any eXmY such as e5m7"))
        self.setCurrentText(chosen or instead)
        self._read(self.currentText())
        self.currentTextChanged.connect(self._read)
        self.activated.connect(self._show_start)
        self._show_start()

    def format(self) -> Format | None:
        """The last valid choice; None for the words that stand for no format."""
        return self._chosen

    def known(self) -> Format:
        """The last valid choice, where there are no such words."""
        assert self._chosen is not None
        return self._chosen

    def _read(self, words: str) -> None:
        try:
            self._chosen = None if self._instead and words == self._instead else get(words)
        except UnknownFormatError as error:
            self._mark(faulty=True)
            self.failed.emit(error_text(error))
            return
        self._mark(faulty=False)
        self.changed.emit()

    def _show_start(self) -> None:
        edit = self.lineEdit()
        if edit is not None:
            edit.setCursorPosition(0)

    def _mark(self, *, faulty: bool) -> None:
        edit = self.lineEdit()
        if edit is not None and edit.property("faulty") != faulty:
            edit.setProperty("faulty", faulty)
            edit.style().unpolish(edit)
            edit.style().polish(edit)


def copy_text(words: str) -> None:
    QGuiApplication.clipboard().setText(words)
