"""The energy meter against loads whose energy is known."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precgui.events import PowerRead
from precgui.hardware import energy, power, rapl, step_energy
from precgui.hardware.device import Device
from precgui.hardware.energy import COUNTER, INTEGRATED, window_energy
from precgui.hardware.gauge import ClockProbe
from precgui.hardware.readings import Missing
from precgui.hardware.step_energy import EnergyPlan, StepEnergy, measure_step
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
    found = window_energy(*series(), 2.0, 9.0)  # type: ignore[call-arg]
    assert found.method == COUNTER
    assert found.energy_j == pytest.approx(1400.0)


def test_that_a_window_between_two_renewals_of_the_counter_is_interpolated():
    assert window_energy(*series(), 2.3, 7.8).energy_j == pytest.approx(5.5 * 200)  # type: ignore[call-arg]


def test_that_power_is_integrated_only_without_a_counter():
    times, watts, joules = series()
    found = window_energy(times, watts, np.full_like(joules, math.nan), 1.0, 5.0)
    assert found.method == INTEGRATED
    assert found.energy_j == pytest.approx(800.0)
    ramp = window_energy(times, 100 * times, np.full_like(joules, math.nan), 0.0, 10.0)
    assert ramp.energy_j == pytest.approx(5000.0, rel=1e-3)


def test_that_less_than_a_second_is_not_measurable():
    found = window_energy(*series(), 2.0, 2.9)  # type: ignore[call-arg]
    assert isinstance(found, Missing)
    assert "shorter than 1 s" in found.reason


def test_that_a_silent_sensor_is_not_bridged():
    times, watts, joules = series()
    watts[(times > 3) & (times < 6)] = math.nan
    found = window_energy(times, watts, np.full_like(joules, math.nan), 1.0, 9.0)
    assert isinstance(found, Missing)
    assert "silent" in found.reason


def test_that_nothing_recorded_is_absent():
    assert isinstance(window_energy([], [], [], 0.0, 5.0), Missing)


class Clock:
    """A clock that stands still unless somebody sleeps: what is read at one moment is of that moment."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sampled = threading.Event()  # the thread of the sampler has its first reading, and the next in an hour

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert self.sampled.wait(60)
        self.now_s += seconds


def test_that_a_step_of_a_known_load_is_measured_gross_and_net(monkeypatch):
    """A fake card that uses 250 W while a step runs and 50 W when idle; a step takes 10 ms."""
    clock, busy_s = Clock(), [0.0]

    def counter_mj() -> float:
        if threading.current_thread().name == "power sampler":
            clock.sampled.set()
        return (50.0 * clock.now_s + 200.0 * busy_s[0]) * 1e3

    def step() -> None:
        clock.sleep(0.01)
        busy_s[0] += 0.01

    install(monkeypatch, cards.a100(nvmlDeviceGetTotalEnergyConsumption=counter_mj))
    for module in (step_energy, power):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(power, "PERIOD_S", 3600.0)
    found = measure_step(step, [DEVICE], plan=SHORT, remarks=lambda: ["The power limit holds the clocks down."])
    assert isinstance(found, StepEnergy)
    assert found.gross_j == pytest.approx(2.5)
    assert found.idle_w == pytest.approx(50.0)
    assert found.net_j == pytest.approx(2.0)
    assert found.method == COUNTER
    assert found.uncertainty == pytest.approx(energy.SENSOR_ERROR)
    assert found.remarks == ("The power limit holds the clocks down.",)


@pytest.mark.parametrize(("step_s", "steps", "waits"), [(0.001, 255, 9), (0.06, 4, 4), (0.5, 1, 1)])
def test_that_a_device_is_waited_for_after_many_short_steps_and_after_each_long_one(
    monkeypatch: pytest.MonkeyPatch, step_s: float, steps: int, waits: int
) -> None:
    clock, waited = Clock(), list[int]()
    clock.sampled.set()
    monkeypatch.setattr(step_energy, "time", clock)
    assert step_energy._run_for(lambda: clock.sleep(step_s), lambda: waited.append(0), 0.2) == steps
    assert len(waited) == waits


def test_that_a_device_without_a_sensor_has_no_step_energy(monkeypatch):
    install(monkeypatch, init=12)
    plan = EnergyPlan(warm_up_s=0.0, idle_s=0.0, window_s=0.0, windows=1, least_s=0.0)
    found = measure_step(lambda: None, ["CPU package 0"], plan=plan)
    assert isinstance(found, Missing)
    assert "no sensor was read" in found.reason


def test_that_short_windows_give_no_number(monkeypatch):
    install(monkeypatch, cards.a100())
    plan = EnergyPlan(warm_up_s=0.0, idle_s=0.0, window_s=0.05, windows=2)
    found = measure_step(lambda: time.sleep(0.01), [DEVICE], plan=plan)
    assert isinstance(found, Missing)
    assert "not measurable" in found.reason


def gpu(uuid: str) -> Device:
    return Device("cuda:0", "cuda", "", "", "", {}, uuid=uuid)


def test_that_the_clock_of_the_cpu_is_not_told_beside_figures_of_a_gpu_without_an_identity():
    with ClockProbe(Device("mps:0", "mps", "", "", "", {})) as gauge:
        assert set(gauge.read().values()) == {None}


def test_that_the_gauge_names_what_disturbs(monkeypatch):
    install(monkeypatch, cards.a100(nvmlDeviceGetCurrentClocksEventReasons=0x4 | 0x1, nvmlDeviceGetUUID="GPU-1"))
    with ClockProbe(gpu("GPU-1")) as gauge:
        said = gauge.remarks()
        read = gauge.read()
    assert said[0] == "The power limit holds the clocks down."
    assert "4242" in said[1]
    assert read["reasons"] == ["idle", "power cap"]
    assert read["power_w"] == 263.5
    assert read["clock_mhz"] == 1290
    with ClockProbe(gpu("GPU-2")) as gauge:
        assert gauge.read()["clock_mhz"] is None
        assert gauge.remarks() == []


def recorded(counter_j: Callable[[float], float | None], times: Sequence[float], range_j: float) -> list[PowerRead]:
    """What a RAPL sensor tells at these times of a counter; None where it cannot be read."""
    now_s = [0.0]

    def read_j(self: rapl.Zone) -> Any:
        value = counter_j(now_s[0])
        return Missing("gone", lost=True) if value is None else value % range_j

    sensor, rows = power.RaplSensor(rapl.Zone("CPU package 0", Path("none"), range_j)), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rapl.Zone, "read_j", read_j)
        for now_s[0] in times:
            answer = sensor.read(now_s[0])
            watts, joules = (math.nan, math.nan) if isinstance(answer, Missing) else answer
            rows.append(PowerRead(device=sensor.device, time_s=now_s[0], power_w=watts, energy_j=joules))
    return rows


def of_window(rows: Sequence[PowerRead], start_s: float, end_s: float) -> Any:
    return window_energy(*zip(*((row.time_s, row.power_w, row.energy_j) for row in rows), strict=True), start_s, end_s)  # type: ignore[call-arg]


def test_that_the_counter_bridges_a_silence():
    """60 s at 100 W, unreadable between 20 s and 40 s: 3993 J were told before."""
    times = np.arange(0.0, 60.05, 0.05)
    rows = recorded(lambda t: None if 20 < t < 40 else 1000 + 100 * t, times, 65_532.6)
    found = of_window(rows, 0.0, 60.0)
    assert found.method == COUNTER
    assert found.energy_j == pytest.approx(6000, rel=1e-3)


@pytest.mark.parametrize("silence_s", [25 * 60.0, 100.0])
def test_that_energy_is_not_measured_across_a_silence_in_which_the_counter_may_have_wrapped(silence_s):
    """A process that was suspended at 100 W: 19,919 J of 151,000 J were told before."""
    times = np.concatenate([np.arange(0.0, 5.0, 0.05), np.arange(5.0, 10.0, 0.05) + silence_s])
    rows = recorded(lambda t: 100 * t, times, 65_532.6)
    assert isinstance(of_window(rows, 0.0, 10.0 + silence_s), Missing)
    assert of_window(rows, 6.0 + silence_s, 9.0 + silence_s).energy_j == pytest.approx(300, rel=1e-3)


def test_that_a_counter_that_stands_lower_after_a_silence_is_not_trusted():
    """It may have wrapped or been reset."""
    times = np.concatenate([np.arange(0.0, 5.0, 0.05), np.arange(10.0, 15.0, 0.05)])
    rows = recorded(lambda t: 60_000 + 100 * t if t < 7 else 100 * t, times, 65_532.6)
    assert isinstance(of_window(rows, 1.0, 14.0), Missing)


def test_that_a_reset_counter_gives_no_negative_energy():
    """As after the driver was loaded again: -3600 J were told before."""
    times = np.arange(0.0, 20.0, 0.1)
    joules = np.where(times < 10, 3600 + 200 * times, 200 * (times - 10))
    found = window_energy(times, np.full_like(times, 200.0), joules, 1.0, 19.0)
    assert found.method == INTEGRATED
    assert found.energy_j == pytest.approx(3600.0, rel=1e-2)
    assert isinstance(window_energy(times, np.full_like(times, math.nan), joules, 1.0, 19.0), Missing)
    assert window_energy(times, np.full_like(times, math.nan), joules, 11.0, 19.0).energy_j == pytest.approx(1600.0)


def test_that_net_energy_has_an_uncertainty_of_its_own():
    """100 W of which 90 W are idle: 10 W, and not to 5 %."""
    windows = [energy.WindowEnergy(500.0, 5.0, COUNTER)] * 3
    found = step_energy._result(energy.WindowEnergy(450.0, 5.0, COUNTER), windows, [50, 50, 50], ())
    assert isinstance(found, StepEnergy)
    assert found.net_j == pytest.approx(1.0)
    assert found.net_uncertainty_j == pytest.approx(math.hypot(0.5, 0.45))
    assert isinstance(step_energy._result(Missing("none"), windows, [50, 50, 50], ()).net_uncertainty_j, Missing)
