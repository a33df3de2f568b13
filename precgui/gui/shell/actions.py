"""Every action of the window as data: menus, shortcuts, the command palette and the key list are read from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from PySide6.QtCore import QObject
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QMainWindow, QMenu

from precgui.examples import EXAMPLES
from precgui.gui.colours import Theme
from precgui.gui.kit.icons import icon
from precgui.gui.kit.plain_text import plain_tip, without_key
from precgui.gui.theme import themes
from precgui.words import CHOICES, L_, LANGUAGES, translated


@dataclass(frozen=True)
class ActionSpec:
    """One action. `callback`, `enabled` and `checked` name methods of the window, called with `arguments`.

    `menu` is a path (`View/Theme`); an action whose text ends in `...` asks something before it acts.
    """

    id: str
    text: str
    menu: str
    callback: str
    shortcut: str = ""
    enabled: str = ""
    checked: str = ""
    icon: str = ""
    arguments: tuple[str, ...] = ()
    separator: bool = False  # a line above it in its menu
    tip: str = ""


ACTIONS: tuple[ActionSpec, ...] = (
    ActionSpec("file.open", L_("&Open..."), "&File", "files.ask", "Ctrl+O", icon="open"),
    ActionSpec("file.open_study", L_("Open s&tudy..."), "&File", "files.ask_study"),
    ActionSpec("file.check", L_("&Check a script"), "&File", "show_panel", arguments=("diagnose/script",)),
    ActionSpec("file.recent", L_("Open &recent"), "&File", "files.fill_recent"),
    ActionSpec(
        "file.scalars",
        L_("Choose &scalars of an event file..."),
        "&File",
        "files.choose_scalars",
        enabled="files.has_scalars",
    ),
    ActionSpec("file.runs_folder", L_("Show runs &folder"), "&File", "files.show_folder", "Ctrl+Shift+O"),
    ActionSpec("file.undo", L_("&Undo"), "&File", "undo", "Ctrl+Z", enabled="can_undo", icon="reset", separator=True),
    ActionSpec("file.quit", L_("&Quit"), "&File", "close", "Ctrl+Q", separator=True),
    ActionSpec("run.new", L_("&New run"), "&Run", "new_run", "Ctrl+N", icon="setup"),
    ActionSpec("run.start", L_("&Start"), "&Run", "start_run", "Ctrl+R", enabled="can_start", icon="start"),
    ActionSpec("run.stop", L_("S&top"), "&Run", "stop_run", "Ctrl+.", enabled="can_stop", icon="stop"),
    ActionSpec("run.stop_all", L_("Stop &all and clear the queue"), "&Run", "stop_all_runs", enabled="can_stop"),
    *(
        ActionSpec(f"view.theme_{mode}", text, "&View/&Theme", "set_theme", checked="theme_is", arguments=(mode,))
        for mode, text in (("system", L_("Follow the &system")), ("light", L_("&Light")), ("dark", L_("&Dark")))
    ),
    *(
        ActionSpec(
            f"view.language_{choice}",
            LANGUAGES.get(choice, L_("Follow the &system")),
            "&View/&Language",
            "set_language",
            checked="language_is",
            arguments=(choice,),
        )
        for choice in CHOICES
    ),
    ActionSpec("view.back", L_("&Back"), "&View", "history.back", "Alt+Left", enabled="can_go_back"),
    ActionSpec("view.forward", L_("&Forward"), "&View", "history.forward", "Alt+Right", enabled="can_go_forward"),
    ActionSpec(
        "view.navigation", L_("&Narrow navigation"), "&View", "toggle_navigation", "Ctrl+B", checked="is_narrow"
    ),
    ActionSpec("view.notices", L_("N&otices"), "&View", "show_notices", "Ctrl+Shift+N", icon="bell"),
    ActionSpec("view.reset", L_("&Reset layout"), "&View", "reset_layout"),
    ActionSpec("help.docs", L_("&Documentation"), "&Help", "show_docs", "Shift+F1"),
    ActionSpec("help.first_steps", L_("&First steps..."), "&Help", "guide.open"),
    ActionSpec("help.palette", L_("&Command palette..."), "&Help", "show_palette", "Ctrl+K", icon="search"),
    ActionSpec("help.keys", L_("&Keyboard shortcuts"), "&Help", "show_keys", "F1"),
    *(
        ActionSpec(
            f"help.example_{each.name}",
            each.short_title,
            "&Help/&Examples",
            "files.open_example",
            arguments=(each.name,),
            tip=each.about,
        )
        for each in EXAMPLES
    ),
    ActionSpec("help.about", L_("&About precgui"), "&Help", "show_about", separator=True),
)
MENUS = (L_("&File"), L_("&Run"), L_("&View"), L_("&Help"))
MENUS_INSIDE = (L_("&Theme"), L_("&Language"), L_("&Examples"))
# Filled anew each time it opens: the action is a submenu.
SUBMENUS = ("file.recent",)


class Actions(QObject):
    """The actions of a window, made from their specs. `refresh` asks the conditions again."""

    def __init__(self, window: QMainWindow, specs: Iterable[ActionSpec]) -> None:
        super().__init__(window)
        self._window = window
        self.specs = {spec.id: spec for spec in specs}
        self.by_id: dict[str, QAction] = {}
        self._menus: dict[str, QMenu] = {}
        self._drawn_in: Theme | None = None
        for title in MENUS:
            self._menu(title)
        for spec in self.specs.values():
            self._add(spec)

    def _menu(self, path: str) -> QMenu:
        if path not in self._menus:
            bar, (parent, _, title) = self._window.menuBar(), path.rpartition("/")
            created = self._menu(parent).addMenu(translated(title)) if parent else bar.addMenu(translated(title))
            created.setToolTipsVisible(True)
            created.aboutToShow.connect(self.refresh)
            created.aboutToShow.connect(self._draw_icons)
            self._menus[path] = created
        return self._menus[path]

    def _add(self, spec: ActionSpec) -> None:
        menu = self._menu(spec.menu)
        if spec.separator:
            menu.addSeparator()
        if spec.id in SUBMENUS:
            submenu = menu.addMenu(translated(spec.text))
            submenu.setToolTipsVisible(True)
            submenu.aboutToShow.connect(lambda: self._method(spec.callback)(submenu))
            return
        action = QAction(translated(spec.text), self._window)
        action.setObjectName(spec.id)
        action.setCheckable(bool(spec.checked))
        if spec.tip:
            action.setToolTip(plain_tip(translated(spec.tip)))
        if spec.shortcut:
            action.setShortcut(QKeySequence(spec.shortcut))
        action.triggered.connect(lambda: self._trigger(spec))
        menu.addAction(action)
        self.by_id[spec.id] = action

    def _method(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = attrgetter(name)(self._window)
        return method

    def _trigger(self, spec: ActionSpec) -> None:
        self._method(spec.callback)(*spec.arguments)
        self.refresh()

    def refresh(self) -> None:
        """Enable and check the actions as the window now stands."""
        for name, action in self.by_id.items():
            spec = self.specs[name]
            if spec.enabled:
                action.setEnabled(self._method(spec.enabled)(*spec.arguments))
            if spec.checked:
                action.setChecked(self._method(spec.checked)(*spec.arguments))

    def _draw_icons(self) -> None:
        """Draw the icons of the menus in the colours of the theme: when one opens, not before the first paint."""
        if self._drawn_in is themes().theme:
            return
        self._drawn_in = themes().theme
        for name, action in self.by_id.items():
            if drawing := self.specs[name].icon:
                action.setIcon(icon(drawing))


def plain_text(action: QAction) -> str:
    """The text of an action without its mnemonic mark."""
    return without_key(action.text())


def menu_path(spec: ActionSpec) -> str:
    """The menus that lead to an action, as they are shown."""
    return " > ".join(without_key(translated(title)) for title in spec.menu.split("/"))
