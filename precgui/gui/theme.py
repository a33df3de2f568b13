"""Light and dark, for Qt and for plots: every colour of the window is named here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args
from weakref import WeakSet

from PySide6.QtCore import QObject, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QPalette
from PySide6.QtWidgets import QApplication, QTabWidget, QWidget
from shiboken6 import isValid

from precgui.gui.widgets.when_visible import is_covered
from precgui.paths import resources

Mode = Literal["system", "light", "dark"]


@dataclass(frozen=True)
class Theme:
    """Colours as `#rrggbb`. `runs` has seven colours, in the order in which runs take them.

    The run colours stay at least 23 apart in CIELAB for normal sight and for the three dichromacies
    (Machado, Oliveira, Fernandes 2009) and have a contrast of at least 3:1 against `base`
    (WCAG 2.2, 1.4.11); index by index they are the same hue in both themes, so a run keeps its colour.
    """

    name: Literal["light", "dark"]
    window: str
    base: str
    text: str
    muted: str
    line: str
    accent: str
    info: str
    warning: str
    error: str
    ok: str
    runs: tuple[str, ...]

    def blend(self, top: str, share: float, below: str = "") -> str:
        """`top` laid over `below` (default: base) with an opacity of `share` (0 to 1)."""
        over, under = QColor(top), QColor(below or self.base)
        pairs = ((over.red(), under.red()), (over.green(), under.green()), (over.blue(), under.blue()))
        return QColor(*(round(share * a + (1 - share) * b) for a, b in pairs)).name()

    @property
    def on_accent(self) -> str:
        """Text on a surface of the accent colour."""
        return self.base


LIGHT = Theme(
    name="light",
    window="#f4f5f7",
    base="#ffffff",
    text="#1c2430",
    muted="#596473",
    line="#d8dde4",
    accent="#0b6b7d",
    info="#2563b0",
    warning="#915c00",
    error="#b3261e",
    ok="#1a7040",
    runs=("#4742e4", "#983600", "#2b2c35", "#76157a", "#b28813", "#007249", "#0090fe"),
)
DARK = Theme(
    name="dark",
    window="#14181e",
    base="#1b2028",
    text="#e3e7ed",
    muted="#9aa5b4",
    line="#323a46",
    accent="#4fbccf",
    info="#7db2f5",
    warning="#e5b454",
    error="#f5877c",
    ok="#6cc58c",
    runs=("#8272f4", "#dc5a1e", "#d8f7c4", "#c862b0", "#ffd44c", "#1f9f70", "#78f7fa"),
)
# Dash patterns in units of the pen width, for `QPen.setDashPattern`; the empty one is a solid line.
DASHES: tuple[tuple[float, ...], ...] = ((), (6.0, 3.0), (2.0, 2.0), (8.0, 3.0, 2.0, 3.0))


class _Follower(QObject):
    """Waits for changes of the theme on behalf of a part of the window, and goes with it."""

    due = Signal()

    def __init__(self, part: QObject, themes: Themes) -> None:
        super().__init__(part)
        self._themes = themes
        themes.changed.connect(self._on_changed)

    def _on_changed(self) -> None:
        part = self.parent()
        if isinstance(part, QWidget) and is_covered(part):
            self._themes.serve_later(self)
        else:
            self.due.emit()


class Themes(QObject):
    """The theme of the application: follows the system, or is pinned. `changed` comes after it has been applied."""

    changed = Signal()

    def __init__(self, app: QApplication) -> None:
        super().__init__(app)
        self._app = app
        self._mode: Mode = "system"
        self._theme = LIGHT
        self._dressed: WeakSet[QWidget] = WeakSet()
        self._waiting: list[QWidget | _Follower] = []  # hidden ones that still have the theme before
        app.styleHints().colorSchemeChanged.connect(self._apply)
        self._app.setPalette(palette(self._theme))
        self._apply()

    @property
    def mode(self) -> Mode:
        return self._mode

    @property
    def theme(self) -> Theme:
        return self._theme

    def set_mode(self, mode: Mode) -> None:
        """Follow the system, or pin light or dark. Raises ValueError for another word."""
        if mode not in get_args(Mode):
            raise ValueError(f"{mode!r} is not a theme mode; use system, light or dark")
        self._mode = mode
        schemes = {"light": Qt.ColorScheme.Light, "dark": Qt.ColorScheme.Dark}
        self._app.styleHints().setColorScheme(schemes.get(mode, Qt.ColorScheme.Unknown))
        self._apply()

    def follow(self, part: QObject, act: Callable[[], object]) -> None:
        """Call `act` after each change: at once for a part in view, for a hidden one at a later turn of the event loop.

        All that a change costs would be one gap of the event loop if the hidden parts took part in it at once.
        """
        _Follower(part, self).due.connect(act)

    def dress(self, part: QWidget) -> None:
        """Give a widget and all in it, menus and tool tips too, the shapes of the theme, now and after each change.

        The parts of the window are dressed one by one, not the window or the application: a change of the theme then
        waits only for those in view (`benchmarks/window_cost.py`).
        """
        self._dressed.add(part)
        sheet = style_sheet(self._theme)
        if part.styleSheet() != sheet:
            part.setStyleSheet(sheet)

    def dress_parts(self, frames: Sequence[QWidget]) -> None:
        """Dress what stands in the frames, part by part, and not the frames."""
        for frame in frames:
            for part in frame.findChildren(QWidget, options=Qt.FindChildOption.FindDirectChildrenOnly):
                if part not in frames:
                    self.dress(part)

    def dress_tabs(self, tabs: QTabWidget) -> None:
        """Dress a panel of tabs page by page, so that each costs a turn of the event loop of its own."""
        self.dress(tabs.tabBar())
        for index in range(tabs.count()):
            self.dress(cast(QWidget, tabs.widget(index)))

    def serve_later(self, part: QWidget | _Follower) -> None:
        """Bring a hidden part up to date when it is its turn."""
        if part not in self._waiting:
            self._waiting.append(part)

    def dress_in_view(self, frame: QWidget) -> None:
        """Bring what has come into view in a frame up to date; the frame is painted when all of it is.

        Each part costs a turn of the event loop of its own.
        """
        if (part := self._next_in_view(frame)) is None:
            frame.setUpdatesEnabled(True)
            return
        frame.setUpdatesEnabled(False)
        self._waiting.remove(part)
        QTimer.singleShot(0, part, lambda: self.dress(part))
        QTimer.singleShot(0, frame, lambda: self.dress_in_view(frame))

    def _next_in_view(self, frame: QWidget) -> QWidget | None:
        parts = (part for part in self._waiting if isinstance(part, QWidget) and isValid(part))
        return next((part for part in parts if frame.isAncestorOf(part) and not part.visibleRegion().isEmpty()), None)

    def _serve_next(self) -> None:
        """Bring one hidden part up to date; the next has its turn after all that waits in the event loop."""
        while self._waiting:
            if isValid(part := self._waiting.pop(0)):
                if isinstance(part, _Follower):
                    part.due.emit()
                else:
                    self.dress(part)
                break
        if self._waiting:
            QTimer.singleShot(0, self, self._serve_next)

    def _chosen_theme(self) -> Theme:
        if self._mode != "system":
            return DARK if self._mode == "dark" else LIGHT
        return DARK if self._app.styleHints().colorScheme() == Qt.ColorScheme.Dark else LIGHT

    def _apply(self) -> None:
        requested = self._chosen_theme()
        if requested is self._theme:
            return
        self._theme = requested
        self._app.setPalette(palette(requested))
        parts = [part for part in self._dressed if isValid(part)]
        for part in parts:
            if part.visibleRegion().isEmpty():  # hidden or scrolled away
                self.serve_later(part)
            else:
                self.dress(part)
        self.changed.emit()
        QTimer.singleShot(0, self, self._serve_next)


def themes() -> Themes:
    """The one Themes of the running application; made at the first call. It needs a QApplication."""
    app = cast(QApplication, QApplication.instance())
    result = app.findChild(Themes)
    return result if result is not None else Themes(app)


def palette(theme: Theme) -> QPalette:
    """The theme as a Qt palette, for everything that the style draws by itself."""
    role = QPalette.ColorRole
    button = theme.blend(theme.window, 0.5)
    active = {
        role.Window: theme.window,
        role.WindowText: theme.text,
        role.Base: theme.base,
        role.AlternateBase: theme.blend(theme.window, 0.6),
        role.Text: theme.text,
        role.Button: button,
        role.ButtonText: theme.text,
        role.BrightText: theme.error,
        role.PlaceholderText: theme.muted,
        role.ToolTipBase: theme.base,
        role.ToolTipText: theme.text,
        role.Highlight: theme.accent,
        role.HighlightedText: theme.on_accent,
        role.Accent: theme.accent,
        role.Link: theme.accent,
        role.LinkVisited: theme.accent,
        role.Light: theme.base,
        role.Midlight: theme.blend(theme.line, 0.5),
        role.Mid: theme.line,
        role.Dark: theme.blend(theme.muted, 0.5),
        role.Shadow: theme.blend("#000000", 0.6),
    }
    created = QPalette()
    for part, colour in active.items():
        created.setColor(part, QColor(colour))
    faint = QColor(theme.blend(theme.muted, 0.7))
    for part in (role.WindowText, role.Text, role.ButtonText, role.HighlightedText):
        created.setColor(QPalette.ColorGroup.Disabled, part, faint)
    created.setColor(QPalette.ColorGroup.Disabled, role.Highlight, QColor(theme.line))
    return created


def style_sheet(theme: Theme) -> str:
    """The shapes that a palette cannot say: corners, padding, focus lines. Sizes are multiples of 4 pixels."""
    colours = {
        "name": theme.name,
        "window": theme.window,
        "base": theme.base,
        "text": theme.text,
        "muted": theme.muted,
        "line": theme.line,
        "accent": theme.accent,
        "on_accent": theme.on_accent,
        "info": theme.info,
        "warning": theme.warning,
        "error": theme.error,
        "hover": theme.blend(theme.accent, 0.08),
        "chosen": theme.blend(theme.accent, 0.15),
        "accent_hover": theme.blend(theme.text, 0.15, theme.accent),
        "edge": theme.blend(theme.muted, 0.55),
        "faint": theme.blend(theme.muted, 0.7),
        "icons": (resources() / "icons").as_posix(),
    }
    sheet = _SHEET
    for name, colour in colours.items():
        sheet = sheet.replace(f"@{name}@", colour)
    return sheet


_SHEET = """
QToolTip { color: @text@; background: @base@; border: 1px solid @line@; padding: 4px; }
QMenu { background: @base@; border: 1px solid @line@; padding: 4px; }
QMenu::item { padding: 5px 24px 5px 12px; border-radius: 4px; }
QMenu::item:selected { background: @chosen@; color: @text@; }
QMenu::item:disabled { color: @faint@; }
QMenu::separator { height: 1px; background: @line@; margin: 4px 8px; }
QMenuBar { background: @window@; border-bottom: 1px solid @line@; }
QMenuBar::item { padding: 4px 10px; border-radius: 4px; background: transparent; }
QMenuBar::item:selected { background: @chosen@; }
QStatusBar { background: @window@; border-top: 1px solid @line@; }
QStatusBar::item { border: none; }
QPushButton { padding: 5px 14px; border: 1px solid @edge@; border-radius: 5px; background: @base@; color: @text@; }
QPushButton:hover { background: @hover@; border-color: @accent@; }
QPushButton:pressed, QPushButton:checked { background: @chosen@; }
QPushButton:focus { border: 1px solid @accent@; }
QPushButton:disabled { color: @faint@; border-color: @line@; background: @window@; }
QPushButton[kind="primary"] { background: @accent@; color: @on_accent@; border-color: @accent@; font-weight: 600; }
QPushButton[kind="primary"]:hover { background: @accent_hover@; }
QPushButton[kind="primary"]:focus { border: 2px solid @text@; padding: 4px 13px; }
QPushButton[kind="primary"]:disabled { background: @line@; color: @muted@; border-color: @line@; }
QPushButton[kind="danger"] { color: @error@; }
QPushButton[kind="danger"]:hover, QPushButton[kind="danger"]:focus { border-color: @error@; }
QToolButton { padding: 4px; border: 1px solid transparent; border-radius: 5px; }
QToolButton:hover { background: @hover@; }
QToolButton:checked, QToolButton:pressed { background: @chosen@; }
QToolButton:focus { border-color: @accent@; }
QToolButton[kind="fold"] { padding: 3px 6px 3px 0; color: @muted@; }
QToolButton[kind="link"] { color: @accent@; padding: 2px 6px; }
QToolButton:disabled { color: @faint@; }
QToolButton[popupMode="2"] { padding-right: 20px; }
QToolButton::menu-indicator { image: url("@icons@/chevron-down.svg"); width: 10px; height: 10px;
  subcontrol-origin: padding; subcontrol-position: center right; right: 6px; }
QLineEdit, QPlainTextEdit, QTextEdit, QComboBox {
  background: @base@; color: @text@; border: 1px solid @edge@; border-radius: 5px; padding: 4px 7px;
  selection-background-color: @accent@; selection-color: @on_accent@; }
QLineEdit:focus, QPlainTextEdit:focus, QTextEdit:focus, QComboBox:focus { border-color: @accent@; }
QLineEdit:disabled, QComboBox:disabled { background: @window@; color: @faint@; border-color: @line@; }
QLineEdit[faulty="true"] { border-color: @error@; }
QComboBox::drop-down { border: none; width: 24px; }
QComboBox::down-arrow { image: url("@icons@/chevron-down.svg"); width: 12px; height: 12px; }
QComboBoxPrivateContainer { border: none; background: @base@; }
QComboBox QAbstractItemView { background: @base@; border: 1px solid @line@; outline: none; padding: 2px; }
QRadioButton, QCheckBox { spacing: 8px; }
QRadioButton::indicator, QCheckBox::indicator, QAbstractItemView::indicator {
  width: 14px; height: 14px; border: 1px solid @edge@; background: @base@; }
QRadioButton::indicator { border-radius: 8px; }
QCheckBox::indicator, QAbstractItemView::indicator { border-radius: 4px; }
QAbstractItemView::indicator { width: 11px; height: 11px; border-radius: 3px; }
QRadioButton::indicator:checked { width: 6px; height: 6px; border: 5px solid @accent@; background: @on_accent@; }
QCheckBox::indicator:checked, QAbstractItemView::indicator:checked {
  border-color: @accent@; background: @accent@; image: url("@icons@/check-@name@.svg"); }
QRadioButton::indicator:hover, QCheckBox::indicator:hover { border-color: @accent@; }
QCheckBox::indicator:focus { border: 2px solid @accent@; width: 12px; height: 12px; }
QCheckBox::indicator:disabled, QRadioButton::indicator:disabled { border-color: @line@; background: @window@; }
QGroupBox { background: @base@; border: 1px solid @line@; border-radius: 8px; margin-top: 28px; padding: 12px; }
QGroupBox::title { subcontrol-origin: margin; subcontrol-position: top left; left: 2px; padding: 4px 0; }
QFrame[kind="card"] { background: @base@; border: 1px solid @line@; border-radius: 8px; }
QFrame#navigation { background: @window@; border: none; border-right: 1px solid @line@; }
QToolButton[kind="navigation"] { padding: 7px 10px; border-radius: 6px; color: @muted@; }
QToolButton[kind="navigation"]:hover { background: @hover@; color: @text@; }
QToolButton[kind="navigation"]:checked { background: @chosen@; color: @text@; }
QFrame[kind="banner"] { background: @base@; border: 1px solid @edge@; border-left: 4px solid @info@; }
QFrame[kind="banner"][severity="warning"] { border-left-color: @warning@; }
QFrame[kind="banner"][severity="error"] { border-left-color: @error@; }
QFrame[kind="overlay"] { background: @base@; border: 1px solid @edge@; border-radius: 8px; }
QFrame[kind="choice"] { background: @base@; border: 1px solid @line@; border-radius: 8px; }
QFrame[kind="choice"]:hover { border-color: @edge@; }
QFrame[kind="choice"][chosen="true"] { background: @hover@; border-color: @accent@; }
QFrame[kind="footer"] { background: @base@; border: none; border-top: 1px solid @line@; }
QRadioButton[kind="heading"] { font-weight: 600; }
QLabel[kind="title"] { font-size: 15pt; font-weight: 600; }
QLabel[kind="heading"] { font-weight: 600; }
QLabel[kind="muted"] { color: @muted@; }
QLabel[kind="error"] { color: @error@; }
QTableView, QTreeView, QListView {
  background: @base@; border: 1px solid @line@; border-radius: 8px; outline: none;
  selection-background-color: @chosen@; selection-color: @text@; }
QTableView:focus, QTreeView:focus, QListView:focus { border-color: @accent@; }
QTreeView[kind="menu"]::item, QListView[kind="menu"]::item { padding: 5px 6px; }
QTreeView[kind="menu"]::item:selected, QListView[kind="menu"]::item:selected { background: @chosen@; color: @text@; }
QTreeView[kind="facts"]::item { padding: 3px 4px; }
QTableView::item { padding: 0 5px; border: none; }
QTableView::item:selected { background: @chosen@; color: @text@; }
QTableCornerButton::section { background: @base@; border: none; border-bottom: 1px solid @line@; }
QHeaderView { background: transparent; }
QHeaderView::section { background: @base@; color: @muted@; border: none;
  border-bottom: 1px solid @line@; padding: 6px 8px; }
QHeaderView::section:vertical { border: none; color: @text@; padding: 0 10px; }
QScrollArea { border: none; background: transparent; }
QGraphicsView { border: 1px solid transparent; border-radius: 4px; }
QGraphicsView:focus { border-color: @accent@; }
QAbstractScrollArea::corner { background: transparent; border: none; }
QScrollBar:vertical { width: 12px; background: transparent; margin: 0; }
QScrollBar:horizontal { height: 12px; background: transparent; margin: 0; }
QScrollBar::handle { background: @edge@; border-radius: 4px; margin: 2px; min-height: 24px; min-width: 24px; }
QScrollBar::handle:hover { background: @muted@; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0; height: 0; }
QScrollBar::add-page, QScrollBar::sub-page { background: none; }
QSlider::groove:horizontal { height: 4px; border-radius: 2px; background: @edge@; }
QSlider::sub-page:horizontal { background: @accent@; border-radius: 2px; }
QSlider::handle:horizontal { width: 14px; margin: -6px 0; border-radius: 7px; background: @base@;
  border: 2px solid @accent@; }
QSlider::handle:horizontal:focus { border-color: @text@; }
QProgressBar { background: @line@; border: none; border-radius: 3px; max-height: 6px; }
QProgressBar::chunk { background: @accent@; border-radius: 3px; }
QSplitter::handle { background: @line@; }
QSplitter::handle:hover { background: @accent@; }
"""


def severity_colour(severity: str) -> str:
    theme = themes().theme
    return {"info": theme.info, "warning": theme.warning, "error": theme.error}[severity]
