"""Many lines in one picture: what is covered is what the lines themselves cover, and every run stays readable."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PySide6.QtCore import QEvent
from PySide6.QtWidgets import QApplication, QMenu
from pytestqt.qtbot import QtBot

from precgui.events import Incident
from precgui.gui.plots.curve_chart import CurveChart
from precgui.gui.plots.dense_lines import DENSE_FROM, column_extents, dash_gaps, merged
from precgui.gui.plots.linked import LinkedPlots
from tests.gui.plotted import Show, items, opened, training_run


def column(*values: float) -> NDArray[np.float64]:
    """One line, of shape (points, 1)."""
    return np.array(values)[:, None]


def test_that_extents_of_a_column_hold_its_points_and_the_line_through_its_borders() -> None:
    low, high = column_extents(np.array([0.0, 1.0, 1.5, 4.0]), column(0.0, 2.0, -1.0, 4.0), np.arange(0.0, 6.0))
    assert np.allclose(low[:4, 0], [0.0, -1.0, 0.0, 2.0])
    assert np.allclose(high[:4, 0], [2.0, 2.0, 2.0, 4.0])
    assert np.isnan(low[4, 0]) == np.isnan(high[4, 0])


def test_that_nan_interrupts_a_line() -> None:
    low, _ = column_extents(np.arange(5.0), column(1.0, 1.0, np.nan, 1.0, 1.0), np.arange(0.0, 5.0, 0.5))
    assert np.isnan(low[3, 0]) and np.isnan(low[4, 0]) and np.isfinite(low[0, 0]) and np.isfinite(low[7, 0])


@pytest.mark.parametrize("points", [1, 2, 30, 400, 5000])
def test_that_lines_of_one_matrix_have_the_extents_of_each_alone(points: int) -> None:
    """By np.interp and the points of each column, for few and for many points in a column, with gaps."""
    draw = np.random.default_rng(points)
    x = np.sort(draw.uniform(-2.0, 12.0, points))
    y = draw.normal(size=(points, 3))
    y[draw.random(y.shape) < 0.05] = np.nan
    borders = np.linspace(0.0, 10.0, 61)
    low, high = column_extents(x, y, borders)
    for line in range(3):
        crossed = np.interp(borders, x, y[:, line], left=np.nan, right=np.nan)
        for place in range(60):
            inside = y[(x >= borders[place]) & (x < borders[place + 1]), line]
            held = np.concatenate([crossed[place : place + 2], inside])
            held = held[np.isfinite(held)]
            expected = (held.min(), held.max()) if len(held) else (np.nan, np.nan)
            assert np.allclose((low[place, line], high[place, line]), expected, equal_nan=True)


def test_that_overlapping_parts_are_merged_and_distant_ones_are_not() -> None:
    low = np.array([[0.0, 1.0, np.nan], [0.0, 5.0, 5.5]])
    high = np.array([[2.0, 3.0, np.nan], [1.0, 6.0, 7.0]])
    place, bottom, top = merged(low, high, gap=0.5)
    parts = list(zip(place.tolist(), bottom.tolist(), top.tolist(), strict=True))
    assert parts == [(0, 0.0, 3.0), (1, 0.0, 1.0), (1, 5.0, 7.0)]


def test_that_the_merged_parts_cover_what_each_line_covers() -> None:
    draw = np.random.default_rng(3)
    low = draw.normal(size=(30, 40))
    high = low + draw.exponential(0.1, size=low.shape)
    low[draw.random(low.shape) < 0.2] = np.nan
    places, bottom, top = merged(low, high, gap=0.0)
    for place, line in np.argwhere(np.isfinite(low)):
        own = places == place
        assert ((bottom[own] <= low[place, line]) & (high[place, line] <= top[own])).any()


def test_that_dashes_leave_their_gaps() -> None:
    assert dash_gaps((2.0, 2.0), 8).tolist() == [2, 3, 6, 7]
    assert not len(dash_gaps((), 8))


def test_that_many_runs_are_one_picture_and_the_cursor_still_names_each(qtbot: QtBot, show: Show) -> None:
    runs = [opened(training_run(f"run{n}", 200, seed=n), n) for n in range(DENSE_FROM)]
    plots: LinkedPlots = show(*runs)
    chart = plots.frames[0].chart
    assert isinstance(chart, CurveChart)
    assert not items(chart, "line loss", "run3")
    assert "least and largest of each pixel drawn" in chart.note
    readings = chart.readings(100.0)
    assert [line.name for line in readings] == [each.name for each in runs]
    plots.set_runs(runs[:3])
    plots.draw_pending()
    assert len(items(chart, "line loss", "run2")) == 1


def test_that_a_plot_of_many_runs_has_no_graphics_item_for_each(show: Show) -> None:
    counts = []
    for number in (DENSE_FROM, 2 * DENSE_FROM):
        runs = [opened(training_run(f"run{n}", 200, seed=n), n) for n in range(number)]
        for run in runs:
            run.run.incidents = [Incident(0.5, 50, "skipped_step", "info", "")]
        plots = show(*runs)
        counts.append([len(frame.chart.plotItem.items) for frame in plots.frames])
        assert items(plots.frames[0].chart, "dots", f"run{number - 1}")
        assert items(plots.frames[1].chart, "skips", f"run{number - 1}")
    assert counts[0] == counts[1]


def test_that_menus_of_plots_go_with_the_plots(qtbot: QtBot) -> None:
    before = sum(isinstance(widget, QMenu) for widget in QApplication.topLevelWidgets())
    plots = LinkedPlots(["loss", "scale"])
    charts = [frame.chart for frame in plots.frames]  # alive in Python, as in a cycle that was not collected yet
    plots.show()
    assert not any(menu.isVisible() for chart in charts for menu in chart.findChildren(QMenu))
    plots.close()
    plots.deleteLater()
    QApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    assert sum(isinstance(widget, QMenu) for widget in QApplication.topLevelWidgets()) == before
