"""The plan of a study changed in Live: order, runs left out, more seeds; two windows on one folder."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from pytestqt.qtbot import QtBot

from precgui.gui import study_control
from precgui.gui.panels.live.panel import LivePanel
from precgui.gui.panels.live.study_cells import grid_table, waiting_names
from precgui.gui.session import Session
from precgui.sweeps.events import MemberBegan, MemberEnded, SweepWaits
from precgui.sweeps.folder import SweepFolder
from tests.fakes import FakeChild
from tests.sweeps.sample_sweep import small_sweep, write_member


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def live(qtbot: QtBot, session: Session, tmp_path: Path) -> LivePanel:
    panel = LivePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    session.study.open(small_sweep(tmp_path, seeds=5, twins=0).path)
    qtbot.waitUntil(lambda: panel.study.table.rowCount() == 6)
    return panel


def waiting(session: Session) -> list[str]:
    grid = session.study.grid
    return waiting_names(grid) if grid is not None else []


def place_of(session: Session, name: str) -> tuple[int, int]:
    """Row and column of a run in the grid."""
    assert session.study.grid is not None
    cells = grid_table(session.study.grid).cells
    return next(place for place, cell in cells.items() if cell.member.name == name)


def choose(session: Session, panel: LivePanel, name: str, action: str) -> None:
    """Choose a run in the grid, and an entry of its menu."""
    panel.study.table.setCurrentCell(*place_of(session, name))
    panel.study.fill_run_menu()
    next(entry for entry in panel.study.run_menu.actions() if entry.text() == action).trigger()


def test_that_runs_are_left_out_taken_in_and_put_in_another_order(
    session: Session, qtbot: QtBot, live: LivePanel
) -> None:
    assert not live.study.run_button.isEnabled()
    choose(session, live, "s04-fp32", "Run next")
    qtbot.waitUntil(lambda: waiting(session)[0] == "s04-fp32")
    assert live.study.run_button.isEnabled()
    choose(session, live, "s04-fp32", "Run last")
    qtbot.waitUntil(lambda: waiting(session)[-1] == "s04-fp32")
    choose(session, live, "s04-fp32", "Leave out")
    qtbot.waitUntil(lambda: "s04-fp32" not in waiting(session))
    assert live.study.table.item(*place_of(session, "s04-fp32")).text() == "left out"
    choose(session, live, "s04-fp32", "Take in again")
    qtbot.waitUntil(lambda: waiting(session)[-1] == "s04-fp32")


def test_that_seeds_are_added_to_the_next_look_of_the_plan(session: Session, qtbot: QtBot, live: LivePanel) -> None:
    dialog = live.study.ask_for_seeds()
    assert dialog is not None
    assert dialog.intValue() == 5
    assert "Verdicts are made at 5 and 10 seeds and nowhere else." in dialog.labelText()
    dialog.accept()
    qtbot.waitUntil(lambda: len(waiting(session)) == 21)
    again = live.study.ask_for_seeds()
    assert again is not None
    assert "Seeds beyond the last of these are shown, and not judged." in again.labelText()
    again.reject()


def test_that_two_windows_on_one_folder_see_each_other(session: Session, qtbot: QtBot, live: LivePanel) -> None:
    folder = SweepFolder(session.study.folder or Path())
    assert folder.runner.acquire()  # as the child process of another window
    session.study.read_grid()
    qtbot.waitUntil(lambda: "Another process" in live.study.state.text())
    assert f"process {os.getpid()} on" in live.study.state.text()
    assert live.study.go_on_button.isHidden()
    assert live.study.pause_button.isVisible()
    folder.skip("s05-fp32")
    session.study.read_grid()
    qtbot.waitUntil(lambda: "s05-fp32" not in waiting(session))
    folder.runner.release()
    qtbot.waitUntil(lambda: live.study.go_on_button.isVisible())  # without being asked to read again
    assert live.study.take_button.isHidden()


def test_that_a_window_notices_by_itself_that_another_one_begins_to_run(
    session: Session, qtbot: QtBot, live: LivePanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    qtbot.waitUntil(lambda: live.study.state.text() == "Nobody runs this study now.")
    folder = SweepFolder(session.study.folder or Path())
    assert folder.runner.acquire()
    qtbot.waitUntil(lambda: live.study.take_button.isVisible())
    folder.runner.release()


def test_that_a_window_takes_over_from_another_one_and_says_that_it_waits(
    session: Session, qtbot: QtBot, live: LivePanel, children: list[FakeChild]
) -> None:
    folder = SweepFolder(session.study.folder or Path())
    assert folder.runner.acquire()
    session.study.read_grid()
    qtbot.waitUntil(lambda: live.study.take_button.isVisible())
    live.study.take_button.click()
    assert children[0].arguments == {"folder": str(folder.path), "take_over": True}
    children[0].said.emit(SweepWaits("process 7 ends its present run first"))
    qtbot.waitUntil(lambda: "This window waits: process 7 ends its present run first." in live.study.state.text())
    assert live.study.stop_button.isVisible()
    folder.runner.release()
    session.study.stop()
    qtbot.waitUntil(lambda: live.study.state.text() == "Nobody runs this study now.")


def test_that_the_grid_says_that_the_engine_starts_and_for_how_long(
    session: Session, qtbot: QtBot, live: LivePanel, children: list[FakeChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    def text_of(name: str) -> str:
        item = live.study.table.item(*place_of(session, name))
        return item.text() if item is not None else ""

    now = [100.0]
    monkeypatch.setattr(study_control, "time", SimpleNamespace(monotonic=lambda: now[0]))
    folder = SweepFolder(session.study.folder or Path())
    session.study.go_on()
    now[0] += 35
    session.study.read_grid()
    qtbot.waitUntil(lambda: text_of("warm-up") == "engine starts, 35 s")
    assert live.study.state.text().startswith("The engine starts, 35 s so far.")
    assert text_of("s01-fp32").startswith("waiting (")
    children[0].said.emit(MemberBegan("warm-up", str(folder.path / "warm-up.h5")))
    now[0] += 65
    session.study.read_grid()
    qtbot.waitUntil(lambda: text_of("warm-up") == "engine starts, 1:05")
    write_member(folder, folder.plan.member("warm-up"))
    session.study.read_grid()
    qtbot.waitUntil(lambda: text_of("warm-up") == "done")
    assert not session.study.starting_s
    children[0].said.emit(MemberBegan("s01-fp32", ""))
    children[0].said.emit(MemberEnded("s01-fp32", "failed", "", 1.0))
    assert not session.study.starting_s
    session.study.stop()


def test_that_a_large_window_shows_the_curves_of_the_study_below_its_grid(
    session: Session, qtbot: QtBot, tmp_path: Path
) -> None:
    folder = small_sweep(tmp_path, seeds=2)
    for member in folder.plan.members:
        write_member(folder, member)
    panel = LivePanel(session)
    qtbot.addWidget(panel)
    panel.resize(1600, 900)
    panel.show()
    session.study.open(folder.path)
    qtbot.waitUntil(lambda: len(panel.study.curves.plot.bands) == 2)
    table = panel.study.table
    assert table.horizontalHeader().length() > 1400 and table.height() < panel.study.curves.height()
    panel.resize(800, 500)
    assert not panel.study.curves.isVisible()


def test_that_all_seeds_of_a_small_study_are_seen_above_its_curves(
    session: Session, qtbot: QtBot, live: LivePanel
) -> None:
    live.resize(1100, 760)
    study = live.study
    qtbot.waitUntil(study.curves.isVisible)
    qtbot.waitUntil(
        lambda: study.table.rowViewportPosition(5) + study.table.rowHeight(5) <= study.table.viewport().height()
    )
