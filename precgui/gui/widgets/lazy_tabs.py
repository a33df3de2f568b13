"""Tabs whose content is created when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtWidgets import QVBoxLayout, QWidget

from precgui.gui.widgets.loading import loading
from precgui.gui.widgets.page_stacks import PageTabs

TabRow = tuple[str, str, Callable[[], QWidget]]  # title, tool tip, and a function that creates the content


class LazyTabs(PageTabs):
    """The content of a tab is created when the tab is first shown or `content` is called."""

    def __init__(self, rows: Sequence[TabRow], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setDocumentMode(True)
        self._rows = rows
        self._contents: dict[int, QWidget] = {}
        self._pages: list[QVBoxLayout] = []
        for title, tip, _ in rows:
            page = QWidget()
            self._pages.append(QVBoxLayout(page))
            self._pages[-1].setContentsMargins(0, 0, 0, 0)
            self.setTabToolTip(self.addTab(page, title), tip)
        self.currentChanged.connect(self._on_tab)

    def content(self, index: int) -> QWidget:
        """The content of a tab, created now if it was not."""
        if index not in self._contents:
            self._contents[index] = self._rows[index][2]()
            self._pages[index].addWidget(self._contents[index])
        return self._contents[index]

    def _on_tab(self, index: int) -> None:
        """Create the content; until then the page says that it loads."""
        if index not in self._contents:
            with loading(self._rows[index][0], self._pages[index]):
                self.content(index)
