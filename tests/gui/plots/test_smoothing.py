"""Smoothed curves: the mean is right, says that it is one, and leaves what was recorded in sight."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from precgui.gui.plots.curve_chart import CurveChart
from precgui.gui.plots.linked import LinkedPlots
from precgui.gui.plots.smoothing import trailing_mean
from precgui.gui.theme import themes
from tests.gui.plotted import Show, first_steps, items, opened, training_run

LOSS, SCALE = 0, 1


def by_hand(values: np.ndarray, points: int) -> list[float]:
    windows = [values[max(0, i - points + 1) : i + 1] for i in range(len(values))]
    return [float(np.mean(part[np.isfinite(part)])) if np.isfinite(part[-1]) else np.nan for part in windows]


@pytest.mark.parametrize("points", [1, 2, 5, 20])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 63])
def test_that_the_mean_is_that_of_the_last_points(points: int, count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    values[3:5] = np.nan
    values[30:31] = np.inf
    assert np.allclose(trailing_mean(values, points), by_hand(values, points), equal_nan=True)


def test_that_one_huge_value_spoils_no_mean_behind_it() -> None:
    values = np.concatenate([[1e30], np.full(50, 0.125)])
    assert trailing_mean(values, 5)[5:].tolist() == [0.125] * 46


def loss_of(plots: LinkedPlots) -> CurveChart:
    chart = plots.frames[LOSS].chart
    assert isinstance(chart, CurveChart)
    return chart


def test_that_a_smoothed_curve_says_so_and_keeps_what_was_recorded(show: Show) -> None:
    run = training_run("a", 400)
    plots = show(opened(run))
    plots.set_smoothing(20)
    plots.draw_pending()
    line, mean = (items(loss_of(plots), kind, "a")[0] for kind in ("line", "mean"))
    assert "mean of the last 20 points; faint: all steps drawn" in loss_of(plots).note
    assert np.array_equal(line.getData()[1], run.values["loss"])
    assert np.allclose(mean.getData()[1], by_hand(run.values["loss"], 20))
    assert line.opts["pen"].color().alphaF() < 0.5 < mean.opts["pen"].color().alphaF()
    plots.crosshair.put(300.0)
    told = loss_of(plots).readout.text()
    assert f"{run.values['loss'][299]:.7g}" in told
    assert "mean of 20" in told
    assert "smoothed" not in plots.frames[SCALE].chart.note, "a loss scale has no noise"


def test_that_a_run_that_grows_is_smoothed_as_if_it_had_come_at_once(show: Show) -> None:
    run = training_run("a", 400, status="running")
    whole = run.values
    run.values = first_steps(whole, 150)
    plots = show(opened(run))
    plots.set_smoothing(100)
    for count in (151, 210, 400):
        run.values = first_steps(whole, count)
        plots.data_arrived()
        plots.draw_pending()
    mean = items(loss_of(plots), "mean", "a")[0]
    assert np.allclose(mean.getData()[1], by_hand(whole["loss"], 100))


def test_that_curves_are_raw_again_when_smoothing_ends(show: Show) -> None:
    plots = show(opened(training_run("a", 400)))
    plots.set_smoothing(5)
    plots.draw_pending()
    plots.set_smoothing(1)
    plots.draw_pending()
    line = items(loss_of(plots), "line", "a")[0]
    assert not items(loss_of(plots), "mean", "a")
    assert line.opts["pen"].color().alphaF() == 1.0
    assert loss_of(plots).note.startswith("all steps drawn")


def test_that_tab_reaches_every_plot_and_its_frame_is_seen(show: Show, qtbot: QtBot) -> None:
    plots = show(opened(training_run("a", 400)))
    themes().dress(plots)
    with qtbot.waitActive(plots):
        plots.activateWindow()
    plots.frames[0].chooser.setFocus()
    reached = set()
    for _ in range(30):
        focus = QApplication.focusWidget()
        assert focus is not None
        reached.add(focus)
        qtbot.keyClick(focus, Qt.Key.Key_Tab)
    charts = {frame.chart for frame in plots.frames if frame.body.currentWidget() is frame.chart}
    assert charts <= reached
    chart = plots.frames[0].chart
    calm = chart.grab().toImage().pixelColor(0, chart.height() // 2)
    chart.setFocus()
    assert chart.grab().toImage().pixelColor(0, chart.height() // 2) != calm
    qtbot.keyClick(chart, Qt.Key.Key_Right, Qt.KeyboardModifier.ShiftModifier)
    assert plots.crosshair.place is not None, "the keys of the plots work from the plot that has the focus"
