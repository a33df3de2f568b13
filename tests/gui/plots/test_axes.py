"""Ticks and numbers as people read them."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pyqtgraph as pg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytestqt.qtbot import QtBot
from shiboken6 import delete

from precgui.gui.plots.axes import Kind, ValueAxis, axis_name, wrap_label
from precgui.gui.plots.signals import SIGNALS, duration, from_plot, number, place_text, signal_text, to_plot
from tests.runs.synthetic import live_run, synthetic_events


def labels(kind: Kind, low: float, high: float, size: float = 200, side: str = "left") -> list[str]:
    axis = ValueAxis(side, kind)
    return [
        text for spacing, values in axis.tickValues(low, high, size) for text in axis.tickStrings(values, 1, spacing)
    ]


@pytest.fixture(autouse=True)
def application(qtbot: QtBot) -> None:
    """Axes are graphics items."""


@pytest.mark.parametrize(
    ("kind", "low", "high", "wanted"),
    [
        ("log2", 15, 17, ["2¹⁵", "2¹⁶", "2¹⁷"]),
        ("log2", -2, 2, ["2⁻²", "2⁻¹", "2⁰", "2¹", "2²"]),
        ("log10", -6, -3, ["10⁻⁶", "10⁻⁵", "10⁻⁴", "0.001"]),
        ("log10", -1, 1, ["0.1", "1", "10"]),
        ("log10", -0.5, 0.8, ["0.5", "1", "2", "5"]),
        ("linear", 0, 2.4, ["0.0", "0.5", "1.0", "1.5", "2.0"]),
        ("linear", -1, 1, ["−1.0", "−0.5", "0.0", "0.5", "1.0"]),
        ("linear", 0, 4e-5, ["0", "1e-05", "2e-05", "3e-05", "4e-05"]),
    ],
)
def test_that_values_are_labelled_as_people_write_them(kind: Kind, low: float, high: float, wanted: list[str]) -> None:
    assert labels(kind, low, high) == wanted


def test_that_steps_are_whole_numbers_with_grouped_thousands() -> None:
    assert labels("step", 0, 1_000_000, 800, "bottom")[1:3] == ["200\u2009000", "400\u2009000"]
    assert all(text.isdigit() for text in labels("step", 10, 12, 800, "bottom"))


def test_that_long_times_are_clock_times() -> None:
    assert labels("time_s", 0, 3600, 800, "bottom")[:3] == ["0:00", "10:00", "20:00"]
    assert "1:00:00" in labels("time_s", 0, 7200, 800, "bottom")
    assert axis_name("time_s", 10) == "Time (s)"
    assert axis_name("time_s", 7200) == "Time (h:mm:ss)"
    assert axis_name("step", 10) == "Step"


@given(st.floats(-300, 300), st.floats(1e-6, 300), st.sampled_from(["log2", "log10", "linear", "step", "time_s"]))
def test_that_any_range_gets_a_readable_number_of_ticks_in_range(low: float, span: float, kind: Kind) -> None:
    axis = ValueAxis("left", kind)
    ticks = [v for _, values in axis.tickValues(low, low + span, 150) for v in values]
    assert len(ticks) <= 20
    assert all(low - 1e-6 * span <= v <= low + span * (1 + 1e-6) for v in ticks)
    assert len(axis.tickStrings(ticks, 1.0, span / 5)) == len(ticks)


def test_that_numbers_keep_nan_inf_and_sign() -> None:
    assert [number(v) for v in (math.nan, math.inf, -math.inf, -0.25, 1234.5678)] == [
        "NaN", "Inf", "−Inf", "−0.25", "1234.568",
    ]  # fmt: skip


def test_that_a_loss_scale_is_shown_as_a_power_of_two_when_it_is_one() -> None:
    assert signal_text(65536.0, SIGNALS["scale"]) == "65536 = 2¹⁶"
    assert signal_text(3.0, SIGNALS["scale"]) == "3"
    assert signal_text(2.0**21, SIGNALS["memory"]) == "2 MiB"


@given(st.floats(1e-30, 1e30), st.sampled_from(["linear", "log2", "log10"]))
def test_that_plot_coordinates_lead_back_to_values(value: float, scale) -> None:
    shown = to_plot(np.array([value]), 1.0, scale)
    assert from_plot(float(shown[0]), scale) == pytest.approx(value, rel=1e-12)


def test_that_what_has_no_logarithm_becomes_nan() -> None:
    assert np.isnan(to_plot(np.array([0.0, -1.0, np.nan]), 1.0, "log2")).all()


def test_that_durations_and_places_read_well() -> None:
    assert [duration(v) for v in (0.5, 59.0, 61, 3725)] == ["0.5 s", "59 s", "1:01", "1:02:05"]
    assert place_text(1200.0, "step") == "step 1\u2009200"
    assert place_text(12.25, "time_s") == "time 12.25 s"


def test_that_the_time_waited_for_data_is_a_plot_in_milliseconds() -> None:
    signal = SIGNALS["data_wait"]
    waited = live_run(synthetic_events(20)).series(signal.series[0])[1]
    assert (signal.unit, to_plot(waited, signal.factor, signal.scale).tolist()) == ("ms", [1.0] * 20)


@pytest.mark.parametrize("height", [24, 40, 60, 75, 110, 240])
@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [("log10", -6.0, 1.0), ("log10", -30.0, 3.0), ("log10", -2.3, 0.4), ("log2", 8.0, 16.2), ("linear", 0.0, 0.1)],
)
def test_that_ticks_of_low_plots_are_spread_over_the_view_and_do_not_touch(
    kind: Kind, low: float, high: float, height: int
) -> None:
    axis = ValueAxis("left", kind)
    [(_, values), *_] = axis.tickValues(low, high, height)
    assert 2 <= len(values) <= max(2, height / 16)
    assert max(values) - min(values) >= (high - low) / 3
    gaps = [(b - a) * height / (high - low) for a, b in pairwise(sorted(values))]
    assert min(gaps) >= min(12, height / 4)


def test_that_an_axis_that_is_gone_is_not_asked_for_its_size(qtbot: QtBot) -> None:
    plot = pg.PlotWidget()
    qtbot.addWidget(plot)
    axis = plot.getAxis("left")
    axis.setLabel("a label")
    wrap_label(axis)
    label = axis.label
    label.setParentItem(None)
    delete(axis)
    label.setPlainText("another label")
