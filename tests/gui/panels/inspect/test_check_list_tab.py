"""Inspect > Check list: a row for each line, and settings to try that go into Run."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from precgui.config import RunConfig
from precgui.gui.panels.inspect.check_list_tab import CheckListTab
from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.session import Session
from precgui.runs.check_list import lines_met
from tests.gui.conftest import write_run


def test_that_every_line_of_a_run_is_shown_and_a_setting_goes_into_run(
    qtbot: QtBot, tmp_path: Path, session: Session, panel: InspectPanel
) -> None:
    key = session.runs.open_file(write_run(tmp_path / "one.h5", "one"))
    assert key is not None
    session.requests.inspect(key, "checklist")
    tab = panel.tab("checklist")
    assert isinstance(tab, CheckListTab)
    tab.show_run(key)
    qtbot.waitUntil(lambda: tab.isVisible() and bool(tab.lines))
    names = [row.accessibleName() for row in tab.rows]
    assert names == [f"{line.title}: {line.state}" for line in tab.lines]
    assert tab.summary.text() == f"{lines_met(tab.lines)}."
    buttons = {button.text(): button for row in tab.rows for button in row.findChildren(QPushButton)}
    with qtbot.waitSignal(session.requests.settings) as caught:
        buttons["Try train.compile = True"].click()
    changed: RunConfig = caught.args[0]
    assert changed.train.compile
    asked: list[tuple[object, ...]] = []
    session.requests.study.connect(lambda *study: asked.append(study))
    with qtbot.waitSignal(session.requests.settings) as unchanged:
        buttons["Measure in pairs"].click()
    assert not unchanged.args[0].train.compile
    assert asked == [([unchanged.args[0].precision], 5, {"train.compile": (False, True)})]
