"""A newcomer's way from the first window to "which precision for this model here", click by click."""

from __future__ import annotations

import re

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from precgui.config import RECIPES
from precgui.gui.notices import Notices
from precgui.gui.panels.hardware.advice_tab import AdviceTab
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.session import Session
from precgui.gui.settings import Settings
from precgui.gui.shell.window import Window
from tests.gui.conftest import close_window

ADVISED = re.compile(r"Advised for this model here: ([\w-]+)\.")


class Hand:
    """Clicks as a person does, and counts."""

    def __init__(self, qtbot: QtBot) -> None:
        self._qtbot = qtbot
        self.clicks = 0

    def click(self, widget: QWidget, place: QPoint | None = None) -> None:
        self._qtbot.mouseClick(widget, Qt.MouseButton.LeftButton, pos=place or widget.rect().center())
        self.clicks += 1


@pytest.mark.qt_log_ignore("This plugin does not support", extend=True)  # the popup of a combo box, offscreen
def test_that_the_first_window_names_the_precision_and_three_clicks_do_for_any_model(qtbot: QtBot) -> None:
    window = Window(Settings(fresh=True), Notices())
    window.show()
    window.attach(Session(window))
    panel = window.host.panels["setup"]
    assert isinstance(panel, SetupPanel) and panel.isVisible(), "the first window is where a precision is chosen"
    told, hand = panel.outlook.advice_text, Hand(qtbot)
    qtbot.waitUntil(lambda: bool(ADVISED.match(told.text())))
    assert told.isVisible() and hand.clicks == 0

    hand.click(panel.recipes)
    popup = panel.recipes.view()
    qtbot.waitUntil(popup.isVisible)
    qtbot.wait(QApplication.doubleClickInterval() + 50)  # a release that comes sooner belongs to the first click
    row = list(RECIPES).index("gpt-quick")
    index = panel.recipes.model().index(row, 0)
    popup.scrollTo(index)
    hand.click(popup.viewport(), popup.visualRect(index).center())
    qtbot.waitUntil(lambda: panel.recipes.currentText() == "gpt-quick")
    answer = ADVISED.match(told.text())
    assert answer is not None and hand.clicks == 2
    panel.outlook.link.linkActivated.emit("use")
    config = panel.form.value()
    assert config is not None and config.precision == answer[1] and config.task == "text"

    panel.outlook.link.linkActivated.emit("why")
    advice = window.host.panels["hardware"].tab(4)  # type: ignore[attr-defined]
    assert isinstance(advice, AdviceTab)
    assert advice.task.currentData() == "transformer", "the tree answers for the model of Run"
    close_window(qtbot, window)
