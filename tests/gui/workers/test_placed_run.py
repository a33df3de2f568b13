"""Runs at a place in the window: watched, let go, taken up again, brought home; the link is said in one sentence."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from precgui.cli.place_sweep import BlockPlaces
from precgui.config import load
from precgui.events import RunEnded, RunStarted
from precgui.gui.broken_runs import BrokenRuns, may_go_on
from precgui.gui.going_on import going_on
from precgui.gui.panels.hardware.model import HardwareModel
from precgui.gui.panels.hardware.place_sheet import PlaceSheet
from precgui.gui.panels.hardware.places_tab import PlacesTab
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.replay_bar import ReplayBar
from precgui.gui.session import Session
from precgui.gui.shell.status_bar import StatusLine
from precgui.gui.study_control import TASK_THERE, StudyControl
from precgui.places import agent, link, runner
from precgui.places.contact import ContactError
from precgui.places.jobs import JobFolder, all_jobs
from precgui.places.messages import StartCommand
from precgui.places.runner import JobConnection
from precgui.places.settings import NamedPlace, add_place, command_place, places
from precgui.process.child import ChildTask, TaskConnection
from precgui.runs.file.reader import open_run
from precgui.runs.file.writer import RunWriter
from precgui.runs.live import LiveRun
from tests.fakes import FakeChild, Orders
from tests.places.played_agent import JOB, PLACE, PlayedAgents, make_job, real_job, step


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
            raise ContactError(why, is_final=False)
        return first(place)

    why = "gpu1 does not answer; check that it is on and that this machine (here) is in its network"
    monkeypatch.setattr(link, "start_command", start)
    session.training.attach_job(PLACE, all_jobs()[0])
    qtbot.waitUntil(lambda: session.training.link_state.endswith(f"({why})"))
    assert session.training.link_state.startswith("no answer from gpu1 for ")
    line = StatusLine()
    qtbot.addWidget(line)
    line.attach(session)
    assert line.text.text().startswith("No answer from gpu1 for ")
    assert line.power.isHidden(), "a sensor that tells nothing takes no room"
    assert (line.bar.isHidden(), line.stop.isHidden(), line.detach.text()) == (True, False, "Detach")
    line.show()
    for width_px, is_whole in ((1180, True), (800, False)):
        line.resize(width_px, line.height())
        qtbot.waitUntil(lambda width_px=width_px: line.text.width() > width_px - 300)
        line.refresh()
        text = line.text.text()
        assert text.endswith(f"({why})") and text in line.text.toolTip()
        assert line.text.shown == (text if is_whole else text.partition(" (")[0]), "nothing is cut"
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


def test_that_a_study_trains_at_the_chosen_place_and_goes_on_there(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, children: object
) -> None:
    add_place(command_place("box", ["a-command"]))
    orders = Orders(monkeypatch)
    panel = SetupPanel(orders)
    qtbot.addWidget(panel)
    panel.show()
    panel.show_tab("study")
    panel.where.choice.setCurrentText("box")
    panel.start_button.click()
    study = orders.study
    assert study.folder is not None
    task = FakeChild.begun[-1]
    assert (task.task, task.arguments["places"]) == (TASK_THERE, ("box",))
    task.ended.emit("")
    BlockPlaces(study.folder, ["box"])  # as its process keeps it
    again = StudyControl(panel)
    again.open(study.folder)
    again.go_on()
    assert FakeChild.begun[-1].arguments["places"] == ("box",)
    assert FakeChild.begun[-1] is not task
    FakeChild.begun[-1].ended.emit("")
    for control in (study, again):
        qtbot.waitUntil(lambda control=control: control.grid is not None)


def write_file(path: Path, steps: int, ended: RunEnded) -> None:
    """The file of the run JOB, trained at gpu1."""
    config = load("digits-quick", ["train.checkpoint_every=2"])
    about = {"run_id": JOB, "created": "2026-03-01T12:00:00+00:00", "machine": {}, "environment": {"place": "gpu1"}}
    with RunWriter(path, config, **about) as writer:
        for event in (RunStarted(0.0, 4, 4, "cpu"), *map(step, range(1, steps + 1)), ended):
            writer(event)


@pytest.fixture
def broken(session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file here of a run that was stopped at its place after 3 of 4 steps."""
    add_place(PLACE)
    PlayedAgents(monkeypatch, [])
    path, ended = tmp_path / "home.h5", RunEnded(1.0, "stopped")
    write_file(path, 3, ended)
    folder = make_job([[*map(step, range(1, 4))], [ended]])
    shutil.copy(path, folder.out / "run.h5")
    assert session.runs.open_file(path) is not None
    assert may_go_on(path, "stopped", "gpu1")
    assert not may_go_on(path, "stopped", "gone")
    return path


def go_on(session: Session, qtbot: QtBot, path: Path) -> list[str]:
    """Ask for it and wait for its end; the notices that came."""
    holder, problems = QWidget(), list[str]()
    qtbot.addWidget(holder)
    session.notice.connect(lambda problem: problems.append(problem.message))
    runs = BrokenRuns(session, holder)
    with qtbot.waitSignal(session.training.ended):
        runs.go_on(path)
    return problems


def test_that_a_run_that_broke_off_at_a_place_goes_on_there_and_its_file_becomes_whole(
    session: Session, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, broken: Path
) -> None:
    trained: list[int] = []

    def train(job: str) -> None:
        folder = JobFolder(job)
        assert folder.claim()
        trained.append(folder.part_number)
        ended = RunEnded(2.0, "completed")
        (folder.out / "run.h5").unlink()
        write_file(folder.out / "run.h5", 4, ended)
        connection = JobConnection(folder)
        connection.send([*map(step, range(1, 5))])
        connection.send([ended])

    monkeypatch.setattr(agent, "broken_off", lambda path: None)  # its checkpoint is there
    monkeypatch.setattr(agent, "_runner", train)
    assert go_on(session, qtbot, broken) == []
    assert trained == [1]
    shown = run_of(session)
    qtbot.waitUntil(lambda: shown.is_in_file)
    with open_run(broken) as run:
        assert (run.status, run.steps) == ("completed", 4)


def test_that_a_run_that_cannot_go_on_at_its_place_says_why_and_its_file_stays(
    session: Session, qtbot: QtBot, broken: Path
) -> None:
    problems = go_on(session, qtbot, broken)
    assert "has no checkpoint beside it" in problems[-1]
    assert [(opened.run.path, opened.run.status) for opened in session.runs.values()] == [(broken, "stopped")]


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that makes step 3 of a run again, and no other."""

    def work(connection: TaskConnection, task: ChildTask) -> None:
        path, step = task.arguments["path"], task.arguments["step"]
        if step == 3:
            Path(f"{path}.replay-3.json").write_text("{}")
        ended = {"kind": "kept", "verdict": "healthy"} if step == 3 else {"kind": "fault", "message": "no such step"}
        connection.send([{"kind": "progress", "text": "training up to the step"}, ended])

    monkeypatch.setattr(agent, "_runner", work_on)
    monkeypatch.setattr(runner, "work", work)


def work_on(job: str) -> None:
    """What the process of a task does at a place."""
    folder = JobFolder(job)
    assert folder.claim()
    order = folder.order()
    assert isinstance(order, StartCommand)
    runner.work_on_task(folder, JobFolder(order.of), order, JobConnection(folder))


def test_that_a_step_of_a_placed_run_is_made_again_at_its_place_and_its_result_comes_home(
    session: Session, qtbot: QtBot, broken: Path, replays: None
) -> None:
    bar, said = ReplayBar(session), list[str]()
    qtbot.addWidget(bar)
    going_on().changed.connect(lambda: said.append(going_on().sentence))
    bar.show_run(next(iter(session.runs.values())).run)
    bar.step.setValue(3)
    with qtbot.waitSignal(bar.kept):
        bar.button.click()
        assert bar.text.text() == "Starting the engine at gpu1 ..."
    assert "Replay of a step: training up to the step" in said
    assert broken.with_name("home.h5.replay-3.json").read_text() == "{}"
    qtbot.waitUntil(lambda: bar.button.text() == "Replay this step")
    bar.step.setValue(1)
    bar.button.click()
    qtbot.waitUntil(lambda: bar.text.text() == "no such step")
    qtbot.waitUntil(lambda: not [line for line in all_jobs() if line.kind == "command"])


def test_that_a_link_that_is_lost_while_a_place_works_is_said_and_the_answer_comes(
    session: Session, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, broken: Path, replays: None
) -> None:
    agents, said = PlayedAgents(monkeypatch, [600]), list[str]()
    bar = ReplayBar(session)
    qtbot.addWidget(bar)
    going_on().changed.connect(lambda: said.append(going_on().sentence))
    monkeypatch.setattr("precgui.places.placed_job.FIRST_WAIT_S", 0.4)
    bar.show_run(next(iter(session.runs.values())).run)
    bar.step.setValue(3)
    with qtbot.waitSignal(bar.kept):
        bar.button.click()
    assert agents.started == 2
    assert any(each.startswith("Replay of a step: no answer from gpu1 for ") for each in said)


def test_that_a_work_that_no_stop_can_reach_is_told_to_go_on_at_its_place(
    session: Session, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, broken: Path, replays: None
) -> None:
    may_end, workers = threading.Event(), list[threading.Thread]()

    def begin(job: str) -> None:
        workers.append(threading.Thread(target=work_on, args=(job,)))
        workers[-1].start()

    def work(connection: TaskConnection, task: ChildTask) -> None:
        connection.send([{"kind": "progress", "text": f"training {random.Random(1).randbytes(2000).hex()}"}])
        may_end.wait()

    agents = PlayedAgents(monkeypatch, [1200])
    first = link.start_command

    def start(place: NamedPlace) -> object:
        if agents.started:
            raise ContactError("it is off", is_final=False)
        return first(place)

    monkeypatch.setattr(link, "start_command", start)
    monkeypatch.setattr(agent, "_runner", begin)
    monkeypatch.setattr(runner, "work", work)
    monkeypatch.setattr("precgui.places.placed_task.KILL_AFTER_S", 0.3)
    bar = ReplayBar(session)
    qtbot.addWidget(bar)
    bar.show_run(next(iter(session.runs.values())).run)
    bar.button.click()
    qtbot.waitUntil(lambda: "the work goes on there" in going_on().sentence)
    with qtbot.waitSignal(going_on().let_go) as told:
        bar.button.click()
    assert told.args == [
        "Replay of a step goes on at gpu1 to its end: the link was lost, so that it could not be stopped there."
    ]
    qtbot.waitUntil(lambda: bar.button.text() == "Replay this step")
    may_end.set()
    workers[0].join()


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
    assert tab.none.isVisible() and tab.none.property("kind") == "muted", "an empty list is no error"
    assert tab.fault.isHidden()
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
    assert tab.table.texts()[0][-1] == "ssh:me@gpu1.example.org"
    assert [row[0] for row in tab.runs.texts()] == ["digits, fp32"]
    tab.runs.selectRow(0)
    with qtbot.waitSignal(model.job_requested) as asked:
        tab.attach_button.click()
    assert (asked.args[0].name, asked.args[1].job) == ("gpu1", JOB)
    for _ in range(2):
        with qtbot.waitSignal(model.file_requested) as opened:
            tab.open_button.click()
    path = opened.args[0]
    assert (path.stat().st_mode & 0o222, path.name) == (0, f"{JOB}-0.h5")
    with open_run(path) as run:
        assert (run.run_id, run.steps) == (JOB, 3)
    tab.remove_button.click()
    assert (tab.table.texts(), places()) == ([], {})
