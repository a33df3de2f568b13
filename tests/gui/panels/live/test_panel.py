"""The Live panel: whatever runs are open in the state, with their list and the view's controls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from precgui.config import RunConfig
from precgui.events import Evaluated, Facts, Incident, RunEnded, RunStarted, StepDone
from precgui.gui.open_run import OpenRun, Problem
from precgui.gui.panels.live.panel import LivePanel
from precgui.gui.panels.live.run_list import DETAIL
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.runs.caveats import cost_above_budget
from precgui.runs.live import LiveRun
from tests.gui.plotted import ArrayRun, items, training_run

Add = Callable[..., str]
pytestmark = pytest.mark.qt_log_ignore("does not support propagateSizeHints")  # of the offscreen platform


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def add(session: Session) -> Add:
    """Open a run in the state as the window does."""

    def open_run(run: ArrayRun | LiveRun, name: str = "") -> str:
        index = len(session.runs)
        session.runs.put(OpenRun(run.run_id, run, name or run.title, index % 7, index % 4))
        return run.run_id

    return open_run


@pytest.fixture
def panel(qtbot: QtBot, session: Session) -> LivePanel:
    made = LivePanel(session)
    made.resize(1100, 760)
    qtbot.addWidget(made)
    return made


def step(index: int, loss: float) -> StepDone:
    return StepDone(index, index * 0.01, loss, 65536.0, False, 0.05, 1.0, 0.009, 0.001, 64, float("nan"))


def live_run() -> LiveRun:
    run = LiveRun(RunConfig(), run_id="live", created="2026-01-01T00:00:00+00:00", machine={}, environment={})
    run.extend([RunStarted(0.0, 200, 50, "cpu")])
    return run


def item(panel: LivePanel, key: str):
    tree = panel.run_list.tree
    rows = [tree.topLevelItem(row) for row in range(tree.topLevelItemCount())]
    (found,) = [row for row in rows if row.data(0, Qt.ItemDataRole.UserRole) == key]
    return found


def lines(panel: LivePanel, key: str, plot: int = 0) -> list[Any]:
    return items(panel.plots.frames[plot].chart, "line", key)


def test_that_an_empty_window_says_the_next_thing_to_do(panel: LivePanel, session: Session, qtbot: QtBot) -> None:
    assert panel.is_empty
    assert "press Start (Ctrl+R), or open a file" in panel.empty.text.text()
    with qtbot.waitSignal(session.requests.place) as wanted:
        panel.empty.button.click()
    assert wanted.args == ["setup"]


def test_that_steps_of_a_live_run_appear_in_the_plots_and_none_is_lost(
    panel: LivePanel, session: Session, add: Add, qtbot: QtBot
) -> None:
    run = live_run()
    add(run)
    panel.show_content(True)
    panel.plots.frames[0].log_button.setChecked(False)
    rng = np.random.default_rng(0)
    losses = rng.random(120)
    for start in range(0, 120, 7):
        run.extend([step(i + 1, float(losses[i])) for i in range(start, min(start + 7, 120))])
        panel.plots.data_arrived()
        panel.plots.draw_pending()
    run.extend([Evaluated(50, 1, 0.5, 0.4, 0.9), RunEnded(1.3, "completed")])
    session.runs.changed.emit("live")
    panel.plots.draw_pending()
    loss, validation = lines(panel, "live")
    x, y = loss.getData()
    np.testing.assert_array_equal(x, np.arange(1, 121))
    np.testing.assert_array_equal(y, losses)
    assert validation.getData()[1].tolist() == [0.4]
    assert item(panel, "live").data(0, DETAIL).startswith("completed · loss ")


def test_that_data_reach_the_plots_on_their_own_while_the_panel_is_shown(
    panel: LivePanel, session: Session, add: Add, qtbot: QtBot
) -> None:
    run = live_run()
    add(run)
    panel.show()
    qtbot.waitExposed(panel)
    run.extend([step(i, 1.0 / i) for i in range(1, 41)])
    session.runs.data_arrived.emit("live")
    qtbot.waitUntil(lambda: any(len(line.getData()[0]) == 40 for line in lines(panel, "live")))
    qtbot.waitUntil(lambda: "loss 0.025" in item(panel, "live").data(0, DETAIL))
    assert panel.view_text.text() == "Following"


def test_that_the_list_tells_status_loss_and_how_often_it_was_not_finite(panel: LivePanel, add: Add) -> None:
    run = training_run("a", 300)
    run.values["loss"][10:13] = np.nan
    run.values["loss"][20] = np.inf
    add(run, "mine")
    assert item(panel, "a").text(0) == "mine"
    assert item(panel, "a").data(0, DETAIL) == f"completed · loss {run.values['loss'][-1]:.4g} · 3 NaN, 1 Inf"


def test_that_jump_to_first_shows_the_first_nan(panel: LivePanel, add: Add) -> None:
    run = training_run("a", 5000)
    run.values["loss"][3210] = np.nan
    add(run)
    panel.run_list.tree.setCurrentItem(panel.run_list.tree.topLevelItem(0))
    assert panel.run_list.jump_button.isEnabled()
    panel.run_list.jump_button.click()
    low, high = panel.plots.x_range
    assert low < 3211 < high and high - low <= 100
    assert panel.view_text.text() == "Zoomed"
    panel.follow_button.click()
    assert panel.plots.following and panel.view_text.text() == ""


def test_that_a_run_without_nan_offers_no_jump(panel: LivePanel, add: Add) -> None:
    add(training_run("a", 100))
    assert not panel.run_list.jump_button.isEnabled()


def test_that_pause_says_where_it_stands_and_goes_on(panel: LivePanel, add: Add, qtbot: QtBot) -> None:
    add(training_run("a", 1234))
    panel.pause_button.click()
    assert panel.plots.paused and panel.view_text.text() == "Frozen at step 1\u2009234"
    qtbot.keyClick(panel.plots, Qt.Key.Key_Space)
    assert not panel.plots.paused and not panel.pause_button.isChecked()


def test_that_the_check_box_hides_a_run_in_all_plots(panel: LivePanel, session: Session, add: Add) -> None:
    for key in "ab":
        add(training_run(key, 200))
    panel.plots.draw_pending()
    item(panel, "a").setCheckState(0, Qt.CheckState.Unchecked)
    assert not session.runs["a"].visible
    for plot in (0, 1):
        assert not lines(panel, "a", plot)[0].isVisible()
        assert lines(panel, "b", plot)[0].isVisible()


def test_that_a_run_is_renamed_in_the_list(panel: LivePanel, session: Session, add: Add) -> None:
    add(training_run("a", 100))
    item(panel, "a").setText(0, "  the   good one ")
    assert session.runs["a"].name == "the good one"
    item(panel, "a").setText(0, "   ")
    assert session.runs["a"].name == item(panel, "a").text(0) == "the good one"


def test_that_the_colour_of_a_run_can_be_changed(panel: LivePanel, session: Session, add: Add) -> None:
    add(training_run("a", 100))
    panel.run_list.tree.setCurrentItem(panel.run_list.tree.topLevelItem(0))
    menu = panel.run_list.colour_button.menu()
    menu.aboutToShow.emit()
    assert len(menu.actions()) == len(themes().theme.runs)
    menu.actions()[3].trigger()
    assert session.runs["a"].colour_index == 3
    panel.plots.draw_pending()
    pen = lines(panel, "a")[0].opts["pen"]
    assert pen.color().name() == themes().theme.runs[3]


def test_that_closing_a_run_takes_it_out_of_plots_and_list(panel: LivePanel, session: Session, add: Add) -> None:
    for key in "ab":
        add(training_run(key, 100))
    panel.run_list.tree.setCurrentItem(item(panel, "a"))
    panel.run_list.close_button.click()
    assert list(session.runs) == ["b"] and not lines(panel, "a")
    panel.run_list.close_button.click()
    assert panel.is_empty


def test_that_long_names_are_elided_and_told_in_full_on_hover(panel: LivePanel, add: Add, qtbot: QtBot) -> None:
    name = "a run whose name goes on and on until nobody can read it any more " * 3
    add(training_run("a", 100), name)
    panel.show()
    qtbot.waitExposed(panel)
    assert panel.run_list.tree.horizontalScrollBar().maximum() == 0
    assert item(panel, "a").toolTip(0).startswith(name)


def test_that_runs_that_were_open_before_the_panel_are_shown(qtbot: QtBot, session: Session, add: Add) -> None:
    add(training_run("a", 100))
    panel = LivePanel(session)
    qtbot.addWidget(panel)
    panel.plots.draw_pending()
    assert lines(panel, "a")
    assert panel.run_list.tree.topLevelItemCount() == 1


def test_that_a_plot_that_cannot_be_saved_becomes_a_notice(
    panel: LivePanel, session: Session, add: Add, qtbot: QtBot, tmp_path
) -> None:
    add(training_run("a", 100))
    frame = panel.plots.frames[0]
    with qtbot.waitSignal(session.notice) as told:
        frame.saver.save(frame.chart, "svg", tmp_path / "missing" / "loss.svg")
    assert isinstance(told.args[0], Problem) and "not saved" in told.args[0].message


def test_that_events_of_a_live_run_reach_the_time_line(panel: LivePanel, add: Add) -> None:
    run = live_run()
    add(run)
    run.extend([step(i, 0.1) for i in range(1, 11)])
    run.extend([Incident(0.05, 5, "skipped_step", "info", "Gradients held Inf; the step was skipped.")])
    panel.plots.data_arrived()
    panel.plots.draw_pending()
    (skipped,) = items(panel.plots.frames[3].chart, "Skipped step", "live")
    x, _ = skipped.getData()
    assert x.tolist() == [5.0]


def test_that_every_control_can_be_reached_by_tab_and_has_a_name(panel: LivePanel, add: Add) -> None:
    add(training_run("a", 100))
    controls = [panel.pause_button, panel.follow_button, panel.fit_button, panel.axis_choice, panel.run_list.tree]
    controls += [part for frame in panel.plots.frames for part in (frame.chooser, frame.log_button, frame.save_button)]
    for control in controls:
        assert control.focusPolicy() & Qt.FocusPolicy.TabFocus
        assert control.accessibleName() or control.text()  # type: ignore[attr-defined]


def test_that_a_click_into_a_plot_gives_it_the_keys(panel: LivePanel, add: Add, qtbot: QtBot) -> None:
    add(training_run("a", 1000))
    panel.show()
    qtbot.waitExposed(panel)
    panel.activateWindow()
    chart = panel.plots.frames[2].chart
    qtbot.mouseClick(chart.viewport(), Qt.MouseButton.LeftButton)
    qtbot.waitUntil(chart.hasFocus)
    qtbot.keyClick(chart, Qt.Key.Key_Space)
    assert panel.plots.paused


def test_that_a_new_run_brings_the_whole_picture_back(panel: LivePanel, add: Add) -> None:
    add(training_run("a", 1000))
    panel.plots.show_range(10, 20)
    add(training_run("b", 2000))
    assert panel.plots.following and panel.plots.x_range[1] > 2000


def test_that_emulated_arithmetic_is_told_also_of_a_run_that_began_unseen(
    panel: LivePanel, session: Session, add: Add, qtbot: QtBot
) -> None:
    run = live_run()
    add(run, "mine")
    run.extend([Incident(0.0, 0, "emulated", "info", "FP16 is emulated in 4 layers")])
    assert panel.caveat.isHidden()
    panel.show()
    qtbot.waitExposed(panel)
    assert panel.caveat.isVisible()
    assert panel.caveat.text.text().startswith("mine: FP16 is emulated in 4 layers.")
    session.runs.set_visible("live", False)
    assert panel.caveat.isHidden()


def test_that_the_keys_are_asked_for_where_the_plots_are(panel: LivePanel, session: Session, qtbot: QtBot) -> None:
    with qtbot.waitSignal(session.requests.shortcuts):
        panel.keys_button.click()


def test_that_emulation_that_begins_late_in_a_run_is_told(
    qtbot: QtBot, session: Session, panel: LivePanel, add: Add
) -> None:
    run = live_run()
    panel.show()
    key = add(run)
    run.extend([step(number, 1.0) for number in range(1, 120)])
    session.runs.data_arrived.emit(key)
    assert not panel.caveat.isVisible()
    run.extend([Incident(1.2, 119, "emulated", "info", "four layers train on integers from here")])
    session.runs.data_arrived.emit(key)
    qtbot.waitUntil(panel.caveat.isVisible)
    assert "Four layers train on integers from here" in panel.caveat.text.text()


def test_that_what_a_record_has_cost_is_no_warning_over_the_plots(panel: LivePanel, add: Add, qtbot: QtBot) -> None:
    run = live_run()
    add(run, "mine")
    run.extend([Facts(1.0, {"record": {"cost_share": 0.14}})])
    panel.show()
    qtbot.waitExposed(panel)
    assert cost_above_budget(run) and panel.caveat.isHidden()
