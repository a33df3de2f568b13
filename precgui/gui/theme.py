"""The theme of the application: light, dark, or as the system has it, and the parts of the window that follow it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, cast, get_args
from weakref import WeakSet

from PySide6.QtCore import QObject, Qt, QTimer, Signal
from PySide6.QtWidgets import QApplication, QTabWidget, QWidget
from shiboken6 import isValid

from precgui.gui.colours import DARK, LIGHT, Theme
from precgui.gui.next_turn import in_next_turn
from precgui.gui.style_sheet import palette, style_sheet

Mode = Literal["system", "light", "dark"]


class _Follower(QObject):
    """Waits for changes of the theme on behalf of a part of the window, and goes with it."""

    due = Signal()

    def __init__(self, part: QWidget, themes: Themes) -> None:
        super().__init__(part)
        self._themes = themes
        themes.changed.connect(self._on_changed)

    def part(self) -> QWidget:
        return cast(QWidget, self.parent())

    def _on_changed(self) -> None:
        if self.part().window().isVisible():
            self._themes.schedule(self, in_view=self.part().isVisible())
        else:
            self.due.emit()


_Part = QWidget | _Follower  # what takes a turn when the theme changes


class Themes(QObject):
    """The theme of the application: follows the system, or is pinned. `changed` comes when `theme` is another one.

    The parts of the window take it afterwards, each in a turn of the event loop of its own, so that no key or click
    waits for more than one. Those in view come first, and their windows are not painted until all of them are ready.
    """

    changed = Signal()

    def __init__(self, app: QApplication) -> None:
        super().__init__(app)
        self._app = app
        self._mode: Mode = "system"
        self._theme = LIGHT
        self._dressed: WeakSet[QWidget] = WeakSet()
        self._in_view: list[_Part] = []  # those that still have the theme before
        self._waiting: list[_Part] = []  # the hidden ones
        self._held: list[QWidget] = []  # windows that are not painted meanwhile
        self._turns = QTimer(self, interval=0)  # unlike `singleShot(0)`, never twice in one turn of the event loop
        self._turns.timeout.connect(self._serve_next)
        app.styleHints().colorSchemeChanged.connect(self._apply)
        self._app.setPalette(palette(self._theme))
        self._apply()

    @property
    def mode(self) -> Mode:
        return self._mode

    @property
    def theme(self) -> Theme:
        return self._theme

    @property
    def is_changing(self) -> bool:
        """Whether parts still have the theme before."""
        return bool(self._in_view or self._waiting)

    def set_mode(self, mode: Mode) -> None:
        """Follow the system, or pin light or dark. Raises ValueError for another word."""
        if mode not in get_args(Mode):
            raise ValueError(f"{mode!r} is not a theme mode; use system, light or dark")
        self._mode = mode
        schemes = {"light": Qt.ColorScheme.Light, "dark": Qt.ColorScheme.Dark}
        self._app.styleHints().setColorScheme(schemes.get(mode, Qt.ColorScheme.Unknown))
        self._apply()

    def follow(self, part: QWidget, act: Callable[[], object]) -> None:
        """Call `act` after each change, in a later turn of the event loop; at once where the window is not shown."""
        _Follower(part, self).due.connect(act)

    def dress(self, part: QWidget) -> None:
        """Give a widget and all in it, menus and tool tips too, the shapes of the theme, now and after each change.

        The parts of the window are dressed one by one, not the window or the application, which would be one turn of
        the event loop for all of it (`benchmarks/window_latency.py typing`).
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
        for head in (tabs.tabBar(), tabs.cornerWidget(Qt.Corner.TopLeftCorner)):
            if head is not None:
                self.dress(head)
        for index in range(tabs.count()):
            self.dress(cast(QWidget, tabs.widget(index)))

    def schedule(self, part: _Part, *, in_view: bool) -> None:
        """Bring a part up to date at its turn; the window of one in view is not painted until all in view are."""
        (self._in_view if in_view else self._waiting).append(part)
        window = _widget_of(part).window()
        if in_view and window.updatesEnabled():
            window.setUpdatesEnabled(False)
            self._held.append(window)

    def dress_in_view(self, frame: QWidget) -> None:
        """Bring what has come into view in a frame up to date; the frame is painted when all of it is.

        Each part costs a turn of the event loop of its own.
        """
        if (part := self._next_in_view(frame)) is None:
            frame.setUpdatesEnabled(True)
            return
        frame.setUpdatesEnabled(False)
        self._waiting.remove(part)
        in_next_turn(frame, lambda: self._dress_and_go_on(part, frame))

    def _dress_and_go_on(self, part: _Part, frame: QWidget) -> None:
        self._serve(part)
        self.dress_in_view(frame)

    def _next_in_view(self, frame: QWidget) -> _Part | None:
        for part in filter(isValid, self._waiting):
            widget = _widget_of(part)
            if frame.isAncestorOf(widget) and not widget.visibleRegion().isEmpty():
                return part
        return None

    def _serve(self, part: _Part) -> None:
        """Bring a part up to date, where it is still there."""
        if not isValid(part):
            return
        if isinstance(part, _Follower):
            part.due.emit()
        else:
            self.dress(part)

    def _serve_next(self) -> None:
        """Bring one part up to date, those in view first; the next comes after all that waits in the event loop."""
        queue = self._in_view or self._waiting
        while queue:
            if isValid(part := queue.pop(0)):
                self._serve(part)
                break
        if not self._in_view:
            self._release()
        if not self.is_changing:
            self._turns.stop()

    def _release(self) -> None:
        """Paint the windows again."""
        held, self._held = self._held, []
        for window in held:
            if isValid(window):
                window.setUpdatesEnabled(True)

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
        self._in_view, self._waiting = [], []  # a change before may not be through
        for part in [part for part in self._dressed if isValid(part)]:
            self.schedule(part, in_view=not part.visibleRegion().isEmpty())  # else hidden or scrolled away
        self.changed.emit()
        self._turns.start()


def _widget_of(part: _Part) -> QWidget:
    return part.part() if isinstance(part, _Follower) else part


def themes() -> Themes:
    """The one Themes of the running application; made at the first call. It needs a QApplication."""
    app = cast(QApplication, QApplication.instance())
    result = app.findChild(Themes)
    return result if result is not None else Themes(app)


def severity_colour(severity: str) -> str:
    theme = themes().theme
    return {"info": theme.info, "warning": theme.warning, "error": theme.error}[severity]
