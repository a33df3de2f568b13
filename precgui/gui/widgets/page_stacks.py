"""Containers of pages that fill the room they are given: their height does not follow from their width.

Qt would ask every page, hidden ones too, how high its wrapped text gets at a width, twice for each level of nesting:
half of the time that it took to show a panel.
"""

from __future__ import annotations

from PySide6.QtWidgets import QStackedLayout, QStackedWidget, QTabWidget


class PageStack(QStackedWidget):
    """A stack that shows one of its pages."""

    def hasHeightForWidth(self) -> bool:
        return False


class PageLayout(QStackedLayout):
    """The layout of a widget that shows one of its pages."""

    def hasHeightForWidth(self) -> bool:
        return False


class PageTabs(QTabWidget):
    """Pages with a tab each."""

    def hasHeightForWidth(self) -> bool:
        return False
