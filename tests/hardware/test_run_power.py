"""Power and energy of a whole run: a known load is in its file to the last joule."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from precgui import config, job
from precgui.events import Event, Incident, PowerRead, RunEnded
from precgui.hardware import device_state, gpm
from precgui.hardware.energy import COUNTER, window_energy
from precgui.runs.reader import open_run
from tests.hardware import cards
from tests.hardware.fake_nvml import GPU_IS_LOST, Fails, install


def run(path: Path, steps: int = 30) -> list[Event]:
    events: list[Event] = []
    wanted = config.load("digits-quick", ["device=cpu", "threads=1", f"train.max_steps={steps}"])
    job.Job(wanted, path, [events.append]).run()
    return events


def test_that_the_last_energy_is_read_before_the_end(monkeypatch, tmp_path):
    install(monkeypatch, cards.h200(nvmlDeviceGetTotalEnergyConsumption=lambda: 250e3 * time.perf_counter()))
    events = run(tmp_path / "a.h5")
    reads = [event for event in events if isinstance(event, PowerRead)]
    assert isinstance(events[-1], RunEnded)
    assert reads[-1].energy_j == pytest.approx(250 * (reads[-1].time_s - reads[0].time_s), rel=0.02)
    with open_run(tmp_path / "a.h5") as saved:
        time_s, power_w = saved.series("power_w", "time_s")
        energy_j = saved.series("energy_j", "time_s")[1]
        np.testing.assert_array_equal(energy_j, [read.energy_j for read in reads])
        found = window_energy(time_s, power_w, energy_j, time_s[0], time_s[-1], least_s=0.0)
    assert found.method == COUNTER
    assert found.energy_j == pytest.approx(250 * found.seconds, rel=0.05)


def test_that_tensor_core_use_clock_and_what_holds_it_are_in_the_file(monkeypatch, tmp_path):
    monkeypatch.setattr(gpm, "LEAST_S", 0.0)
    monkeypatch.setattr(device_state, "PERIOD_S", 0.05)
    install(monkeypatch, cards.h200(nvmlDeviceGetCurrentClocksEventReasons=0x40))
    run(tmp_path / "a.h5", steps=80)
    with open_run(tmp_path / "a.h5") as saved:
        assert saved.state_devices() == ["GPU 0 NVIDIA H200", "CPU"]
        _, tensor_use = saved.series("tensor_use:GPU 0 NVIDIA H200")
        assert len(tensor_use) >= 2
        assert set(tensor_use) == {0.645}
        assert set(saved.series("clock_mhz")[1]) == {1860.0}
        assert set(saved.series("clock_held")[1]) == {1.0}
        assert any("Too hot" in event.message for event in saved.events("sensor"))
        assert np.isfinite(saved.series("utilisation:CPU")[1]).all()
        assert saved.notes == []


def test_that_a_gpu_lost_in_the_middle_is_marked_at_its_step_and_the_run_goes_on(monkeypatch, tmp_path):
    card = cards.h200()
    install(monkeypatch, card)
    asked = []

    def lost_later() -> float | Fails:
        asked.append(1)
        return 263_500.0 if len(asked) < 4 else Fails(GPU_IS_LOST)

    card.fields[186] = lost_later
    events = run(tmp_path / "a.h5", steps=80)
    (incident,) = [event for event in events if isinstance(event, Incident) and event.kind == "sensor"]
    assert incident.step >= 0
    assert events[-1].status == "completed"
    with open_run(tmp_path / "a.h5") as saved:
        assert np.isnan(saved.series("power_w", "time_s")[1]).any()
