"""With the keyboard alone: every table copies its rows, Tab leads out of it, and what has the focus is in view."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QListView, QTableView, QTreeView
from pytestqt.qtbot import QtBot

from precgui.gui.kit.reading_order import reading_order
from precgui.gui.notices import Notices
from precgui.gui.panels.setup.panel import SetupPanel
from tests.gui.filled_places import walk
from tests.gui.test_translated_layout import opened


def copies(view: QAbstractItemView) -> bool:
    keys = [action.shortcut() for action in view.actions()]
    keys += [shortcut.key() for shortcut in view.findChildren(QShortcut)]
    return QKeySequence(QKeySequence.StandardKey.Copy) in keys


def test_that_no_table_keeps_the_focus_and_each_of_several_columns_is_copied(
    qtbot: QtBot, notices: Notices, tmp_path: Path
) -> None:
    """Three tables took Tab for their cells, and most copied one cell."""
    trapping, mute = set[str](), set[str]()
    until: Callable[[Callable[[], bool]], None] = qtbot.waitUntil
    with opened(qtbot, notices, "en") as window:
        for place in walk(window, until, tmp_path / "runs"):
            for view in window.findChildren(QAbstractItemView):
                if isinstance(view, (QHeaderView, QListView)):
                    continue
                name = f"{place}: {type(view).__name__} {view.accessibleName()}"
                if isinstance(view, QTableView) and view.tabKeyNavigation():
                    trapping.add(name)
                assert isinstance(view, (QTableView, QTreeView))
                if (
                    view.isVisible()
                    and view.model() is not None
                    and view.model().columnCount() > 1
                    and not copies(view)
                ):
                    mute.add(name)
    assert (trapping, mute) == (set(), set())


def test_that_tab_brings_what_it_reaches_from_outside_of_a_page_into_view(qtbot: QtBot, notices: Notices) -> None:
    """Qt scrolls only where the focus goes on within the page: the first part of a long page stayed out of view."""
    with opened(qtbot, notices, "en") as window:
        window.resize(1024, 640)
        window.show_panel("setup")
        qtbot.wait(50)
        setup = window.host.panels["setup"]
        assert isinstance(setup, SetupPanel)
        down = setup.scroller.verticalScrollBar()
        down.setValue(down.maximum())
        assert setup.kind.visibleRegion().isEmpty()
        parts = reading_order(window)
        first = next(place for place, part in enumerate(parts) if setup.kind.isAncestorOf(part))
        parts[first - 1].setFocus()
        window.focusNextPrevChild(True)
        focused = window.focusWidget()
        assert focused is not None and setup.kind.isAncestorOf(focused) and not focused.visibleRegion().isEmpty()
