"""In a window of 800 x 600 no place, tab or view is wider than the room that it has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractButton, QScrollArea, QTabBar, QWidget
from pytestqt.qtbot import QtBot

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
        for index in range(bar.count()):
            if bar.isVisible() and bar.isTabEnabled(index):
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


def test_that_nothing_is_cut_off_at_the_right_of_a_small_window(
    working: Window, children: list[FakeChild], qtbot: QtBot
) -> None:
    session = working.session
    assert session is not None
    session.runs.open_file(next(example.path for example in EXAMPLES if not example.is_study))
    working.resize(800, 600)
    for place in PANELS:
        working.show_panel(place.id)
        panel = working.host.load(place.id)
        assert panel is not None
        for view in views(panel):
            qtbot.wait(10)
            assert not too_wide(panel), f"{place.id}, {view}"
