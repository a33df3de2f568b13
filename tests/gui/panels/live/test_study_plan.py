"""The plan of a study changed in Live: order, runs left out, more seeds; two windows on one folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from precgui.gui.panels.live.panel import LivePanel
from precgui.gui.panels.live.study_cells import waiting_names
from precgui.gui.session import Session
from precgui.sweeps.folder import SweepFolder
from tests.sweeps.sample_sweep import small_sweep


@pytest.fixture
def live(qtbot: QtBot, tmp_path: Path) -> LivePanel:
    session = Session()
    panel = LivePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    session.study.open(small_sweep(tmp_path, seeds=5, twins=0).path)
    qtbot.waitUntil(lambda: panel.study.table.rowCount() == 6)
    return panel


def waiting(panel: LivePanel) -> list[str]:
    grid = panel.study._session.study.grid
    return waiting_names(grid) if grid is not None else []


def choose(panel: LivePanel, name: str, action: str) -> None:
    """Choose a run in the grid, and an entry of its menu."""
    cells = panel.study._table.cells
    panel.study.table.setCurrentCell(*next(place for place, cell in cells.items() if cell.member.name == name))
    panel.study.fill_run_menu()
    next(entry for entry in panel.study.run_menu.actions() if entry.text() == action).trigger()


def test_that_runs_are_left_out_taken_in_and_put_in_another_order(qtbot: QtBot, live: LivePanel) -> None:
    assert not live.study.run_button.isEnabled()
    choose(live, "s04-fp32", "Run next")
    qtbot.waitUntil(lambda: waiting(live)[0] == "s04-fp32")
    assert live.study.run_button.isEnabled()
    choose(live, "s04-fp32", "Run last")
    qtbot.waitUntil(lambda: waiting(live)[-1] == "s04-fp32")
    choose(live, "s04-fp32", "Leave out")
    qtbot.waitUntil(lambda: "s04-fp32" not in waiting(live))
    texts = {cell.member.name: cell.text for cell in live.study._table.cells.values()}
    assert texts["s04-fp32"] == "left out"
    choose(live, "s04-fp32", "Take in again")
    qtbot.waitUntil(lambda: waiting(live)[-1] == "s04-fp32")


def test_that_seeds_are_added_to_the_next_look_of_the_plan(qtbot: QtBot, live: LivePanel) -> None:
    dialog = live.study.ask_for_seeds()
    assert dialog is not None
    assert dialog.intValue() == 5
    assert "Verdicts are made at 5 and 10 seeds and nowhere else." in dialog.labelText()
    dialog.accept()
    qtbot.waitUntil(lambda: len(waiting(live)) == 21)
    again = live.study.ask_for_seeds()
    assert again is not None
    assert "Seeds beyond the last of these are shown, and not judged." in again.labelText()
    again.reject()


def test_that_two_windows_on_one_folder_see_each_other(qtbot: QtBot, live: LivePanel) -> None:
    folder = SweepFolder(live.study._session.study.folder or Path())
    assert folder.runner.acquire()  # as the child process of another window
    live.study._session.study.read_grid()
    qtbot.waitUntil(lambda: "Another process" in live.study.state.text())
    assert f"process {os.getpid()} on" in live.study.state.text()
    assert live.study.go_on_button.isHidden()
    assert live.study.pause_button.isVisible()
    folder.skip("s05-fp32")
    live.study._session.study.read_grid()
    qtbot.waitUntil(lambda: "s05-fp32" not in waiting(live))
    folder.runner.release()
    live.study._session.study.read_grid()
    qtbot.waitUntil(lambda: live.study.go_on_button.isVisible())
