"""Containers of pages, and tabs whose content is made when it is first needed.

The containers fill the room they are given: their height does not follow from their width. Qt would ask every page,
hidden ones too, how high its wrapped text gets at a width, twice for each level of nesting: half of the time that it
took to show a panel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from PySide6.QtCore import QEvent, Qt, QTimer, Signal
from PySide6.QtWidgets import QApplication, QLabel, QStackedLayout, QStackedWidget, QTabWidget, QVBoxLayout, QWidget

from precgui.gui.kit.measures import CLOSE_TAB_MARGIN_PX, TAB_MARGIN_PX
from precgui.gui.kit.plain_text import PlainLabel
from precgui.words import _, translated

TabRow = tuple[str, str, Callable[[], QWidget]]  # title, tool tip, and a function that creates the content


class PageStack(QStackedWidget):
    """A stack that shows one of its pages."""

    def hasHeightForWidth(self) -> bool:
        return False


class PageLayout(QStackedLayout):
    """The layout of a widget that shows one of its pages."""

    def hasHeightForWidth(self) -> bool:
        return False


class PageTabs(QTabWidget):
    """Pages with a tab each; `title` stands before the tabs.

    Where they have no room side by side, the tabs stand closer, else without the title; only then they scroll.
    """

    def __init__(self, parent: QWidget | None = None, *, title: str = "") -> None:
        super().__init__(parent)
        self._has_title = True
        self.setDocumentMode(True)
        self.tabBar().setDrawBase(False)
        if title:
            head = PlainLabel(title)
            head.setProperty("kind", "title")
            head.setContentsMargins(0, 0, 16, 4)
            self.setCornerWidget(head, Qt.Corner.TopLeftCorner)

    def set_titled(self, has_title: bool) -> None:
        """Whether the title stands before the tabs, where there is room; else it stands elsewhere."""
        self._has_title = has_title
        self._fit()

    def event(self, event: QEvent) -> bool:
        if event.type() in (QEvent.Type.Resize, QEvent.Type.LayoutRequest):  # a tab, a corner or the theme is new
            self._fit()
        return super().event(event)

    def _fit(self) -> None:
        bar, head = self.tabBar(), self.cornerWidget(Qt.Corner.TopLeftCorner)
        beside = self.cornerWidget(Qt.Corner.TopRightCorner)
        is_close = bool(bar.property("close"))
        saved = bar.count() * 2 * (TAB_MARGIN_PX - CLOSE_TAB_MARGIN_PX)
        needed = sum(bar.tabRect(tab).width() for tab in range(bar.count())) + (saved if is_close else 0)
        room = self.width() - (beside.sizeHint().width() if beside is not None else 0)
        title = head.sizeHint().width() if head is not None else 0
        choices = [(True, False, needed + title), (True, True, needed - saved + title), (False, False, needed)]
        choices = choices if self._has_title else choices[2:]
        titled, close = next(((titled, close) for titled, close, px in choices if px <= room), (False, True))
        if head is not None and head.isHidden() == titled:
            head.setVisible(titled)
        if close != is_close:
            bar.setProperty("close", close)
            bar.style().unpolish(bar)
            bar.style().polish(bar)
            QApplication.sendEvent(bar, QEvent(QEvent.Type.StyleChange))  # the tabs are measured again

    def hasHeightForWidth(self) -> bool:
        return False


def loading_label(title: str, parent: QWidget | None = None) -> QLabel:
    """A label "Loading TITLE..." for the middle of an empty page, which would resemble a fault."""
    label = PlainLabel(_("Loading {title}...").format(title=translated(title)), parent)
    label.setProperty("kind", "muted")
    label.setAlignment(Qt.AlignmentFlag.AlignCenter)
    return label


@contextmanager
def loading(title: str, page: QVBoxLayout) -> Iterator[None]:
    """While the block makes the content of `page`, the page says that it loads, at once."""
    label = loading_label(title)
    page.addWidget(label)
    label.show()
    label.repaint()
    try:
        yield
    finally:
        page.removeWidget(label)
        label.hide()
        label.deleteLater()


class LazyTabs(PageTabs):
    """The content of a tab is created when the tab is first shown or `content` is called.

    `ready` carries the index of a tab that was chosen, once its content is there. With `later` a page says that it
    loads until the next turn of the event loop, and its content is created by `show_content` or then.
    """

    ready = Signal(int)

    def __init__(
        self, rows: Sequence[TabRow], parent: QWidget | None = None, *, later: bool = False, title: str = ""
    ) -> None:
        super().__init__(parent, title=title)
        self._rows, self._later = rows, later
        self._contents: dict[int, QWidget] = {}
        self._loading: set[int] = set()
        self._pages: list[QVBoxLayout] = []
        for title, tip, _content in rows:
            page = QWidget()
            self._pages.append(QVBoxLayout(page))
            self._pages[-1].setContentsMargins(0, 0, 0, 0)
            self.setTabToolTip(self.addTab(page, title), tip)
        self.currentChanged.connect(self.show_content)

    def content(self, index: int) -> QWidget:
        """The content of a tab, created now if it was not."""
        if index not in self._contents:
            self._contents[index] = self._rows[index][2]()
            self._pages[index].addWidget(self._contents[index])
        return self._contents[index]

    def show_content(self, index: int) -> None:
        """Create the content of a tab if it was not; until then the page says that it loads."""
        if index in self._contents:
            self.ready.emit(index)
        elif not self._later:
            with loading(self._rows[index][0], self._pages[index]):
                self.content(index)
            self.ready.emit(index)
        elif index not in self._loading:
            self._loading.add(index)
            label = loading_label(self._rows[index][0], self)
            self._pages[index].addWidget(label)
            QTimer.singleShot(0, self, lambda: self._finish(index, label))

    def _finish(self, index: int, label: QWidget) -> None:
        self._loading.discard(index)
        self._pages[index].removeWidget(label)
        label.deleteLater()
        self.content(index)
        self.ready.emit(index)
