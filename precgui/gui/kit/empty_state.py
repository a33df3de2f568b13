"""A panel's content, and what it shows while it has none: what will be here, and the one next thing to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QLabel, QMenu, QPushButton, QToolButton, QVBoxLayout, QWidget

from precgui.gui.kit.icons import pixmap
from precgui.gui.kit.pages import PageLayout
from precgui.gui.kit.parts import label, row
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.theme import themes


def panel_head(title: str, *parts: QWidget) -> QHBoxLayout:
    """The title of a panel on the left, its parts on the right."""
    return row(label(title, "title", wrap=False), 1, *parts)


TEXT_WIDTH = 420


class EmptyState(QWidget):
    """An icon, a heading, one or two sentences, at most one button, and a menu of `offer` below it."""

    def __init__(self, drawing: str, heading: str, text: str, button: str = "", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._drawing = drawing
        self._icon = PlainLabel(self)
        self._icon.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.heading = PlainLabel(heading, self)
        self.heading.setProperty("kind", "heading")
        self.heading.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.text = PlainLabel(self)
        self.text.setProperty("kind", "muted")
        self.text.setAlignment(Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop)
        self.button = QPushButton(button, self)
        self.button.setProperty("kind", "primary")
        self.button.setVisible(bool(button))
        layout = self._column = QVBoxLayout(self)
        layout.setSpacing(12)
        layout.addStretch(2)
        for part in (self._icon, self.heading, self.text, self.button):
            layout.addWidget(part, 0, Qt.AlignmentFlag.AlignHCenter)
        layout.addStretch(3)
        self.set_text(text)
        themes().follow(self, self._recolour)
        self._recolour()

    def offer(self, text: str, entries: Sequence[tuple[str, str, Callable[[], object]]]) -> None:
        """Add a menu under a link: title, tool tip and deed of each entry."""
        link = QToolButton(self)
        link.setText(text)
        link.setProperty("kind", "link")
        link.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        link.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.menu = QMenu(link)
        self.menu.setToolTipsVisible(True)
        link.setMenu(self.menu)
        for title, tip, act in entries:
            action = self.menu.addAction(title)
            action.setToolTip(plain_tip(tip))
            action.triggered.connect(lambda _=False, act=act: act())
        self._column.insertWidget(self._column.count() - 1, link, 0, Qt.AlignmentFlag.AlignHCenter)

    def set_text(self, text: str) -> None:
        """Change the sentences."""
        set_paragraph(self.text, text)

    def _recolour(self) -> None:
        theme = themes().theme
        self._icon.setPixmap(pixmap(self._drawing, theme.blend(theme.muted, 0.7), 44, self.devicePixelRatioF()))


def set_paragraph(label: QLabel, text: str) -> None:
    """Let a label hold lines of `TEXT_WIDTH`; one of fixed width does not find its height by itself."""
    label.setWordWrap(True)
    label.setFixedWidth(TEXT_WIDTH)
    label.setText(text)
    label.ensurePolished()
    label.setFixedHeight(max(0, label.heightForWidth(TEXT_WIDTH)))


class Pages(QWidget):
    """A panel that shows its `content`, or its `empty` state while there is nothing to show.

    A page of `add_page` takes the place of both while it is chosen; `head` stands above all pages.
    """

    def __init__(self, empty: EmptyState, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.empty = empty
        self.content = QWidget(self)
        self._has_content = False
        self._page: QWidget | None = None
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        self.head = QHBoxLayout()
        self._pages = PageLayout()
        column.addLayout(self.head)
        column.addLayout(self._pages, 1)
        self._pages.addWidget(empty)  # once its layout has a widget: the first page would be shown as a window
        self._pages.addWidget(self.content)

    @property
    def is_empty(self) -> bool:
        return self._pages.currentWidget() is self.empty

    def show_content(self, there: bool) -> None:
        self._has_content = there
        self._show()

    def add_page(self, page: QWidget) -> None:
        self._pages.addWidget(page)

    def show_page(self, page: QWidget | None) -> None:
        """Show a page that was added; None goes back to the content."""
        self._page = page
        self._show()

    def _show(self) -> None:
        self._pages.setCurrentWidget(self._page or (self.content if self._has_content else self.empty))
