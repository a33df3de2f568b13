"""Marks above the lines: values that are not finite, skipped steps, and the events in their rows."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QEvent, QPointF
from PySide6.QtGui import QHelpEvent
from PySide6.QtWidgets import QApplication, QToolTip

from precgui.events import Incident
from precgui.gui.plots.curve import NonFinite
from precgui.gui.plots.event_chart import LANES, EventChart
from precgui.gui.plots.marks import Track, first_in_pixels
from precgui.gui.plots.signals import RecordedSignals
from precgui.gui.theme import themes
from precgui.runs.signals import Axis
from tests.gui.plotted import ArrayRun, Show, items, opened, training_run

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


def _first_of_each_pixel(x: np.ndarray, x0: float, x1: float, pixels: int) -> list[int]:
    results: dict[int, int] = {}
    for index, place in enumerate(x.tolist()):
        if x0 <= place <= x1:
            results.setdefault(int((place - x0) / (x1 - x0) * pixels), index)
    return list(results.values())


@pytest.mark.parametrize("count", [0, 1, 300, 50_000])
@pytest.mark.parametrize("pixels", [1, 7, 640])
def test_that_the_first_point_of_each_pixel_is_found_by_looking_at_few(count: int, pixels: int) -> None:
    rng, looked_at = np.random.default_rng(count), []
    x = np.sort(np.round(rng.normal(0.0, 1.0, count), 3))  # with places that come twice

    def at(points: np.ndarray) -> np.ndarray:
        looked_at.append(len(points))
        return x[points]

    for x0, x1 in ((-9.0, 9.0), (-0.5, 0.25), (3.0, 4.0), (8.0, 9.0)):
        start, stop = int(x.searchsorted(x0)), int(x.searchsorted(x1, "right"))
        looked_at.clear()
        assert first_in_pixels(at, start, stop, x0, x1, pixels).tolist() == _first_of_each_pixel(x, x0, x1, pixels)
        assert sum(looked_at) <= 18 * (pixels + 1)


@pytest.mark.parametrize("seed", range(8))
def test_that_values_that_are_not_finite_are_counted_as_they_come(seed: int) -> None:
    """Also where the last values are taken anew, as readings are that wait for a step."""
    rng, found, y = np.random.default_rng(seed), NonFinite(), np.empty(0)
    for _ in range(30):
        known = max(len(y) - int(rng.integers(0, 4)), 0)
        y = np.append(y[:known], rng.choice([1.0, np.nan, np.inf, -np.inf], rng.integers(0, 9)))
        found.update(y, known)
        np.testing.assert_array_equal(found.index, np.flatnonzero(~np.isfinite(y)))
        assert (found.nans, len(found)) == (np.isnan(y).sum(), (~np.isfinite(y)).sum())
        x = np.arange(len(y)) * 0.5
        marked = [found.index[place] for place in _first_of_each_pixel(x[found.index], 1.0, 9.0, 5)]
        assert found.in_view(x, 1.0, 9.0, 5).tolist() == marked


class _CountedRun(ArrayRun):
    """Counts the events that it was asked for."""

    told = 0

    def events(self, kind: str | None = None, since: int = 0) -> list[Incident]:
        events = super().events(kind, since)
        self.told += len(events)
        return events


@pytest.mark.parametrize("over", ["step", "time_s"])
def test_that_the_marks_of_a_run_that_goes_on_are_those_of_the_whole(over: Axis) -> None:
    rng = np.random.default_rng(3)
    incidents = [
        Incident(float(at), int(at + (rng.random() < 0.01) * rng.integers(-9, 0)), kind, "info", "")
        for at in range(500)
        for kind in rng.choice(["skipped_step", "note", "failure"], 1, p=[0.8, 0.15, 0.05]).tolist()
    ]
    run, recorded = _CountedRun(status="running"), RecordedSignals()
    track = Track(run)
    for count in range(0, 501, 20):
        run.incidents = incidents[:count]
        track.pull()
        whole = Track(ArrayRun(incidents=incidents[:count]))
        whole.pull()
        for kinds in (("skipped_step",), ("failure", "note"), ("precision_change",)):
            for kind in kinds:
                np.testing.assert_array_equal(track.places(kind, over), whole.places(kind, over))
            in_view, marked = track.in_view(kinds, over, 20.0, 470.0, 90)
            places = sorted(
                getattr(i, over) for i in run.incidents if i.kind in kinds and 20 <= getattr(i, over) <= 470
            )
            assert in_view == len(places)
            assert marked.tolist() == [places[i] for i in _first_of_each_pixel(np.array(places), 20.0, 470.0, 90)]
        assert not recorded.has("events", [run])
    assert run.told == 2 * len(incidents)
    run.incidents = [*incidents, Incident(501.0, 501, "failure", "error", "")]
    assert recorded.has("events", [run])
