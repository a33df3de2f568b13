"""The end of runs and studies that nobody watched, banners that go when all is over, and work in the status bar."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QObject
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QToolButton
from pytestqt.qtbot import QtBot

from precgui.events import RunEnded, RunStarted
from precgui.gui.answer import Answer, child
from precgui.gui.notices import Notice, Notices
from precgui.gui.open_run import Problem
from precgui.gui.shell import end_notices
from precgui.gui.shell.window import Window
from tests.fakes import FakeChild
from tests.gui.conftest import write_run
from tests.gui.test_study import small_sweep
from tests.runs.synthetic import live_run


@pytest.fixture
def desktop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Messages that the desktop is given."""
    told: list[str] = []

    class Tray(QObject):
        isSystemTrayAvailable = supportsMessages = staticmethod(lambda: True)

        def __init__(self, icon: QIcon, parent: QObject) -> None:
            super().__init__(parent)

        def show(self) -> None: ...
        def hide(self) -> None: ...
        def showMessage(self, title: str, text: str, *_: object) -> None:
            told.append(text)

    monkeypatch.setattr(end_notices, "QSystemTrayIcon", Tray)
    return told


def end_run(window: Window, run_id: str) -> str:
    """A run that was trained here has ended."""
    assert window.session is not None
    run = live_run([RunStarted(0.0, 1, 1, "cpu"), RunEnded(1.0, "completed")])
    run.run_id = run_id
    key = window.session.runs.add(run)
    window.session.training.ended.emit(key)
    return key


def texts(window: Window) -> list[str]:
    return [banner.notice.text for banner in window.banners.banners.values()]


@pytest.mark.parametrize("active", [True, False])
def test_that_the_end_of_a_run_is_told_unless_it_was_watched(
    working: Window, desktop: list[str], monkeypatch: pytest.MonkeyPatch, active: bool
) -> None:
    assert working.session is not None
    monkeypatch.setattr(working, "isActiveWindow", lambda: active)
    working.show_panel("live")
    watched = end_run(working, "one")  # the first run is the current one
    assert bool(texts(working)) is bool(desktop) is not active
    working.show_panel("compare")
    second = end_run(working, "two")
    [*_, text] = texts(working)
    assert "completed" in text and desktop == ([] if active else desktop[:2])
    banner = list(working.banners.banners.values())[-1]
    next(each for each in banner.findChildren(QToolButton) if each.text() == "Show").click()
    assert working.session.runs.current == second and working.host.current == "live"
    assert not active or not texts(working)
    assert watched != second


def test_that_the_end_of_a_study_is_told_once_nothing_is_left(
    qtbot: QtBot, working: Window, tmp_path: Path, children: list[FakeChild], desktop: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    session = working.session
    assert session is not None
    session.study.open(small_sweep(tmp_path).path)
    session.study.go_on()
    qtbot.waitUntil(lambda: session.study.grid is not None)
    qtbot.waitUntil(lambda: working.line.steps.text().startswith("0 of "))
    assert working.line.bar.isVisible() and working.line.text.text().startswith("Study ")
    children[-1].ended.emit("")
    assert not texts(working)  # it was stopped: runs are left
    session.study.go_on()
    grid = session.study.grid
    assert grid is not None
    children[-1].ended.emit("")
    done = replace(grid.document, left=0, done=3, members=())
    monkeypatch.setattr(session.study, "grid", replace(grid, title="mine", document=done, shares={}, runner=""))
    session.study.grid_read.emit()
    session.study.grid_read.emit()
    assert texts(working) == ["The study mine has ended: 3 runs."]
    working.show_panel("compare")
    assert not texts(working)


def test_that_a_banner_goes_with_its_run_and_offers_no_stop_of_one_that_has_ended(
    working: Window, notices: Notices, run_file: Path, tmp_path: Path
) -> None:
    session = working.session
    assert session is not None
    key = session.runs.open_file(write_run(tmp_path / "other.h5", "other"))
    assert key is not None
    runs = {"going on": True}
    notices.post(
        Notice("error", "It broke.", remedies=(("Stop the run", lambda: None, lambda: runs["going on"]),),
               is_over=lambda: key not in session.runs)
    )  # fmt: skip
    [banner] = working.banners.banners.values()
    [stop] = [each for each in banner.findChildren(QToolButton) if each.text() == "Stop the run"]
    assert not stop.isHidden()
    runs["going on"] = False
    session.runs.changed.emit(key)
    assert stop.isHidden()
    session.runs.close(key)
    assert not working.banners.banners and len(notices.entries()) == 1


def test_that_searches_and_plans_are_shown_while_they_go_on(working: Window, children: list[FakeChild]) -> None:
    answer = Answer(working, title="Search of formats")
    answer.ask(child("precgui.engine.x:serve"))
    assert working.line.text.text() == "Search of formats goes on"
    children[0].said.emit({"kind": "progress", "text": "layer 3 of 10"})
    assert working.line.text.text() == "Search of formats: layer 3 of 10"
    children[0].ended.emit("")
    assert working.line.text.text() == "No run is active"


def test_that_what_was_written_can_be_opened(working: Window, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert working.session is not None
    opened: list[str] = []
    monkeypatch.setattr(
        "precgui.gui.shell.window.QDesktopServices.openUrl", lambda url: opened.append(url.toLocalFile())
    )
    for name in ("page.html", "run.h5"):
        working.session.notice.emit(Problem(f"Written: {name}", severity="info", file=tmp_path / name))
        banner = list(working.banners.banners.values())[-1]
        next(each for each in banner.findChildren(QToolButton) if each.text() == "Open").click()
    assert opened == [str(tmp_path / "page.html"), str(tmp_path)]


def test_that_an_empty_list_of_notices_is_one_sentence(working: Window, notices: Notices) -> None:
    dialog = working.banners.show_list()
    assert dialog.nothing.isVisible() and not dialog.list.isVisible()
    dialog.close()
    notices.post(Notice("warning", "It broke."))
    dialog = working.banners.show_list()
    assert dialog.list.isVisible() and not dialog.nothing.isVisible()
