"""The command palette (find an action by a few letters) and the list of keys, both read from the actions."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QAction, QKeyEvent, QKeySequence
from PySide6.QtWidgets import (
    QAbstractItemView,
    QDialog,
    QFrame,
    QHeaderView,
    QLineEdit,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from precgui.gui.kit.copied_rows import COPY_ALL
from precgui.gui.shell.actions import Actions, menu_path, plain_text
from precgui.gui.theme import themes
from precgui.words import L_, _, translated


def match(typed: str, text: str) -> int | None:
    """How well `typed` finds `text`: None when a letter is missing in order, else the less the better.

    A run of letters together counts less than letters spread over the text, an early one less than a late one.
    """
    requested, result = typed.lower().replace(" ", ""), text.lower()
    direct = result.find(typed.lower().strip())
    if direct >= 0:
        return direct
    at, spread = -1, len(result)
    for letter in requested:
        following = result.find(letter, at + 1)
        if following < 0:
            return None
        spread += following - at
        at = following
    return spread


def _titles(actions: Actions) -> list[tuple[str, QAction]]:
    """Each action with its menu path, as a person reads it."""
    return [
        (f"{menu_path(actions.specs[name])}: {plain_text(action)}", action) for name, action in actions.by_id.items()
    ]


def _table(parent: QWidget) -> QTreeWidget:
    table = QTreeWidget(parent)
    table.setProperty("kind", "menu")
    table.setColumnCount(2)
    table.setHeaderHidden(True)
    table.setRootIsDecorated(False)
    table.setUniformRowHeights(True)
    table.header().setStretchLastSection(False)
    table.header().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
    table.header().setSectionResizeMode(1, QHeaderView.ResizeMode.ResizeToContents)
    table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
    return table


class CommandPalette(QFrame):
    """Lies over its parent. Type, choose with the arrows, Enter runs it, Esc closes it. What is disabled now is shown,
    but cannot be run."""

    def __init__(self, actions: Actions, parent: QWidget) -> None:
        super().__init__(parent)
        themes().dress(self)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setProperty("kind", "overlay")
        actions.refresh()
        self._titles = _titles(actions)
        self.search = QLineEdit(self)
        self.search.setPlaceholderText(_("What do you want to do?"))
        self.search.setAccessibleName("Find a command")
        self.search.setClearButtonEnabled(True)
        self.search.installEventFilter(self)
        self.list = _table(self)
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.list.itemActivated.connect(self._run)
        self.list.itemClicked.connect(self._run)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 12, 12, 12)
        layout.setSpacing(8)
        layout.addWidget(self.search)
        layout.addWidget(self.list)
        self.search.textChanged.connect(self._fill)
        self._fill("")
        width = min(560, parent.width() - 48)
        self.resize(width, min(400, parent.height() - 96))
        self.move((parent.width() - width) // 2, 48)

    def _fill(self, typed: str) -> None:
        scored = [(score, n) for n, each in enumerate(self._titles) if (score := match(typed, each[0])) is not None]
        self.list.clear()
        for _score, n in sorted(scored) if typed.strip() else scored:
            title, action = self._titles[n]
            keys = action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
            row = QTreeWidgetItem([title, keys])
            row.setData(0, Qt.ItemDataRole.UserRole, n)
            row.setDisabled(not action.isEnabled())
            self.list.addTopLevelItem(row)
        if not self.list.topLevelItemCount():
            nothing = QTreeWidgetItem([_("No command has these letters in this order."), ""])
            nothing.setDisabled(True)
            self.list.addTopLevelItem(nothing)
        self._select(0)

    def _select(self, row: int) -> None:
        if result := self.list.topLevelItem(row % self.list.topLevelItemCount()):
            self.list.setCurrentItem(result)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.FocusOut:
            self.close()
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            step = {Qt.Key.Key_Down: 1, Qt.Key.Key_Up: -1}.get(Qt.Key(event.key()))
            if step is not None:
                self._select(self.list.currentIndex().row() + step)
                return True
            if event.key() == Qt.Key.Key_Escape:
                self.close()
                return True
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self._run(self.list.currentItem())
                return True
        return super().eventFilter(watched, event)

    def _run(self, row: QTreeWidgetItem | None) -> None:
        if row is None or row.isDisabled():
            return
        self.close()
        self._titles[row.data(0, Qt.ItemDataRole.UserRole)][1].trigger()


# The keys that are no actions of the menus, by the place where they work.
KEYS: dict[str, tuple[tuple[str, str], ...]] = {
    L_("Plots"): (
        (L_("zoom; the value axis"), L_("Wheel; Shift+Wheel")),
        (L_("zoom into a rectangle; pan"), L_("Drag; Shift+Drag")),
        (L_("pan to both sides"), "Left, Right"),
        (L_("zoom in, out"), "+, -"),
        (L_("step through the recorded points"), "Shift+Left, Shift+Right"),
        (L_("the whole run"), L_("F or double click")),
        (L_("fit the value axes"), "A"),
        (L_("freeze the picture"), L_("Space")),
        (L_("the first NaN or Inf of the loss"), "G"),
        (L_("hide the cursor"), "Esc"),
    ),
    L_("List of open runs"): ((L_("inspect the run"), L_("Double click")), (L_("rename"), "F2"), (L_("close"), "Del")),
    L_("Runs that wait"): ((L_("start earlier, later"), "Alt+Up, Alt+Down"), (L_("remove"), "Del")),
    L_("Runs"): (
        (L_("inspect the selected runs"), "Enter"),
        (L_("rename"), "F2"),
        (L_("write a note"), "Ctrl+E"),
        (L_("read the folder again"), "F5"),
        (L_("delete the selected runs"), "Del"),
    ),
    L_("Bits"): ((L_("one representable value up, down"), "Page Up, Page Down"), (L_("toggle a bit"), L_("Space"))),
    L_("Inspect"): ((L_("copy the selected facts"), "Ctrl+C"),),
    L_("Tables"): ((L_("copy the selected rows"), "Ctrl+C"), (L_("copy the whole table"), COPY_ALL)),
}


class KeyList(QDialog):
    """All keyboard shortcuts, made from the actions."""

    def __init__(self, actions: Actions, parent: QWidget) -> None:
        super().__init__(parent)
        themes().dress(self)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(_("Keyboard shortcuts"))
        table = _table(self)
        table.setAccessibleName(_("Keyboard shortcuts"))
        for title, action in _titles(actions):
            if not action.shortcut().isEmpty():
                keys = action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
                table.addTopLevelItem(QTreeWidgetItem([title, keys]))
        for place, keys_here in KEYS.items():
            for reported, key in keys_here:
                table.addTopLevelItem(
                    QTreeWidgetItem([f"{translated(place)}: {translated(reported)}", translated(key)])
                )
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 12, 12, 12)
        layout.addWidget(table)
        self.resize(min(460, parent.width() - 48), min(560, parent.height() - 48))
