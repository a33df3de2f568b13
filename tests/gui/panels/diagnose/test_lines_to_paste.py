"""Lines to paste in Diagnose: those of a fix for a recorded loop, and those that record one."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from precgui.examples import example
from precgui.gui.panels.diagnose.panel import DiagnosePanel
from precgui.gui.session import Session


def test_that_the_fix_of_a_recorded_loop_can_be_copied(qtbot: QtBot) -> None:
    session, each = Session(), example("clip-before-unscale")
    assert each is not None
    panel = DiagnosePanel(session)
    qtbot.addWidget(panel)
    panel.resize(1000, 700)
    panel.show()
    session.runs.open_file(each.path)
    qtbot.waitUntil(lambda: bool(panel.cards))
    code = panel.cards[0].code
    qtbot.waitUntil(code.isVisible)
    qtbot.mouseClick(code.copy, Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text().splitlines()[-1] == "scaler.unscale_(optimizer)"


def test_that_the_lines_that_record_a_loop_can_be_copied(qtbot: QtBot) -> None:
    panel = DiagnosePanel(Session())
    qtbot.addWidget(panel)
    panel.show()
    qtbot.mouseClick(panel.view.buttons["Your own loop"], Qt.MouseButton.LeftButton)
    assert panel.loop.isVisible() and panel.place()[0] == "Your own loop"
    qtbot.mouseClick(panel.loop.code.copy, Qt.MouseButton.LeftButton)
    assert "recorder.step(loss)" in QGuiApplication.clipboard().text()
    panel.show_tab("loop")
    assert panel.loop.isVisible()
