"""Plots of what devices tell: power, use of their units, clocks; a line for each device, or why there is none."""

from __future__ import annotations

import numpy as np
import pytest

from precgui.gui.plots.frame import PlotFrame
from precgui.gui.plots.linked import LinkedPlots
from tests.gui.plotted import Show, items, opened, training_run

POWER = 3


def lines(plots: LinkedPlots) -> dict[str, np.ndarray]:
    """The values that are drawn of each device."""
    found = items(plots.frames[POWER].chart, "line")
    return {item.objectName().removesuffix(" of run").partition(":")[2]: item.getData()[1] for item in found}


def test_that_without_a_power_sensor_the_reasons_stand_in_the_place_of_the_plot(show: Show) -> None:
    sensors = [
        {"name": "NVML", "found": False, "reason": "no NVIDIA driver on this machine"},
        {"name": "RAPL", "found": False, "reason": "the counters can be read by root only"},
    ]
    frame = show(opened(training_run("run", 100, environment={"power_sensors": sensors}))).frames[POWER]
    assert frame.body.currentWidget() is frame.message
    assert "NVML: no NVIDIA driver on this machine" in frame.message.text()
    assert "RAPL: the counters can be read by root only" in frame.message.text()


@pytest.mark.parametrize(
    "sensors", ["x", 7, {"a": 1}, ["x", None], [{"name": "NVML", "reason": 7, "unavailable": {"tensor_use": [1]}}]]
)
def test_that_foreign_facts_on_sensors_leave_the_plots_alone(show: Show, sensors: object) -> None:
    state = {"GPU 0": {"tensor_use": (np.array([0.5]), np.array([np.nan]))}}
    plots = show(opened(training_run("run", 100, environment={"power_sensors": sensors}, state=state)))
    assert plots.frames[POWER].message.text()
    assert show_signal(plots, "tensor_use").message.text()


def test_that_every_power_sensor_of_a_run_is_drawn(show: Show) -> None:
    time_s = np.arange(0.0, 3.0, 0.1)
    power = {"GPU 0": (time_s, np.full(30, 250.0)), "CPU package 0": (time_s, np.full(30, 90.0))}
    plots = show(opened(training_run("run", 300, power=power)))
    assert {device: float(values.max()) for device, values in lines(plots).items()} == {
        "GPU 0": 250.0, "CPU package 0": 90.0
    }  # fmt: skip


def test_that_a_run_without_a_power_sensor_stands_beside_one_with_it(show: Show) -> None:
    time_s = np.arange(0.0, 3.0, 0.1)
    measured = training_run("run", 300, power={"GPU 0": (time_s, np.full(30, 250.0))})
    plots = show(opened(training_run("other", 300)), opened(measured))
    assert set(lines(plots)) == {"GPU 0"}


def test_that_a_sensor_that_speaks_late_joins_the_plot(show: Show) -> None:
    run = training_run("run", 300, status="running")
    plots = show(opened(run))
    assert plots.frames[POWER].body.currentWidget() is plots.frames[POWER].message
    run.power = {"GPU 0": (np.array([0.5, 1.5]), np.array([100.0, 110.0]))}
    plots.data_arrived()
    plots.draw_pending()
    np.testing.assert_array_equal(lines(plots)["GPU 0"], [100.0, 110.0])
    assert plots.frames[POWER].body.currentWidget() is plots.frames[POWER].chart


def show_signal(plots: LinkedPlots, key: str) -> PlotFrame:
    frame = plots.frames[POWER]
    frame.show_signal(key)
    plots.draw_pending()
    return frame


def test_that_what_every_device_did_is_drawn(show: Show) -> None:
    time_s = np.arange(0.0, 3.0, 0.5)
    half, full, none = (np.full(6, value) for value in (0.5, 1.0, np.nan))
    state = {
        "GPU 0": {"tensor_use": (time_s, half), "clock_held": (time_s, full)},
        "CPU": {"tensor_use": (time_s, none), "clock_held": (time_s, none)},
    }
    plots = show(opened(training_run("run", 300, state=state)))
    for key, value in (("tensor_use", 50.0), ("clock_held", 1.0)):
        frame = show_signal(plots, key)
        assert frame.body.currentWidget() is frame.chart
        drawn = lines(plots)
        assert list(drawn) == ["GPU 0", "CPU"]
        np.testing.assert_array_equal(drawn["GPU 0"], np.full(6, value))
        assert [name.textItem.toPlainText() for name in items(frame.chart, "name")] == ["GPU 0", ""]


@pytest.mark.parametrize("key", ["unavailable", "untold"])
def test_that_a_card_that_does_not_tell_its_tensor_cores_has_the_reason_in_the_plot(show: Show, key: str) -> None:
    time_s, untold = np.array([0.5, 1.0]), np.full(2, np.nan)
    sensors = [{"name": "GPU 0 A100", "found": True, "reason": "", key: {"tensor_use": "told from Hopper on"}}]
    run = training_run("run", 300, state={"GPU 0 A100": {"tensor_use": (time_s, untold)}})
    run.environment = {"power_sensors": sensors}
    frame = show_signal(show(opened(run)), "tensor_use")
    assert frame.body.currentWidget() is frame.message
    assert "GPU 0 A100: not available: told from Hopper on." in frame.message.text()


def test_that_a_file_without_the_use_of_devices_says_so(show: Show) -> None:
    frame = show_signal(show(opened(training_run("run", 300))), "tensor_use")
    assert "was not recorded in these runs" in frame.message.text()
