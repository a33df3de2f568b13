"""Stacks of pages ask no page for the height of its text."""

from __future__ import annotations

from functools import partial

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from precgui.gui.kit.measures import CLOSE_TAB_MARGIN_PX, TAB_MARGIN_PX
from precgui.gui.kit.pages import LazyTabs, PageLayout, PageStack, PageTabs
from precgui.gui.theme import themes

TEXT = "A sentence that is so long that it needs several lines wherever it stands in a window. " * 4


def page() -> tuple[QWidget, QLabel]:
    page = QWidget()
    label = QLabel(TEXT, page)
    label.setWordWrap(True)
    column = QVBoxLayout(page)
    column.addWidget(label)
    column.addStretch(1)
    return page, label


def stack(kind: str) -> tuple[QWidget, list[QLabel]]:
    pages = [page(), page()]
    window = QWidget()
    column = QVBoxLayout(window)
    container: PageLayout | PageStack | PageTabs
    if kind == "layout":
        container = PageLayout()
        column.addLayout(container)
    else:
        container = PageStack(window) if kind == "stack" else PageTabs(window)
        column.addWidget(container)
    for each, _ in pages:
        container.addTab(each, "page") if isinstance(container, PageTabs) else container.addWidget(each)
    return window, [label for _, label in pages]


@pytest.mark.parametrize("kind", ["layout", "stack", "tabs"])
def test_that_text_is_whole_though_hidden_pages_are_not_measured(qtbot: QtBot, kind: str) -> None:
    window, labels = stack(kind)
    qtbot.addWidget(window)
    assert not window.hasHeightForWidth()
    window.resize(300, 400)
    with qtbot.waitExposed(window):
        window.show()
    assert labels[0].height() >= labels[0].heightForWidth(labels[0].width())
    assert labels[0].height() > 2 * labels[0].fontMetrics().height()
    assert not labels[1].isVisible()


def test_that_the_content_of_a_tab_is_made_once_and_when_it_is_shown(qtbot: QtBot) -> None:
    made: list[str] = []
    ready: list[int] = []

    def content(name: str) -> QWidget:
        made.append(name)
        return QWidget()

    tabs = LazyTabs([(name, "", partial(content, name)) for name in ("a", "b", "c")], later=True)
    qtbot.addWidget(tabs)
    tabs.ready.connect(ready.append)
    tabs.setCurrentIndex(1)
    assert made == [] and ready == []  # its page says that it loads, until the next turn
    qtbot.waitUntil(lambda: ready == [1])
    tabs.setCurrentIndex(0)
    tabs.setCurrentIndex(1)
    assert made == ["b"] and ready == [1, 1]
    qtbot.waitUntil(lambda: ready == [1, 1, 0] and made == ["b", "a"])


def test_that_tabs_stand_closer_and_then_without_the_title_before_they_scroll(qtbot: QtBot) -> None:
    tabs = PageTabs(title="Numbers, and what they are measured by")
    qtbot.addWidget(tabs)
    for name in ("Devices", "Formats", "Measured", "Places", "Calculator"):
        tabs.addTab(QWidget(), name)
    themes().dress_tabs(tabs)
    tabs.resize(1200, 200)
    tabs.show()
    qtbot.wait(20)
    bar, head = tabs.tabBar(), tabs.cornerWidget(Qt.Corner.TopLeftCorner)

    def width() -> int:
        return sum(bar.tabRect(tab).width() for tab in range(bar.count()))

    wide, title, saved = width(), head.sizeHint().width(), 5 * 2 * (TAB_MARGIN_PX - CLOSE_TAB_MARGIN_PX)
    assert head.isVisible() and title > saved  # so that the tabs alone have room where closer ones beside it have none
    for room, titled, needed in (
        (wide + title, True, wide),
        (wide + title - 1, True, wide - saved),
        (title + wide - saved - 1, False, wide),
        (wide + title, True, wide),
    ):
        tabs.resize(room, 200)
        qtbot.wait(20)
        assert (head.isVisible(), width()) == (titled, needed)
