"""Marks above the lines: values that are not finite, skipped steps, and the events in their rows."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QEvent, QPointF
from PySide6.QtGui import QHelpEvent
from PySide6.QtWidgets import QApplication, QToolTip

from precgui.events import Incident
from precgui.gui.plots.event_chart import LANES, EventChart
from precgui.gui.theme import themes
from tests.gui.plotted import Show, items, opened, training_run

LOSS, SCALE, EVENTS = range(3)


def test_that_nan_and_inf_leave_gaps_and_are_marked_at_the_top_edge(show: Show) -> None:
    run = training_run("run", 300)
    run.values["loss"][100], run.values["loss"][200], run.values["loss"][250] = np.nan, np.inf, -np.inf
    plots = show(opened(run))
    x, y = items(plots.frames[LOSS].chart, "line")[0].getData()
    np.testing.assert_array_equal(x[np.isnan(y)], [101, 201, 251])
    chart = plots.frames[LOSS].chart
    (edge,) = items(chart, "edge")
    np.testing.assert_array_equal(edge.getData()[0], [101, 201, 251])
    assert list(edge.data["symbol"]) == ["x", "t1", "t"]
    bottom, top = chart.view.viewRange()[1]
    assert ((edge.getData()[1] > top - 0.2 * (top - bottom)) & (edge.getData()[1] < top)).all()
    finite = run.values["loss"][np.isfinite(run.values["loss"])]
    assert bottom < finite.min() and finite.max() < top < 2 * finite.max()


def test_that_skipped_steps_are_marked_on_the_loss_scale_from_the_events(show: Show) -> None:
    run = training_run("run", 400)
    run.incidents = [Incident(1.2, 120, "skipped_step", "info", "Gradients held Inf."),
                     Incident(3.0, 305, "skipped_step", "info", "Gradients held Inf.")]  # fmt: skip
    plots = show(opened(run))
    (skips,) = items(plots.frames[SCALE].chart, "skips")
    x, y = skips.getData()
    np.testing.assert_array_equal(x, [120, 305])
    np.testing.assert_array_equal(y, np.log2(run.values["scale"][[119, 304]]))


def test_that_the_marks_of_a_later_run_lie_on_top_whatever_colours_the_runs_share(show: Show) -> None:
    runs = [opened(training_run(name, 400), colour) for name, colour in (("a", 0), ("b", 1), ("c", 0))]
    for each in runs:
        each.run.incidents = [Incident(1.2, 120, "skipped_step", "info", "Gradients held Inf.")]
    chart = show(*runs).frames[SCALE].chart
    (marks,) = items(chart, "skips", "c")
    (x,), (y,) = marks.getData()
    place = chart.mapFromScene(chart.view.mapViewToScene(QPointF(x, y)))
    assert chart.grab().toImage().pixelColor(place).name() == themes().theme.runs[0]


def test_that_a_change_of_the_precision_has_a_row_of_its_own(show: Show) -> None:
    run = training_run("run", 400)
    run.incidents = [Incident(0.5, 50, "precision_change", "info", "precision changed from fp32 to bf16-amp (step:50)")]
    plots = show(opened(run))
    chart = plots.frames[EVENTS].chart
    (marks,) = items(chart, "Precision")
    assert list(marks.getData()[0]) == [50]


def test_that_the_time_line_marks_events_and_tells_their_message(show: Show) -> None:
    run = training_run("run", 400)
    run.incidents = [
        Incident(0.5, 50, "nonfinite_gradient", "warning", "Inf in the gradient.", module="conv1"),
        Incident(2.0, 200, "scale_change", "info", "The scale fell to 32768."),
    ]
    plots = show(opened(run))
    chart = plots.frames[EVENTS].chart
    assert isinstance(chart, EventChart)
    counts = [sum(len(item.getData()[0]) for item in items(chart, lane.title)) for lane in LANES]
    assert counts == [1 if {"nonfinite_gradient", "scale_change"} & set(lane.kinds) else 0 for lane in LANES]
    assert len({lane.symbol for lane in LANES}) == len(LANES)
    place = chart.view.mapViewToScene(QPointF(50, -1))
    assert chart.messages_at(place) == ["a run: step 50, nonfinite gradient: Inf in the gradient. (conv1)"]
    assert chart.messages_at(chart.view.mapViewToScene(QPointF(120, -1))) == []
    assert plots.frames[EVENTS].note.text() == "2 events in view"


def test_that_thousands_of_events_are_drawn_at_most_once_a_pixel(show: Show) -> None:
    run = training_run("run", 50_000)
    run.incidents = [Incident(i * 0.01, i, "skipped_step", "info", "") for i in range(1, 50_001)]
    chart = show(opened(run)).frames[EVENTS].chart
    (skipped,) = items(chart, "Skipped step")
    x, _ = skipped.getData()
    assert 0.9 * chart.width_px() < len(x) <= chart.width_px() + 1


@pytest.mark.qt_log_ignore("This plugin does not support raise")
def test_that_the_message_of_an_event_stays_while_the_mouse_rests(show: Show) -> None:
    """After 0.7 s Qt asks the scene for the tool tip of an item, and hides ours as there is none."""
    run = training_run("run", 400)
    run.incidents = [Incident(0.5, 50, "nonfinite_gradient", "warning", "Inf in the gradient.", module="conv1")]
    chart = show(opened(run)).frames[EVENTS].chart
    assert isinstance(chart, EventChart)
    place = chart.view.mapViewToScene(QPointF(50, -1))
    chart.point_at(place)
    assert "Inf in the gradient" in QToolTip.text()
    at = chart.mapFromScene(place)
    QApplication.sendEvent(chart.viewport(), QHelpEvent(QEvent.Type.ToolTip, at, chart.mapToGlobal(at)))
    assert QToolTip.isVisible() and "Inf in the gradient" in QToolTip.text()
