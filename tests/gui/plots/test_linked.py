"""The linked plots: what is drawn is what was recorded, and a person can steer the view."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PySide6.QtCore import QRectF, Qt, QTimer
from PySide6.QtGui import QColor
from pytestqt.qtbot import QtBot

from precgui.events import Incident
from precgui.gui.plots import linked
from precgui.gui.plots.curve_chart import CurveChart
from precgui.gui.plots.linked import LinkedPlots
from precgui.gui.theme import themes
from tests.gui.plotted import ArrayRun, Show, first_steps, items, opened, training_run
from tests.gui.theme_changes import change_theme

LOSS, SCALE, EVENTS, POWER = range(4)


def lines(plots: LinkedPlots, frame: int, key: str = "run") -> list[Any]:
    return items(plots.frames[frame].chart, "line", key)


def drawn(plots: LinkedPlots, frame: int, key: str = "run") -> tuple[np.ndarray, np.ndarray]:
    return lines(plots, frame, key)[0].getData()


def test_that_points_drawn_equal_points_recorded(show: Show) -> None:
    run = training_run("run", 500)
    plots = show(opened(run))
    x, y = drawn(plots, LOSS)
    np.testing.assert_array_equal(x, run.steps)
    np.testing.assert_array_equal(y, run.values["loss"])
    x, y = drawn(plots, SCALE)
    np.testing.assert_array_equal(y, np.log2(run.values["scale"]))
    assert plots.frames[LOSS].note.text().startswith("all steps drawn")


def test_that_the_validation_loss_is_drawn_with_dots_beside_the_loss(show: Show) -> None:
    run = training_run("run", 500)
    plots = show(opened(run))
    (dots,) = items(plots.frames[LOSS].chart, "dots")
    x, y = dots.getData()
    np.testing.assert_array_equal(x, np.arange(1, 11) * 50)
    np.testing.assert_array_equal(y, run.values["val_loss"])


def test_that_a_million_points_are_decimated_and_keep_every_extreme(show: Show) -> None:
    run = training_run("run", 1_000_000)
    run.values["loss"][654_321] = 7.5
    plots = show(opened(run))
    x, y = drawn(plots, LOSS)
    assert len(x) < 5 * plots.frames[LOSS].chart.width_px()
    assert np.nanmax(y) == 7.5
    assert np.nanmin(y) == run.values["loss"].min()
    assert plots.frames[LOSS].note.text().startswith("least and largest of each pixel drawn")
    plots.show_range(654_000, 654_700)
    plots.draw_pending()
    x, y = drawn(plots, LOSS)
    inside = (x >= 654_000) & (x <= 654_700)
    np.testing.assert_array_equal(y[inside], run.values["loss"][653_999:654_700])
    assert plots.frames[LOSS].note.text().startswith("all steps drawn")


def test_that_loss_scale_ticks_are_powers_of_two(show: Show) -> None:
    plots = show(opened(training_run("run", 900)))
    axis = plots.frames[SCALE].chart.value_axis
    (spacing, values), *_ = axis.tickValues(*axis.range, 200)  # type: ignore[call-arg]
    assert set(axis.tickStrings(values, 1.0, spacing)) >= {"2¹⁶", "2¹⁷", "2¹⁸"}


def test_that_runs_are_overlaid_each_with_its_colour_and_dash(show: Show) -> None:
    runs = [opened(training_run(name, 200, seed), seed) for seed, name in enumerate("abc")]
    plots = show(*runs)
    pens = [lines(plots, LOSS, name)[0].opts["pen"] for name in "abc"]
    assert len({(pen.color().name(), tuple(pen.dashPattern())) for pen in pens}) == 3
    runs[1].visible = False
    plots.set_runs(runs)
    plots.draw_pending()
    assert [lines(plots, LOSS, name)[0].isVisible() for name in "abc"] == [True, False, True]
    plots.set_runs(runs[:1])
    assert [bool(lines(plots, LOSS, name)) for name in "abc"] == [True, False, False]


def test_that_a_theme_change_recolours_the_plots(show: Show, qtbot: QtBot) -> None:
    plots = show(opened(training_run("run", 100)))
    plots.crosshair.put(7.0)
    for mode in ("dark", "light"):
        change_theme(qtbot, mode)
        theme, chart = themes().theme, plots.frames[LOSS].chart
        assert chart.backgroundBrush().color() == QColor(theme.base)
        assert lines(plots, LOSS)[0].opts["pen"].color() == QColor(theme.runs[0])
        assert chart.value_axis.textPen().color() == QColor(theme.muted)
        assert theme.runs[0] in chart.readout.text()


def test_that_a_plot_that_is_alone_has_all_of_the_width(show: Show, qtbot: QtBot) -> None:
    plots = show(opened(training_run("run", 100)))
    plots.resize(1600, 800)
    loss = plots.frames[LOSS]
    for shown, is_wide in ((plots.frames, False), ([loss], True), (plots.frames, False)):
        plots.show_frames(shown)
        qtbot.waitUntil(lambda is_wide=is_wide: (loss.width() > 1400) == is_wide)


def test_that_the_cursor_shows_the_exact_recorded_values_in_every_plot(show: Show) -> None:
    run = training_run("run", 1_000_000, power={"GPU 0": (np.arange(0.0, 10_000.0, 10.0), np.full(1000, 212.25))})
    plots = show(opened(run))
    loss = plots.frames[LOSS].chart
    loss.hovered.emit(345_678.4)
    plots.crosshair.show_pointed()
    assert plots.frames[LOSS].chart.cursor_line.value() == 345_678
    assert all(frame.chart.cursor_line.isVisible() for frame in plots.frames)
    assert f"{run.values['loss'][345_677]:.7g}" in loss.readout.text()
    assert "345\u2009678" in loss.readout.text()
    assert "212.25 W" in plots.frames[POWER].chart.readout.text()
    assert "= 2" in plots.frames[SCALE].chart.readout.text()
    loss.left.emit()
    assert not loss.readout.isVisible()


def test_that_the_readout_says_nan_where_the_loss_is_nan(show: Show) -> None:
    run = training_run("run", 200)
    run.values["loss"][99] = np.nan
    plots = show(opened(run))
    plots.jump_to(100.0)
    assert "NaN" in plots.frames[LOSS].chart.readout.text()


def test_that_the_readout_goes_with_its_run(show: Show) -> None:
    first, second = (opened(training_run(name, 40)) for name in ("first", "second"))
    plots = show(first, second)
    plots.jump_to(7.0)
    chart = plots.frames[LOSS].chart
    plots.set_runs([first, second])
    assert chart.readout.isVisible() and chart.cursor_line.isVisible()
    plots.set_runs([second])
    assert not chart.readout.isVisible() and not chart.cursor_line.isVisible()


def test_that_a_jump_shows_no_empty_room_before_the_first_step_or_behind_the_last(show: Show) -> None:
    plots = show(opened(training_run("run", 40)))
    plots.jump_to(2.0)
    low, high = plots.x_range
    assert low == 0
    assert 40 <= high <= 42


def test_that_a_long_message_of_an_event_is_cut_at_its_end_and_stays_in_the_plot(show: Show) -> None:
    run = training_run("run", 400)
    run.incidents = [
        Incident(0.5, 50, "snapshot", "info", "batch, weights and random state are kept in " + 40 * "name ")
    ]
    plots = show(opened(run))
    plots.jump_to(50.0)
    chart = plots.frames[EVENTS].chart
    assert "snapshot: batch, weights" in chart.readout.text()
    assert "…" in chart.readout.text()
    assert chart.readout.x() >= chart.view.sceneBoundingRect().left()


def test_that_new_points_appear_and_the_range_grows_in_steps_of_a_tenth(show: Show) -> None:
    run = training_run("run", 1000)
    whole = dict(run.values)
    run.values = first_steps(whole, 500)
    run.status, run.total_steps = "running", 100_000
    plots = show(opened(run))
    first = plots.x_range
    assert first == (pytest.approx(-5.5), pytest.approx(550.0))
    run.values = first_steps(whole, 540)
    plots.data_arrived()
    plots.draw_pending()
    assert plots.x_range == first
    np.testing.assert_array_equal(drawn(plots, LOSS)[1], whole["loss"][:540])
    run.values = first_steps(whole, 600)
    plots.data_arrived()
    plots.draw_pending()
    assert plots.x_range == (pytest.approx(-6.6), pytest.approx(660.0))


def test_that_the_range_never_grows_beyond_the_planned_steps(show: Show) -> None:
    run = training_run("run", 1000)
    run.status, run.total_steps = "running", 1050
    assert show(opened(run)).x_range[1] == 1050.0


def test_that_pause_freezes_the_picture_while_data_go_on(show: Show) -> None:
    run = training_run("run", 1000)
    whole = dict(run.values)
    run.values = first_steps(whole, 500)
    run.status = "running"
    plots = show(opened(run))
    plots.set_paused(True)
    assert plots.paused_at == 500
    run.values = whole
    plots.data_arrived()
    plots.draw_pending()
    assert len(drawn(plots, LOSS)[0]) == 500
    plots.set_paused(False)
    plots.draw_pending()
    assert len(drawn(plots, LOSS)[0]) == 1000


def test_that_zooming_one_plot_moves_all_and_follow_brings_the_whole_back(show: Show) -> None:
    plots = show(opened(training_run("run", 1000)))
    whole = plots.x_range
    view = plots.frames[LOSS].chart.view
    view.zoom_to(QRectF(100, 5, 200, 60))
    plots.draw_pending()
    ranges = {frame.chart.x_range() for frame in plots.frames}
    assert ranges == {plots.x_range} and plots.x_range != whole
    assert not plots.following
    low, high = view.viewRange()[1]
    plots.refresh()
    plots.draw_pending()
    assert view.viewRange()[1] == [low, high]
    plots.follow()
    plots.draw_pending()
    assert plots.following and plots.x_range == whole
    assert view.viewRange()[1][1] > run_maximum(plots)


def run_maximum(plots: LinkedPlots) -> float:
    return float(np.nanmax(drawn(plots, LOSS)[1]))


def test_that_keys_zoom_pan_pause_and_follow(show: Show, qtbot: QtBot) -> None:
    plots = show(opened(training_run("run", 1000)))
    low, high = plots.x_range
    qtbot.keyClick(plots, Qt.Key.Key_Plus)
    assert plots.x_range[1] - plots.x_range[0] == pytest.approx((high - low) / 1.25)
    before = plots.x_range
    qtbot.keyClick(plots, Qt.Key.Key_Right)
    assert plots.x_range[0] > before[0]
    qtbot.keyClick(plots, Qt.Key.Key_F)
    assert plots.x_range == (low, high)
    qtbot.keyClick(plots, Qt.Key.Key_Space)
    assert plots.paused
    qtbot.keyClick(plots, Qt.Key.Key_Right, Qt.KeyboardModifier.ShiftModifier)
    first = plots.frames[LOSS].chart.cursor_line.value()
    qtbot.keyClick(plots, Qt.Key.Key_Right, Qt.KeyboardModifier.ShiftModifier)
    assert plots.frames[LOSS].chart.cursor_line.value() == first + 1


def test_that_the_x_axis_can_be_time(show: Show) -> None:
    run = training_run("run", 300)
    plots = show(opened(run))
    plots.set_over("time_s")
    plots.draw_pending()
    np.testing.assert_array_equal(drawn(plots, LOSS)[0], run.steps * 0.01)
    assert plots.x_range[1] == pytest.approx(3.0, rel=0.02)


def test_that_a_value_axis_can_be_logarithmic(show: Show) -> None:
    run = training_run("run", 300)
    run.values["loss"][10] = 0.0
    plots = show(opened(run))
    plots.frames[LOSS].log_button.click()
    plots.draw_pending()
    x, y = drawn(plots, LOSS)
    np.testing.assert_allclose(y[x != 11], np.log10(np.delete(run.values["loss"], 10)))
    assert np.isnan(y[x == 11]).all()


def test_that_unmeasured_memory_is_said_and_not_plotted(show: Show) -> None:
    plots = show(opened(training_run("run", 100)))
    frame = plots.frames[LOSS]
    frame.chooser.setCurrentIndex(frame.chooser.findData("memory"))
    plots.draw_pending()
    assert frame.body.currentWidget() is frame.message
    assert "not measured" in frame.message.text()


def test_that_the_chooser_swaps_signals_with_their_own_axis(show: Show) -> None:
    run = training_run("run", 500)
    plots = show(opened(run))
    frame = plots.frames[LOSS]
    for key, name, factor in (("step_time", "step_s", 1e3), ("lr", "lr", 1.0), ("throughput", "samples_per_s", 1.0)):
        frame.show_signal(key)
        plots.draw_pending()
        np.testing.assert_allclose(drawn(plots, LOSS)[1], run.values[name] * factor)
    frame.show_signal("grad_norm")
    assert frame.log_button.isChecked()
    frame.show_signal("loss")
    plots.draw_pending()
    np.testing.assert_array_equal(drawn(plots, LOSS)[1], run.values["loss"])


def test_that_all_left_axes_are_equally_wide(show: Show) -> None:
    plots = show(opened(training_run("run", 100, power={"GPU 0": (np.arange(2.0), np.array([123456.0, 1e9]))})))
    lefts = {round(frame.chart.view.sceneBoundingRect().left()) for frame in plots.frames}
    assert len(lefts) == 1


def test_that_readings_after_the_last_step_move_when_it_is_done(show: Show) -> None:
    run = training_run("run", 1000, status="running")
    whole = dict(run.values)
    time_s = np.arange(0.0, 10.0, 0.1)
    run.values = first_steps(whole, 500)
    run.power = {"GPU 0": (time_s, np.arange(100.0))}
    plots = show(opened(run))
    assert drawn(plots, POWER)[0].max() == 500
    run.values = whole
    plots.data_arrived()
    plots.draw_pending()
    np.testing.assert_allclose(drawn(plots, POWER)[0], np.minimum(time_s / 0.01, 1000))
    np.testing.assert_array_equal(drawn(plots, POWER)[1], np.arange(100.0))


def test_that_one_tick_redraws_at_most_one_plot(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linked, "PAUSE_FACTOR", 0.0)
    plots = show(opened(training_run("run", 100)))
    pulled: list[str] = []
    for frame in plots.frames:
        monkeypatch.setattr(frame.chart, "pull", lambda key=frame.chart.signal.key: pulled.append(key))
    plots.refresh()
    for count in range(1, 5):
        plots.findChild(QTimer, "tick").timeout.emit()
        assert len(pulled) == count
    assert sorted(pulled) == ["events", "loss", "power", "scale"]


def test_that_a_run_without_any_step_yet_says_that_it_waits(show: Show) -> None:
    run = ArrayRun(run_id="run", status="running")
    frame = show(opened(run)).frames[LOSS]
    assert frame.message.text() == "Waiting for the first value."


@pytest.mark.parametrize("spike", [1e38, 1.7e308])
def test_that_a_finite_spike_of_any_size_is_drawn_without_harm(show: Show, spike: float) -> None:
    run = training_run("run", 5000)
    run.values["loss"][2500], run.values["loss"][2600] = spike, -spike
    plots = show(opened(run))
    assert np.nanmax(drawn(plots, LOSS)[1]) == spike
    bottom, top = plots.frames[LOSS].chart.view.viewRange()[1]
    assert np.isfinite(top - bottom)


@pytest.mark.parametrize("told", [True, False])
def test_that_a_loss_that_is_nan_from_the_start_is_marked_where_the_run_says_so(show: Show, told: bool) -> None:
    run = training_run("run", 100)
    run.values["loss"][:] = np.nan
    run.values["val_loss"][:] = np.nan
    run.incidents = [Incident(0.0, 1, "nonfinite_loss", "error", "the loss is nan")] if told else []
    plots = show(opened(run))
    chart = plots.frames[LOSS].chart
    assert isinstance(chart, CurveChart)
    assert bool(items(chart, "edge")) is told
    assert chart.is_empty() is not told
    assert not items(chart, "dots")


def test_that_a_plot_between_its_data_and_its_picture_is_drawn_with_what_waits(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick takes over the data of a plot, and a later turn draws them."""
    monkeypatch.setattr(linked, "PAUSE_FACTOR", 0.0)
    run = training_run("run", 400, status="running")
    full, run.values = run.values, first_steps(run.values, 200)
    plots = show(opened(run))
    plots.draw_pending()
    run.values = full
    plots.data_arrived()
    timer = plots.findChild(QTimer, "tick")
    for _ in range(3 * len(plots.frames)):
        timer.timeout.emit()
    assert len(drawn(plots, LOSS)[0]) == 200
    plots.draw_pending()
    assert [len(drawn(plots, frame)[0]) for frame in (LOSS, SCALE)] == [400, 400]
