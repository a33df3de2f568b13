"""The stacked panels: each is imported and made when it is first needed; one that cannot be says why in its place."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QTabWidget, QVBoxLayout, QWidget

from precgui.gui.kit.pages import PageStack, loading_label
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.shell.navigation import PanelSpec
from precgui.gui.theme import themes
from precgui.words import _, translated

if TYPE_CHECKING:
    from precgui.gui.session import Session


class PanelHost(PageStack):
    """Shows one panel. Until `attach` hands it the state, every page says that it loads."""

    loaded = Signal(str)

    def __init__(self, specs: Sequence[PanelSpec], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._specs = {spec.id: spec for spec in specs}
        self._session: Session | None = None
        self._current = specs[0].id
        self.panels: dict[str, QWidget] = {}
        self._pages: dict[str, QWidget] = {}
        for spec in specs:
            self._pages[spec.id] = loading_label(spec.title, self)
            self.addWidget(self._pages[spec.id])

    @property
    def current(self) -> str:
        return self._current

    def attach(self, session: Session) -> None:
        """From now on panels can be created; the current one is created at once."""
        self._session = session
        self.show_panel(self._current)

    def show_panel(self, name: str) -> None:
        self._current = name
        if name not in self.panels:
            _dress(self._pages[name])
            self.setCurrentWidget(self._pages[name])
            self._pages[name].repaint()  # the word that it loads, before what takes a while
        self.load(name)
        self.setCurrentWidget(self._pages[name])
        themes().dress_in_view(self)

    def waiting(self) -> list[str]:
        """Panels that have not been loaded yet."""
        return [name for name in self._specs if name not in self.panels]

    def load(self, name: str) -> QWidget | None:
        """The panel, made now if it was not; None before `attach`.

        A panel whose module is missing or broken at import is replaced by a sentence that says so.
        """
        if name in self.panels or self._session is None:
            return self.panels.get(name)
        module, _colon, class_name = self._specs[name].place.partition(":")
        self.panels[name] = self._pages[name]  # stays, should the constructor raise: no second try
        try:
            make = getattr(importlib.import_module(module), class_name)
        except (ImportError, AttributeError) as error:
            panel: QWidget = _missing(translated(self._specs[name].title), error)
        else:
            panel = make(self._session)
        self._replace(name, panel)
        self.loaded.emit(name)
        return panel

    def _replace(self, name: str, panel: QWidget) -> None:
        blank = self._pages[name]
        displayed = self.currentWidget() is blank
        self.insertWidget(self.indexOf(blank), panel)
        _dress(panel)
        self._pages[name] = self.panels[name] = panel
        if displayed:
            self.setCurrentWidget(panel)
        self.removeWidget(blank)
        blank.deleteLater()


@runtime_checkable
class Framed(Protocol):
    """A panel of many widgets: all but these frames takes the theme part by part, each in a turn of its own.

    A frame has no shape of the theme; the children of a frame that are no frames themselves are the parts.
    """

    frames: Sequence[QWidget]


def _dress(panel: QWidget) -> None:
    """Give a panel the shapes of the theme, a framed one part by part, one of tabs page by page."""
    if isinstance(panel, Framed):
        themes().dress_parts(panel.frames)
        return
    tabs = panel.findChild(QTabWidget, options=Qt.FindChildOption.FindDirectChildrenOnly)
    if tabs is None or len(panel.findChildren(QWidget, options=Qt.FindChildOption.FindDirectChildrenOnly)) > 1:
        themes().dress(panel)
    else:
        themes().dress_tabs(tabs)


def _missing(title: str, error: Exception) -> QWidget:
    page = QWidget()
    text = PlainLabel(_("The panel {title} could not be loaded: {error}").format(title=title, error=error), page)
    text.setWordWrap(True)
    text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    text.setAlignment(Qt.AlignmentFlag.AlignCenter)
    layout = QVBoxLayout(page)
    layout.setContentsMargins(32, 32, 32, 32)
    layout.addWidget(text)
    return page
