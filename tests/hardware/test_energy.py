"""The energy meter against loads whose energy is known."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from precgui.hardware import energy, power, rapl
from precgui.hardware.energy import COUNTER, INTEGRATED, EnergyPlan, StepEnergy, measure_step, window_energy
from precgui.hardware.gauge import Gauge
from precgui.hardware.readings import Absent
from tests.hardware import cards
from tests.hardware.fake_nvml import install

DEVICE = "GPU 0 NVIDIA A100-SXM4-80GB"
SHORT = EnergyPlan(warm_up_s=0.0, idle_s=0.2, window_s=0.25, windows=3, least_s=0.1)


@pytest.fixture(autouse=True)
def only_fakes(monkeypatch, tmp_path):
    monkeypatch.setattr(rapl, "POWERCAP", tmp_path / "none")


def series(seconds=10.0, watts=200.0, period=0.05, counter_every=1.0):
    """Readings of a constant load; the counter is renewed every `counter_every` seconds, and held between."""
    times = np.arange(0.0, seconds + period / 2, period)
    joules = np.floor(times / counter_every + 1e-9) * counter_every * watts
    return times, np.full_like(times, watts), joules


def test_that_the_counter_gives_the_energy_of_a_window():
    found = window_energy(*series(), 2.0, 9.0)
    assert found.method == COUNTER
    assert found.energy_j == pytest.approx(1400.0)


def test_that_a_window_between_two_renewals_of_the_counter_is_interpolated():
    assert window_energy(*series(), 2.3, 7.8).energy_j == pytest.approx(5.5 * 200)


def test_that_power_is_integrated_only_without_a_counter():
    times, watts, joules = series()
    found = window_energy(times, watts, np.full_like(joules, math.nan), 1.0, 5.0)
    assert found.method == INTEGRATED
    assert found.energy_j == pytest.approx(800.0)
    ramp = window_energy(times, 100 * times, np.full_like(joules, math.nan), 0.0, 10.0)
    assert ramp.energy_j == pytest.approx(5000.0, rel=1e-3)


def test_that_less_than_a_second_is_not_measurable():
    found = window_energy(*series(), 2.0, 2.9)
    assert isinstance(found, Absent)
    assert "shorter than 1 s" in found.reason


def test_that_a_silent_sensor_is_not_bridged():
    times, watts, joules = series()
    watts[(times > 3) & (times < 6)] = math.nan
    found = window_energy(times, watts, np.full_like(joules, math.nan), 1.0, 9.0)
    assert isinstance(found, Absent)
    assert "silent" in found.reason


def test_that_nothing_recorded_is_absent():
    assert isinstance(window_energy([], [], [], 0.0, 5.0), Absent)


def test_that_a_step_of_a_known_load_is_measured_gross_and_net(monkeypatch):
    """A fake card that uses 250 W while a step runs and 50 W when idle; a step takes 10 ms."""
    state = {"busy": 0.0, "start": time.perf_counter()}

    def counter_mj() -> float:
        idle_j = 50.0 * (time.perf_counter() - state["start"])
        return (idle_j + 200.0 * state["busy"]) * 1e3

    def step() -> None:
        begin = time.perf_counter()
        time.sleep(0.01)
        state["busy"] += time.perf_counter() - begin

    install(monkeypatch, cards.a100(nvmlDeviceGetTotalEnergyConsumption=counter_mj))
    monkeypatch.setattr(power, "COUNTER_PERIOD_S", 0.05)
    found = measure_step(step, [DEVICE], plan=SHORT, remarks=lambda: ["The power limit holds the clocks down."])
    assert isinstance(found, StepEnergy)
    step_s = found.gross_j / 250.0
    assert 0.009 < step_s < 0.03
    assert found.idle_w == pytest.approx(50.0, rel=0.1)
    assert found.net_j == pytest.approx(200.0 * step_s, rel=0.1)
    assert found.method == COUNTER
    assert found.uncertainty >= energy.SENSOR_ERROR
    assert found.remarks == ("The power limit holds the clocks down.",)


def test_that_a_device_without_a_sensor_has_no_step_energy(monkeypatch):
    install(monkeypatch, init=12)
    found = measure_step(lambda: time.sleep(0.01), ["CPU package 0"], plan=SHORT)
    assert isinstance(found, Absent)


def test_that_short_windows_give_no_number(monkeypatch):
    install(monkeypatch, cards.a100())
    plan = EnergyPlan(warm_up_s=0.0, idle_s=0.0, window_s=0.05, windows=2)
    found = measure_step(lambda: time.sleep(0.01), [DEVICE], plan=plan)
    assert isinstance(found, Absent)
    assert "not measurable" in found.reason


def test_that_the_gauge_names_what_disturbs(monkeypatch):
    install(monkeypatch, cards.a100(nvmlDeviceGetCurrentClocksEventReasons=0x4 | 0x1, nvmlDeviceGetUUID="GPU-1"))
    with Gauge("GPU-1") as gauge:
        said = gauge.remarks()
        read = gauge.read()
    assert said[0] == "The power limit holds the clocks down."
    assert "4242" in said[1]
    assert read["reasons"] == ["idle", "power cap"]
    assert read["power_w"] == 263.5
    assert read["clock_mhz"] == 1290
    with Gauge("GPU-2") as gauge:
        assert gauge.read()["clock_mhz"] is None
        assert gauge.remarks() == []
