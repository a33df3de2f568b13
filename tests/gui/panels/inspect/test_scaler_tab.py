"""Loss scale: sliders, policies side by side, Inf by a click, and the way into Run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import QPoint, Qt
from pytestqt.qtbot import QtBot

from precgui.cli.main import main
from precgui.config import OWN_LOOP, RunConfig, ScalingConfig, no_start
from precgui.events import StepDone
from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.panels.inspect.scaler.panel import ScalerTab, with_policy
from precgui.gui.panels.inspect.scaler.plots import min_max
from precgui.gui.session import Session
from tests.gui.conftest import write_run
from tests.gui.panels.inspect.conftest import lead_to_tabs
from tests.runs.synthetic import live_run, open_writer
from tests.runs.test_scaler_simulation import events

OWN = ScalingConfig(initial_scale=2.0**12, growth_interval=30)


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def tab(qtbot: QtBot, tmp_path: Path, session: Session) -> ScalerTab:
    with open_writer(tmp_path / "run.h5", RunConfig(precision="fp32", scaling=OWN)) as writer:
        for event in events((1, 20, 40), steps=40):
            writer(event)
    return shown(qtbot, session, session.runs.open_file(tmp_path / "run.h5"))


def shown(qtbot: QtBot, session: Session, key: str | None) -> ScalerTab:
    assert key is not None
    panel = InspectPanel(session)
    lead_to_tabs(panel, session)
    qtbot.addWidget(panel)
    panel.resize(1000, 700)
    panel.show()
    qtbot.waitExposed(panel)
    session.requests.inspect(key, "scaler")
    tab = panel.tab("scaler")
    assert isinstance(tab, ScalerTab)
    qtbot.waitUntil(lambda: bool(tab.simulations))
    tab.setProperty("panel", panel)  # so that it lives as long
    return tab


def test_that_the_first_policy_is_that_of_the_run_and_how_much_was_measured_is_said(tab: ScalerTab) -> None:
    first = tab.rows[0]
    assert (first.policy.initial_scale, first.policy.growth_interval) == (2.0**12, 30)
    assert first.interval.label.text() == "Interval 30"
    assert "40 steps" in first.result.text()
    assert "measured in 3 of 40 steps" in tab.basis.text()
    assert [told is not None for told in tab.simulations] == [True, False, False]


def test_that_a_moved_slider_is_redrawn(tab: ScalerTab, qtbot: QtBot) -> None:
    tab.rows[0].interval.set_value(10.0)
    qtbot.waitUntil(lambda: tab.plots.curves[0][0].getData()[1].max() > 14)
    x, y = tab.plots.curves[0][0].getData()
    assert (y[0], y[10], len(x)) == (12, 13, 40)


def test_that_policies_stand_side_by_side(tab: ScalerTab, qtbot: QtBot) -> None:
    assert not tab.rows[1].initial.isEnabled()
    for row in tab.rows[1:]:
        row.box.click()
    qtbot.waitUntil(lambda: all(told is not None for told in tab.simulations))
    assert all(row.result.text() for row in tab.rows)
    assert [len(curve.getData()[0]) for curve in tab.plots.curves[2]] == [40] * 3
    tab.rows[2].box.click()
    qtbot.waitUntil(lambda: tab.simulations[2] is None)
    assert tab.rows[2].result.text() == ""


def test_that_a_click_puts_inf_into_a_step_and_another_one_takes_it_out(tab: ScalerTab, qtbot: QtBot) -> None:
    plot = tab.plots.plots[1]
    view = plot.plotItem.vb
    middle = view.sceneBoundingRect().center()
    place = plot.mapFromScene(middle)
    step = round(view.mapSceneToView(middle).x())
    skipped = tab.simulations[0].skipped.sum()
    qtbot.mouseClick(plot.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(place))
    assert len(tab.injected) == 1
    assert abs(next(iter(tab.injected)) - step) <= 1
    assert tab.simulations[0].skipped.sum() == skipped + 1
    assert tab.clear.isEnabled()
    tab.clear.click()
    assert not tab.injected
    tab.toggle_inf(7)
    tab.toggle_inf(7)
    assert not tab.injected


def test_that_a_policy_goes_into_the_form_of_run(tab: ScalerTab, session: Session, qtbot: QtBot) -> None:
    tab.rows[1].initial.set_value(2.0**20)
    with qtbot.waitSignal(session.requests.settings) as wanted:
        tab.rows[1].use.click()
    config, source = wanted.args
    assert (config.scaling.initial_scale, config.scaling.mode, config.precision) == (2.0**20, "dynamic", "fp16-amp")
    assert source.endswith("policy B")


def test_that_a_precision_with_a_scaler_is_kept() -> None:
    config = RunConfig(precision="fp16-pure")
    assert with_policy(config, ScalingConfig(mode="dynamic", initial_scale=8)).precision == "fp16-pure"


def test_that_a_run_without_gradients_has_made_up_ones(qtbot: QtBot, session: Session, tmp_path: Path) -> None:
    tab = shown(qtbot, session, session.runs.open_file(write_run(tmp_path / "plain.h5")))
    assert not tab.source.isEnabled()
    assert "so they are made up" in tab.basis.text()
    assert "of 1000 steps" in tab.rows[0].result.text()


def test_that_an_own_loop_cannot_be_set_up_in_run(qtbot: QtBot, session: Session) -> None:
    key = session.runs.add(live_run(list(events((1, 5))), RunConfig(task=OWN_LOOP)))
    tab = shown(qtbot, session, key)
    assert not tab.rows[0].use.isEnabled()
    assert "loop of its own" in tab.rows[0].use.toolTip()


def test_that_no_peak_is_lost_where_not_every_point_is_drawn() -> None:
    values = np.zeros(50_001)
    values[31_415], values[100] = 7.0, -2.0
    x, y = min_max(np.arange(len(values)), values)
    assert len(x) == len(y) < 4000
    assert (y.max(), y.min()) == (7, -2)
    assert abs(x[y.argmax()] - 31_415) < 40


def test_that_the_recorded_scale_is_drawn_beside_the_policies(qtbot: QtBot, tmp_path: Path, session: Session) -> None:
    with open_writer(tmp_path / "run.h5", RunConfig(precision="fp32")) as writer:
        for event in events((1, 20, 40), steps=40):
            writer(replace(event, scale=2.0 ** (event.step // 10)) if isinstance(event, StepDone) else event)
    tab = shown(qtbot, session, session.runs.open_file(tmp_path / "run.h5"))
    steps, heights = tab.plots.recorded.getData()
    assert steps.tolist() == list(range(1, 41))
    assert heights.tolist() == [step // 10 for step in range(1, 41)]
    low, high = tab.plots.plots[1].plotItem.vb.viewRange()[1]
    assert -0.2 < low <= 0 and high >= 1  # no step was skipped: the axis of a count begins at zero
    tab.source.setCurrentIndex(1)
    tab.redraw()
    assert tab.plots.recorded.getData()[0] is None  # of other gradients


def test_that_a_recorded_loop_is_not_run_again_and_the_sentence_is_that_of_the_command_line(
    qtbot: QtBot, tmp_path: Path, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_writer(tmp_path / "own.h5", RunConfig(task=OWN_LOOP, precision="fp32")) as writer:
        for event in events((1, 20, 40), steps=40):
            writer(event)
    panel = shown(qtbot, session, session.runs.open_file(tmp_path / "own.h5")).property("panel")
    assert not panel.again_button.isEnabled()
    assert panel.again_button.toolTip() == f"{no_start('This run')}."
    assert main(["twin", str(tmp_path / "own.h5")]) == 2
    assert no_start(str(tmp_path / "own.h5")) in capsys.readouterr().err
