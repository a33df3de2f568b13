"""Runs at a place in the window: watched, let go, taken up again, brought home; the link is said in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from precgui.config import load
from precgui.events import RunEnded
from precgui.gui.panels.hardware.model import HardwareModel
from precgui.gui.panels.hardware.place_sheet import PlaceSheet
from precgui.gui.panels.hardware.places_tab import PlacesTab
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.session import Session
from precgui.gui.shell.status_bar import StatusLine
from precgui.places import link
from precgui.places.contact import ContactError
from precgui.places.jobs import all_jobs
from precgui.places.runner import JobConnection
from precgui.places.settings import NamedPlace, add_place, command_place, places
from precgui.runs.live import LiveRun
from tests.fakes import Orders
from tests.places.played_agent import JOB, PLACE, PlayedAgents, real_job, step


@pytest.fixture
def session(qtbot: QtBot) -> Iterator[Session]:
    made = Session()
    yield made
    done: list[bool] = []
    made.shutdown(lambda: done.append(True))
    qtbot.waitUntil(lambda: bool(done))


def run_of(session: Session) -> LiveRun:
    (opened,) = session.runs.values()
    assert isinstance(opened.run, LiveRun)
    return opened.run


def test_that_a_run_at_a_place_is_watched_and_comes_home(
    session: Session, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real_job(30)
    PlayedAgents(monkeypatch, [])
    with qtbot.waitSignal(session.training.ended):
        session.training.attach_job(PLACE, all_jobs()[0])
        assert session.training.place == "gpu1"
    run = run_of(session)
    assert (run.status, run.steps, run.run_id) == ("completed", 30, JOB)
    qtbot.waitUntil(lambda: run.is_in_file)
    assert run.path is not None
    assert run.path.is_relative_to(tmp_path / "runs")


def test_that_a_run_is_let_go_and_followed_again_without_a_step_twice(
    session: Session, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = real_job(20, ends=False)
    PlayedAgents(monkeypatch, [])
    line = StatusLine()
    qtbot.addWidget(line)
    line.attach(session)
    session.training.attach_job(PLACE, all_jobs()[0])
    qtbot.waitUntil(lambda: run_of(session).steps == 20)
    line.refresh()
    assert "at gpu1" in line.text.text()
    with qtbot.waitSignal(session.training.idle):
        line.detach.click()
    assert run_of(session).status == "running"
    assert (line.detach.text(), session.training.attachable) == ("Attach", session.runs.current)
    connection = JobConnection(folder, after=21)
    connection.send([step(21)])
    with qtbot.waitSignal(session.training.ended):
        line.detach.click()
        connection.send([RunEnded(5.0, "completed")])
    assert (run_of(session).status, run_of(session).steps) == ("completed", 21)
    assert session.training.attachable is None


def test_that_a_lost_link_is_said_and_closing_the_window_stops_no_run(
    session: Session, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = real_job(200, ends=False)
    agents = PlayedAgents(monkeypatch, [9000])
    first = link.start_command

    def start(place: NamedPlace) -> object:
        if agents.started:
            raise ContactError("it is off", is_final=False)
        return first(place)

    monkeypatch.setattr(link, "start_command", start)
    session.training.attach_job(PLACE, all_jobs()[0])
    qtbot.waitUntil(lambda: session.training.link_state.endswith("(it is off)"))
    assert session.training.link_state.startswith("no answer from gpu1 for ")
    session.training.close()
    qtbot.waitUntil(lambda: not session.training.is_training)
    assert (run_of(session).status, folder.is_asked_to_stop) == ("running", False)


def test_that_a_place_that_cannot_be_reached_fails_the_run_in_one_sentence(
    session: Session, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = command_place("box", ["no-such-program"])
    with qtbot.waitSignal(session.training.ended):
        session.training.start(load("digits-quick"), place)
    run = run_of(session)
    assert run.status == "failed"
    assert run.message == "there is no program no-such-program on this machine; correct the command of box"


def test_that_where_is_shown_once_there_is_a_place_and_starts_there(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders(monkeypatch)
    panel = SetupPanel(orders)
    qtbot.addWidget(panel)
    panel.show()
    assert panel.where.isHidden()
    panel.hide()
    add_place(command_place("box", ["a-command"]))
    panel.show()
    assert not panel.where.isHidden()
    panel.start_button.click()
    panel.where.choice.setCurrentText("box")
    qtbot.waitUntil(lambda: "there is no program a-command" in panel.outlook.machine_text.text())
    assert panel.message.text().endswith(", at box")
    panel.start_button.click()
    assert orders.wheres == [None, places()["box"]]
    panel.show_tab("study")
    assert panel.where.isHidden()


def test_that_code_is_sent_to_a_place_only_with_consent(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    add_place(command_place("box", ["a-command"]))
    orders = Orders(monkeypatch)
    panel = SetupPanel(orders)
    qtbot.addWidget(panel)
    panel.show()
    panel.form.set_value(panel.form.value().model_copy(update={"task": "/somewhere/mine.py:make_task"}))
    orders.agreed_code.add("/somewhere/mine.py:make_task")  # to run it here
    panel.where.choice.setCurrentText("box")
    panel.start_button.click()
    box = panel.consent.question
    assert box is not None
    assert box.text().startswith("This run sends to box, and executes there, the code in")
    next(each for each in box.buttons() if each.text() == "Cancel").click()
    assert orders.ordered == []


def test_that_places_are_added_tested_and_removed(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    real_job(3)
    PlayedAgents(monkeypatch, [])
    model = HardwareModel(lambda: False, holder := QWidget())
    tab = PlacesTab(model)
    for widget in (holder, tab):
        qtbot.addWidget(widget)
    tab.show()
    assert "No place yet" in tab.fault.text()
    sheet = tab.add()
    assert isinstance(sheet, PlaceSheet)
    sheet.host.setText("-oProxyCommand=x")
    sheet.test_button.click()
    assert "is no host" in sheet.reported.text()
    sheet.host.setText("me@gpu1.example.org")
    sheet.test_button.click()
    qtbot.waitUntil(lambda: sheet.reported.text().startswith("It answers: "))
    sheet.add_button.click()
    qtbot.waitUntil(lambda: tab.table.texts()[0][:2] == ("gpu1", "answers"))
    assert [row[0] for row in tab.runs.texts()] == ["digits, fp32"]
    tab.runs.selectRow(0)
    with qtbot.waitSignal(model.job_requested) as asked:
        tab.attach_button.click()
    assert (asked.args[0].name, asked.args[1].job) == ("gpu1", JOB)
    tab.remove_button.click()
    assert (tab.table.texts(), places()) == ([], {})
