"""Compare > Groups: trade-off, curves, claims, differences, targets and the report, of a study and of open runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyqtgraph as pg
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import QDialogButtonBox
from pytestqt.qtbot import QtBot

from precgui.gui.open_run import Problem
from precgui.gui.panels.compare.groups import CLAIMS, CURVES, DIFFERENCES, MEMBERS, TRADE_OFF, GroupsView
from precgui.gui.panels.compare.panel import ComparePanel
from precgui.gui.plots.simple_plot import SimplePlot
from precgui.gui.session import Session
from precgui.sweeps.folder import SweepFolder, read_targets
from precgui.sweeps.study import NOT_PLANNED
from tests.gui.conftest import write_run
from tests.sweeps.sample_sweep import small_sweep, write_member


def _study(tmp_path: Path) -> SweepFolder:
    """bf16-amp is a point worse, needs half of the time and no more memory; int8-qat is emulated."""
    folder = small_sweep(tmp_path, seeds=5, precisions=("fp32", "bf16-amp", "int8-qat"))
    for member in folder.plan.members:
        worse = {"bf16-amp": 0.01, "int8-qat": 0.4}.get(member.precision, 0.0)
        accuracy = 0.9 - worse + 0.01 * (member.seed % 3)
        engine = {"memory": {"peak_bytes": 1000, "weights_bytes": 400 if member.precision == "fp32" else 800}}
        fast = 0.005 if member.precision == "bf16-amp" else 0.01
        write_member(
            folder, member, accuracy=accuracy, step_s=fast + 0.0001 * (member.seed % 2), engine=engine,
            emulated="products are rounded and computed in FP32" if member.precision == "int8-qat" else "",
        )  # fmt: skip
    return folder


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def view(qtbot: QtBot, session: Session, tmp_path: Path) -> GroupsView:
    view = GroupsView(session)
    qtbot.addWidget(view)
    view.resize(900, 700)
    view.show()
    session.study.open(_study(tmp_path).path)
    qtbot.waitUntil(lambda: view.report_content is not None)
    return view


def test_that_the_trade_off_says_who_is_dominated_and_who_is_left_out(view: GroupsView) -> None:
    view.view.choose(TRADE_OFF)
    plot = view.trade_off.plot
    assert plot.points == {"fp32": "no", "bf16-amp": "no"}
    assert "not measurable there: int8-qat" in view.trade_off.note.text()
    assert plot.places["fp32"] == ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
    (time, fast, slow), (accuracy, low, high) = plot.places["bf16-amp"]
    assert fast <= time <= slow and round(time, 1) == 0.5
    assert low <= accuracy <= high < 0 and round(accuracy, 1) == -1.0  # a point worse, paired by seed
    view.trade_off.cost.setCurrentIndex(view.trade_off.cost.findText("Model size (KiB)"))
    assert plot.points["bf16-amp"] == "surely"  # a point worse with every seed
    assert plot.points.keys() == {"fp32", "bf16-amp", "int8-qat"}
    view.trade_off.cost.setCurrentIndex(view.trade_off.cost.findText("Energy per sample (mJ)"))
    assert plot.empty.text() == "No group has been measured in both: energy per sample and the metric."
    view.trade_off.cost.setCurrentIndex(view.trade_off.cost.findText("Model size (KiB)"))
    bottom = plot.plotItem.getAxis("bottom")
    assert bottom.minimumHeight() > bottom.label.boundingRect().height() + plot.fontMetrics().height()  # name and ticks


def test_that_curves_are_bands_over_steps_or_time(view: GroupsView) -> None:
    view.view.choose(CURVES)
    plot = view.curves.plot
    assert [band.group for band in plot.bands] == ["fp32", "bf16-amp", "int8-qat"]
    left, right = plot.plotItem.vb.viewRange()[0]
    steps = plot.bands[0].x
    assert steps[0] - left < 0.05 * (steps[-1] - steps[0]) and right - steps[-1] < 0.05 * (steps[-1] - steps[0])
    title = plot.plotItem.getAxis("bottom").label
    shown = plot.mapFromScene(title.mapRectToScene(title.boundingRect())).boundingRect()
    assert plot.viewport().rect().contains(shown), "the title is not cut"
    view.curves.over.setCurrentIndex(view.curves.over.findData("cpu_s"))
    assert [band.group for band in plot.bands] == ["fp32", "bf16-amp"]
    assert "Not measurable here: int8-qat" in view.curves.note.text()
    before = len(plot.plotItem.items)
    view.curves.each_seed.setChecked(True)
    assert len(plot.plotItem.items) == before + 10
    view.curves.over.setCurrentIndex(view.curves.over.findData("joules"))
    assert plot.empty.text() == "No group has a curve over this: energy was not measured."


def test_that_claims_stand_beside_what_was_measured_and_can_be_narrowed(view: GroupsView) -> None:
    view.show_claims("bf16-amp")
    table = view.claims.table
    rows = table.texts()
    assert any("two to three times as fast" in row[1] for row in rows)
    assert {row[0] for row in rows} <= {"holds here", "does not hold here", "not decided here", "not tested here"}
    assert all(row[2] for row in rows)
    some = len(rows)
    view.show_claims()
    assert len(table.texts()) > some


def test_that_claims_can_be_read_before_any_study_is_open(qtbot: QtBot) -> None:
    panel = ComparePanel(Session())
    qtbot.addWidget(panel)
    panel.show()
    panel.show_tab("claims fp8")
    assert panel.groups.isVisible()
    assert not panel.groups.is_empty
    assert panel.groups.view.current == CLAIMS
    assert panel.groups.claims.precision.currentText() == "fp8"
    assert panel.groups.claims.table.texts()[0][2] == "no study is open"


def test_that_other_targets_judge_the_study_again_and_are_kept(
    session: Session, qtbot: QtBot, view: GroupsView
) -> None:
    def speed_up() -> str:
        rows = view.figures.verdicts.texts()
        return next(word for group, target, word, _ in rows if (group, target) == ("bf16-amp", "Speed-up"))

    assert speed_up().startswith(("missed", "undecided"))
    dialog = view.ask_for_targets()
    assert dialog is not None
    dialog.bounds["speedup"].setText("1.5")
    dialog.buttons.button(QDialogButtonBox.StandardButton.Ok).click()
    qtbot.waitUntil(lambda: speed_up() == "met")
    assert session.study.folder is not None
    assert read_targets(session.study.folder).speedup == 1.5


def test_that_the_report_is_written_and_no_file_overwritten(
    session: Session, qtbot: QtBot, view: GroupsView, tmp_path: Path
) -> None:
    assert view.report.isEnabled()
    for kind, name, begin in (
        ("html", "report.html", "<!DOCTYPE html>"), ("markdown", "report.md", "# "), ("csv", "table.csv", "group,"),
    ):  # fmt: skip
        with qtbot.waitSignal(session.notice) as caught:
            view.report.write(kind, tmp_path / name)
        problem: Problem = caught.args[0]
        assert problem.severity == "info"
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(begin)
    with qtbot.waitSignal(session.notice) as caught:
        view.report.write("html", tmp_path / "report.html")
    assert "already exists" in caught.args[0].message
    assert "precgui sweep" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_that_open_runs_are_grouped_by_their_settings(session: Session, qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    panel.show_tab("groups")
    assert panel.groups.is_empty
    for precision in ("fp32", "bf16-amp"):
        session.runs.open_file(write_run(tmp_path / f"{precision}.h5", f"in {precision}", precision))
    view = panel.groups
    qtbot.waitUntil(lambda: view.report_content is not None and len(view.report_content.columns) == 2)
    assert view.source.currentText() == "Open runs (2), grouped by their settings"
    assert view.figures.table.texts()[0][0] == "fp32 (baseline)"
    assert "not planned as a study" in view.figures.fold.note.text()
    view.view.choose(DIFFERENCES)
    assert view.differences.table.texts()[0][1] == "precision"


def test_that_the_differences_of_open_runs_have_a_view_of_their_own(
    session: Session, qtbot: QtBot, tmp_path: Path
) -> None:
    session = Session()
    panel = ComparePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    for precision in ("fp32", "bf16-amp"):
        session.runs.open_file(write_run(tmp_path / f"{precision}.h5", f"in {precision}", precision))
    panel.show_tab("differences")
    table = panel.differences.table
    assert table.titles() == ("Part", "Fact", "in fp32", "in bf16-amp")
    assert table.texts()[0] == ("settings", "precision", "fp32", "bf16-amp")


class _NarrowPlot(SimplePlot):
    """Values that differ in their eighth place only."""

    def draw(self) -> str:
        self.plotItem.addItem(pg.PlotCurveItem([0.0, 1.0], [0.9999999, 0.99999995]))
        return ""


def test_that_the_value_axis_has_room_for_the_texts_of_values_close_to_each_other(qtbot: QtBot) -> None:
    plot = _NarrowPlot("narrow")
    qtbot.addWidget(plot)
    plot.resize(600, 400)
    plot.redraw()
    plot.show()
    text_px = QFontMetrics(plot.font()).horizontalAdvance("0.99999990")
    qtbot.waitUntil(lambda: not plot.grab().isNull() and plot.getAxis("left").width() > text_px)


def test_that_single_runs_decide_nothing_and_a_button_sets_up_the_seeds_that_would(
    qtbot: QtBot, tmp_path: Path
) -> None:
    session = Session()
    view = GroupsView(session)
    qtbot.addWidget(view)
    view.show()
    for precision in ("fp32", "bf16-amp"):
        session.runs.open_file(write_run(tmp_path / f"{precision}.h5", f"in {precision}", precision))
    qtbot.waitUntil(lambda: view.report_content is not None and len(view.report_content.columns) == 2)
    assert view.answer.text().startswith("Not decided: one seed of each")
    assert "met" not in {row[2] for row in view.figures.verdicts.texts()}
    assert view.more_seeds.isVisible() and view.more_seeds.text() == "Run 5 seeds..."
    with qtbot.waitSignal(session.requests.study) as asked, qtbot.waitSignal(session.requests.settings):
        view.more_seeds.click()
    assert asked.args == [["fp32", "bf16-amp"], 5, {}]


def test_that_a_study_that_is_not_decided_runs_more_seeds(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_sweep(tmp_path, seeds=2)
    for member in folder.plan.members:
        write_member(folder, member)
    session = Session()
    began: list[bool] = []
    monkeypatch.setattr(session.study, "go_on", lambda: began.append(True))
    view = GroupsView(session)
    qtbot.addWidget(view)
    view.show()
    session.study.open(folder.path)
    qtbot.waitUntil(lambda: view.report_content is not None and view.more_seeds.isVisible())
    assert view.more_seeds.text() == "Run 3 seeds more"
    assert view.answer_lines.text().startswith("bf16-amp beside fp32:") and not view.answer_lines.isVisible()
    qtbot.mouseClick(view.fold, Qt.MouseButton.LeftButton)
    assert view.answer_lines.isVisible()
    with qtbot.waitSignal(session.requests.place):
        view.more_seeds.click()
    qtbot.waitUntil(lambda: len(SweepFolder(folder.path).plan.seeds) == 5)
    assert began == [True]


def test_that_members_stand_in_the_window_with_the_reason_of_each_that_is_left_out(
    qtbot: QtBot, tmp_path: Path
) -> None:
    folder = small_sweep(tmp_path, seeds=2)
    for member in folder.plan.members:
        write_member(folder, member)
    paths = {member.name: folder.path_of(member) for member in folder.plan.members}
    shutil.copyfile(paths["s01-fp32"], paths["s02-fp32"])
    session = Session()
    view = GroupsView(session)
    qtbot.addWidget(view)
    view.show()
    session.study.open(folder.path)
    qtbot.waitUntil(lambda: view.report_content is not None)
    view.view.choose(MEMBERS)
    rows = [[row[column] for column in (0, 4, 5)] for row in view.members.texts()]
    assert [
        "s02-fp32",
        "left out",
        f"{NOT_PLANNED}: its seed is 0 and not 1",
    ] in rows
    assert "(s02-fp32: its seed is 0 and not 1)." in view.figures.fold.note.text()
