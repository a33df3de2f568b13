"""Each tab and view of every place in a window of 800 x 600: nothing is cut off, and Tab goes as a person reads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from PySide6.QtCore import QRect, Qt
from PySide6.QtWidgets import QAbstractButton, QApplication, QScrollArea, QTabBar, QWidget
from pytestqt.qtbot import QtBot
from shiboken6 import isValid

from precgui.examples import EXAMPLES
from precgui.gui.kit.segmented import SegmentedChoice
from precgui.gui.shell.window import PANELS, Window
from precgui.gui.training_queue import TrainingQueue
from tests.fakes import FakeChild


@pytest.fixture(autouse=True)
def no_child_process_waits_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingQueue, "warm_up", lambda _: None)


def views(panel: QWidget) -> Iterator[str]:
    """Show each tab and each view of a place in turn; yields their names."""
    yield "first"
    for bar in panel.findChildren(QTabBar):
        for index in range(bar.count() if isValid(bar) else 0):
            if isValid(bar) and bar.isVisible() and bar.isTabEnabled(index):
                bar.setCurrentIndex(index)
                yield bar.tabText(index)
    for choice in panel.findChildren(SegmentedChoice):
        for name, button in choice.buttons.items():
            if choice.isVisible():
                button.click()
                yield name


def too_wide(panel: QWidget) -> list[str]:
    """Pages that are wider than the room in which they can only scroll up and down, and buttons that stand outside."""
    pages = [
        f"{type(area.widget()).__name__} needs {area.widget().width()} of {area.viewport().width()} px"
        for area in panel.findChildren(QScrollArea)
        if area.isVisible() and area.widget() and area.widget().width() > area.viewport().width()
        if area.horizontalScrollBarPolicy() == Qt.ScrollBarPolicy.ScrollBarAlwaysOff
    ]
    outside = [
        f"{button.text()!r} ends at {right} of {panel.width()} px"
        for choice in panel.findChildren(SegmentedChoice)
        for button in choice.findChildren(QAbstractButton)
        if button.isVisible() and (right := button.mapTo(panel, button.rect().bottomRight()).x()) > panel.width()
    ]
    return pages + outside


def stops(panel: QWidget) -> list[QWidget]:
    """The parts of a place in view that Tab reaches, in the order of Qt."""
    found, at = list[QWidget](), panel.nextInFocusChain()
    while at is not panel:
        assert at is not None
        can_have_it = not at.visibleRegion().isEmpty() and at.isEnabled() and at.focusProxy() is None
        is_stop = can_have_it and at.focusPolicy() & Qt.FocusPolicy.TabFocus and not isinstance(at, QScrollArea)
        if is_stop and panel.isAncestorOf(at):
            found.append(at)
        at = at.nextInFocusChain()
    return found


def jumps_back(panel: QWidget) -> list[str]:
    """Steps of Tab that go up within a column, or to the left within a row."""

    def rect(part: QWidget) -> QRect:
        seen = part.visibleRegion().boundingRect()  # a chart may be longer than the area in which it scrolls
        return QRect(part.mapTo(panel, seen.topLeft()), seen.size())

    def goes_back(part: QWidget, following: QWidget) -> bool:
        if part.isAncestorOf(following):
            return False
        here, there = rect(part), rect(following)
        goes_up = there.bottom() <= here.top() + 2 and there.left() < here.right()
        same_row = there.top() < here.bottom() - 2 and there.bottom() > here.top() + 2
        return goes_up or (same_row and there.right() <= here.left() + 2)

    chain = stops(panel)
    first = min(range(len(chain)), key=lambda at: (rect(chain[at]).top() // 20, rect(chain[at]).left()), default=0)
    chain = chain[first:] + chain[:first]
    return [
        f"{type(part).__name__} {rect(part).getRect()} to {type(following).__name__} {rect(following).getRect()}"
        for part, following in pairwise(chain)
        if goes_back(part, following)
    ]


def test_that_in_a_small_window_every_view_fits_and_tab_goes_through_it_as_it_is_read(
    working: Window, children: list[FakeChild], qtbot: QtBot
) -> None:
    assert working.session is not None
    for example in EXAMPLES:
        open_file = working.session.open_study if example.is_study else working.session.runs.open_file
        open_file(example.path)
    working.resize(800, 600)
    with qtbot.waitActive(working):
        working.activateWindow()
    for place in PANELS:
        working.show_panel(place.id)
        panel = working.host.load(place.id)
        assert panel is not None
        for view in views(panel):
            qtbot.wait(10)
            working.setFocus()
            qtbot.keyClick(working, Qt.Key.Key_Tab)
            assert QApplication.focusWidget() not in (None, working), f"{place.id}, {view}: Tab reaches nothing"
            assert not jumps_back(panel), f"{place.id}, {view}"
            assert not too_wide(panel), f"{place.id}, {view}"
