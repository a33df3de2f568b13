"""Work of hidden parts of the window waits until they are shown; a change of the theme reaches them one by one."""

from __future__ import annotations

from PySide6.QtWidgets import QStackedWidget, QWidget
from pytestqt.qtbot import QtBot

from precgui.gui.kit.when_visible import WhenVisible
from precgui.gui.theme import themes
from tests.gui.theme_changes import change_theme


def _stack(qtbot: QtBot) -> tuple[QStackedWidget, QWidget]:
    """A visible window with two pages, the second of them hidden."""
    stack, hidden = QStackedWidget(), QWidget()
    stack.addWidget(QWidget())
    stack.addWidget(hidden)
    qtbot.addWidget(stack)
    stack.show()
    qtbot.waitExposed(stack)
    return stack, hidden


def test_that_requests_to_a_hidden_widget_become_one_call_at_its_next_show(qtbot: QtBot) -> None:
    stack, hidden = _stack(qtbot)
    calls: list[int] = []
    work = WhenVisible(hidden, lambda: calls.append(1))
    work.request()
    work.request()
    assert not calls
    stack.setCurrentWidget(hidden)
    assert len(calls) == 1
    work.request()
    assert len(calls) == 2


def test_that_a_widget_in_no_visible_window_works_at_once(qtbot: QtBot) -> None:
    alone = QWidget()
    qtbot.addWidget(alone)
    calls: list[int] = []
    WhenVisible(alone, lambda: calls.append(1)).request()
    assert len(calls) == 1


def test_that_a_hidden_widget_follows_the_theme_after_one_in_view(qtbot: QtBot) -> None:
    change_theme(qtbot, "light")
    stack, hidden = _stack(qtbot)
    calls: list[str] = []
    visible = stack.currentWidget()
    assert visible is not None
    themes().follow(visible, lambda: calls.append("visible"))
    themes().follow(hidden, lambda: calls.append("hidden"))
    change_theme(qtbot, "dark")
    assert calls == ["visible", "hidden"]
