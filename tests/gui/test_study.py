"""A study in the window: set up in Run, followed in Live, judged in Compare."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDialogButtonBox
from pytestqt.qtbot import QtBot

from precgui.gui.notices import Notices
from precgui.gui.open_run import Problem
from precgui.gui.panels.compare.groups import GroupsView
from precgui.gui.panels.compare.panel import ComparePanel
from precgui.gui.panels.library.buttons import StudiesMenu
from precgui.gui.panels.live.panel import LivePanel
from precgui.gui.panels.live.study_cells import grid_table, summary
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.session import Session
from precgui.gui.shell.window import Window
from precgui.gui.study_reading import StudyReading
from precgui.gui.workers import child_work
from precgui.sweeps.events import MemberEnded, MemberGoesOn, SweepWaits
from precgui.sweeps.folder import SweepFolder, read_targets
from tests.fakes import FakeChild
from tests.sweeps.sample_sweep import small_sweep, write_member

ACCURACY = {"fp32": 0.90, "bf16-amp": 0.89, "int8-qat": 0.5}


class WrittenChild(FakeChild):
    """Writes all runs of the study at once and ends."""

    def start(self) -> None:
        super().start()
        folder = SweepFolder(Path(self.arguments["folder"]))
        for member in folder.plan.members:
            write_all(folder, member.name)
            self.said.emit(MemberEnded(member.name, "completed", "", 1.0))
        QTimer.singleShot(0, self, lambda: self.ended.emit(""))


def write_all(folder: SweepFolder, name: str) -> None:
    """A run of an accuracy that depends a little on the seed."""
    member = folder.plan.member(name)
    accuracy = ACCURACY.get(member.precision, 0.8) + 0.01 * (member.seed % 3)
    engine = {"threads": 2} if member.precision == "int8-qat" else {}
    write_member(folder, member, accuracy=accuracy, step_s=0.01 if member.precision == "fp32" else 0.005, engine=engine)


@pytest.fixture
def written(children: list[FakeChild], monkeypatch: pytest.MonkeyPatch) -> list[FakeChild]:
    monkeypatch.setattr(child_work, "ChildWork", WrittenChild)
    return children


# From Run to a verdict -------------------------------------------------------------------------------------


def test_that_three_clicks_lead_from_run_to_a_verdict(qtbot: QtBot, window: Window, written: list[FakeChild]) -> None:
    window.attach(Session())
    window.show_panel("setup")
    setup = window.host.load("setup")
    assert isinstance(setup, SetupPanel)
    qtbot.mouseClick(setup.kind.buttons["Study"], Qt.MouseButton.LeftButton)
    qtbot.mouseClick(setup.start_button, Qt.MouseButton.LeftButton)
    assert written[-1].task == "precgui.sweeps.runner:serve"
    assert window.host.current == "live"
    qtbot.waitUntil(lambda: window.session is not None and not window.session.study.is_running)
    qtbot.mouseClick(window.navigation.buttons["compare"], Qt.MouseButton.LeftButton)
    compare = window.host.panels["compare"]
    assert isinstance(compare, ComparePanel)
    view = compare.groups
    qtbot.waitUntil(lambda: bool(view.figures.verdicts.texts()))
    assert view.isVisible()
    assert view.answer.text().startswith("Stay with fp32 here.")
    assert "bf16-amp misses the target" in view.answer.text()


def test_that_a_study_needs_two_precisions_and_says_so(qtbot: QtBot) -> None:
    panel = SetupPanel(Session())
    qtbot.addWidget(panel)
    panel.kind.choose("Study")
    assert panel.start_button.isEnabled()
    for box in panel.study.boxes.values():
        box.setChecked(False)
    assert not panel.start_button.isEnabled()
    assert panel.message.text() == "Choose two precisions at least, or one and vary a field: the first is the baseline."
    panel.study.more.setText("fp32, emulated:nothing")
    assert not panel.start_button.isEnabled()
    panel.study.more.setText("fp32, emulated:e5m2")
    assert panel.start_button.isEnabled()
    assert panel.study.chosen() == ["fp32", "emulated:e5m2"]
    panel.kind.choose("One run")
    assert panel.start_button.isEnabled()


def test_that_the_estimate_stands_in_run_before_start(qtbot: QtBot) -> None:
    panel = SetupPanel(Session())
    qtbot.addWidget(panel)
    panel.use_recipe("digits-quick")
    panel.kind.choose("Study")
    panel.study.seeds.setValue(8)
    qtbot.waitUntil(lambda: "points" in panel.study.estimate.text())
    assert "The time is not known" in panel.study.estimate.text()
    assert "Smallest difference that can be told apart: about" in panel.study.estimate.text()


@pytest.mark.usefixtures("children")
def test_that_a_study_varies_fields_and_keeps_baseline_targets_and_rounds(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    panel = SetupPanel(session)
    qtbot.addWidget(panel)
    panel.kind.choose("Study")
    row = panel.study.vary.add()
    assert row.field.currentText() == "optimizer.lr"
    assert "now 0.05" in row.values.placeholderText()
    assert not panel.start_button.isEnabled()
    assert "Name two values of optimizer.lr at least" in panel.message.text()
    row.values.setText("0.01, 0.1")
    panel.study.baseline.setCurrentText("bf16-amp")
    panel.study.timing_rounds.setValue(4)
    dialog = panel.study.ask_for_targets()
    dialog.bounds["speedup"].setText("fast")
    assert "speedup" in dialog.fault.text().lower()
    dialog.bounds["speedup"].setText("1.2")
    dialog.boxes["energy_saved"].setChecked(False)
    dialog.buttons.button(QDialogButtonBox.StandardButton.Ok).click()
    panel.copy_command()
    assert "--baseline bf16-amp --timing-rounds 4 --vary optimizer.lr=0.01,0.1" in QGuiApplication.clipboard().text()
    panel.study.path.setText(str(tmp_path / "mine"))
    panel.start()
    folder = SweepFolder(tmp_path / "mine")
    assert folder.spec.vary == {"optimizer.lr": [0.01, 0.1]}
    assert (folder.spec.baseline, folder.spec.timing_rounds) == ("bf16-amp", 4)
    assert (read_targets(folder.path).speedup, read_targets(folder.path).energy_saved) == (1.2, None)
    session.study.stop()
    qtbot.waitUntil(lambda: not session.is_busy and session.study.grid is not None)


@pytest.mark.usefixtures("children")
def test_that_a_row_of_varied_values_can_be_removed(qtbot: QtBot) -> None:
    panel = SetupPanel(Session())
    qtbot.addWidget(panel)
    panel.kind.choose("Study")
    for _ in range(2):
        panel.study.vary.add().values.setText("0.1, 0.2")
    assert "optimizer.lr is varied twice" in panel.study.fault.replace("Optimizer", "optimizer")
    panel.study.vary.rows[0].remove.click()
    assert panel.start_button.isEnabled()


@pytest.mark.usefixtures("children")
def test_that_a_folder_with_something_in_it_is_not_taken(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    panel = SetupPanel(session)
    qtbot.addWidget(panel)
    panel.kind.choose("Study")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine", encoding="utf-8")
    panel.study.path.setText(str(tmp_path / "full"))
    with qtbot.waitSignal(session.notice) as caught:
        panel.start()
    problem: Problem = caught.args[0]
    assert "already holds something" in problem.message
    assert not session.study.is_running


# Live ------------------------------------------------------------------------------------------------------


def test_that_the_grid_tells_the_state_of_every_run(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=3, twins=1)
    folder.skip("s03-bf16-amp")
    write_all(folder, "warm-up")
    write_all(folder, "s01-fp32")
    write_member(folder, folder.plan.member("s01-bf16-amp"), status="failed")
    write_member(folder, folder.plan.member("s02-fp32"), status=None)
    grid = StudyReading(folder.path).grid()
    table = grid_table(grid)
    assert table.columns == ("fp32", "twin of fp32", "bf16-amp")
    assert table.rows[0] == "Warm-up"
    texts = {cell.member.name: cell.text for cell in table.cells.values()}
    assert texts["warm-up"] == "done"
    assert texts["s01-fp32"].startswith("done: 9")
    assert texts["s01-bf16-amp"] == "failed"
    assert texts["s02-bf16-amp"].startswith("waiting (")
    assert texts["s03-bf16-amp"] == "left out"
    assert summary(grid).startswith("3 of 7 runs done, 1 of them failed")


@pytest.mark.usefixtures("children")
def test_that_a_running_study_can_be_paused_and_stopped(qtbot: QtBot, tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    session = Session()
    panel = LivePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    assert not panel.view.isVisible()
    session.study.open(folder.path)
    qtbot.waitUntil(lambda: panel.study.go_on_button.isVisible())
    panel.study.go_on_button.click()
    assert session.is_busy
    qtbot.waitUntil(lambda: panel.study.stop_button.isVisible())
    panel.study.pause_button.click()
    assert folder.paused
    qtbot.waitUntil(lambda: panel.study.go_on_button.isVisible())
    panel.study.go_on_button.click()
    assert not folder.paused
    panel.study.stop_button.click()
    qtbot.waitUntil(lambda: not session.is_busy)
    qtbot.waitUntil(lambda: panel.study.state.text() == "Nobody runs this study now.")


@pytest.mark.usefixtures("children")
def test_that_a_study_is_stopped_before_the_window_closes(qtbot: QtBot, window: Window, tmp_path: Path) -> None:
    session = Session()
    window.attach(session)
    session.study.open(small_sweep(tmp_path).path)
    session.study.go_on()
    window.line.refresh()
    assert window.line.text.text() == "A study is running; its grid is in Live"
    window.close()
    assert window.closing.question is not None
    assert window.closing.question.text() == "A study is running. Stop it and close precgui?"
    window.closing.stop(session)
    qtbot.waitUntil(lambda: not window.isVisible())
    assert not session.study.is_running


@pytest.mark.usefixtures("children")
def test_that_no_run_begins_while_a_study_runs(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    session.study.open(small_sweep(tmp_path).path)
    session.study.go_on()
    panel = SetupPanel(session)
    qtbot.addWidget(panel)
    panel.kind.choose("Study")
    assert not panel.start_button.isEnabled()
    config = panel.form.value()
    assert config is not None
    session.training.start(config)
    assert len(session.training.waiting) == 1
    assert not session.training.is_training
    session.training.waiting.clear()
    session.study.stop()
    qtbot.waitUntil(lambda: not session.study.is_running)


# Compare > Groups ------------------------------------------------------------------------------------------


@pytest.fixture
def groups(qtbot: QtBot, tmp_path: Path) -> GroupsView:
    """The groups of a study of five seeds, which has ended."""
    folder = small_sweep(tmp_path, seeds=5, precisions=("fp32", "bf16-amp", "int8-qat"))
    for member in folder.plan.members:
        write_all(folder, member.name)
    session = Session()
    view = GroupsView(session)
    qtbot.addWidget(view)
    view.show()
    assert view.is_empty
    session.study.open(folder.path)
    qtbot.waitUntil(lambda: bool(view.figures.verdicts.texts()))
    return view


def test_that_groups_stand_beside_their_baseline_with_verdicts(groups: GroupsView) -> None:
    base, bf16, *_ = groups.figures.table.texts()
    assert base[:2] == ("fp32 (baseline)", "5 of 5")
    assert bf16[:2] == ("bf16-amp", "5 of 5")
    assert bf16[4] == "-1.00 points"
    assert bf16[6] == "missed"
    assert "the interval lies wholly outside the target" in bf16[7]
    assert base[4] == "–"


def test_that_another_figure_can_be_chosen_and_why_a_ratio_is_withheld_stands_in_its_row(groups: GroupsView) -> None:
    names = [groups.figures.figure.itemText(place) for place in range(groups.figures.figure.count())]
    place = names.index("CPU time")
    groups.figures.figure.setCurrentIndex(place)
    groups.figures.figure.activated.emit(place)
    int8 = groups.figures.table.texts()[2]
    assert int8[4] == "–"
    assert int8[6] == "not measurable"
    assert int8[7].startswith("withheld: ")
    assert "threads" in int8[7]


def test_that_a_study_without_an_ended_run_says_so(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    view = GroupsView(session)
    qtbot.addWidget(view)
    view.show()
    session.study.open(small_sweep(tmp_path).path)
    qtbot.waitUntil(lambda: "has ended yet" in view.answer.text())
    assert view.figures.table.texts() == []


# Opening ---------------------------------------------------------------------------------------------------


def test_that_a_folder_is_opened_as_a_study_and_another_one_is_refused(
    qtbot: QtBot, window: Window, notices: Notices, tmp_path: Path
) -> None:
    session = Session()
    window.attach(session)
    folder = small_sweep(tmp_path)
    window.files.open([folder.path])
    assert session.study.folder == folder.path
    assert window.host.current == "compare"
    qtbot.waitUntil(lambda: session.study.grid is not None)
    session.open_study(tmp_path)
    assert "it has no sweep.toml" in notices.entries()[-1].notice.text


def test_that_the_menu_of_runs_lists_the_studies_of_the_folder(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    menu = StudiesMenu(session)
    qtbot.addWidget(menu)
    menu.fill()
    assert menu.menu().actions()[0].text() == "The folder of runs holds no study"
    folder = small_sweep(tmp_path / "runs")
    menu.fill()
    menu.menu().actions()[0].trigger()
    assert session.study.folder == folder.path
    qtbot.waitUntil(lambda: session.study.grid is not None)


def test_that_why_a_study_waits_is_told(qtbot: QtBot, tmp_path: Path, children: list[FakeChild]) -> None:
    session = Session()
    session.study.open(small_sweep(tmp_path).path)
    with qtbot.waitSignal(session.notice) as caught:
        session.study.go_on()
        children[0].said.emit(SweepWaits("somebody paused the sweep"))
    assert caught.args[0].message == "The study waits: somebody paused the sweep."
    session.study.stop()
    qtbot.waitUntil(lambda: not session.study.is_running)


def test_that_a_run_that_no_stop_of_the_study_can_reach_is_told_to_go_on(
    working: Window, tmp_path: Path, children: list[FakeChild]
) -> None:
    assert working.session is not None
    study = working.session.study
    study.open(small_sweep(tmp_path).path)
    study.places = ("gpu1",)
    study.go_on()
    children[-1].said.emit(MemberGoesOn("s01-fp32", "gpu1"))
    study.stop()
    told = [entry.notice.text for entry in working.notices.entries()]
    assert told == ["s01-fp32 goes on at gpu1 to its end: the link was lost, so that it could not be stopped there."]
