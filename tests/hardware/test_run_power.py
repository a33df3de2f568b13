"""Power and energy of a whole run: a known load is in its file to the last joule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from precgui import config, job
from precgui.events import DeviceRead, Event, Incident, PowerRead, RunEnded, StepDone
from precgui.hardware import device_state, gpm, power
from precgui.hardware.energy import COUNTER, window_energy
from precgui.runs.file.reader import open_run
from tests.hardware import cards
from tests.hardware.fake_nvml import GPU_IS_LOST, Fails, install


def run(path: Path, enough: Callable[[list[Event]], bool]) -> list[Event]:
    """The events of a run that is stopped as soon as there are enough."""
    events: list[Event] = []

    def listen(event: Event) -> None:
        events.append(event)
        if enough(events):
            one.stop()

    wanted = config.load("digits-quick", ["device=cpu", "threads=1", "record.tensors=false", "train.epochs=10000"])
    one = job.Job(wanted, path, [listen])
    one.run()
    return events


def steps(events: list[Event]) -> list[StepDone]:
    return [event for event in events if isinstance(event, StepDone)]


def test_that_the_last_energy_is_read_before_the_end(monkeypatch, tmp_path):
    counter_mj = iter(range(0, 10**9, 250_000))
    monkeypatch.setattr(power, "COUNTER_PERIOD_S", 3600.0)  # at first and at last
    install(monkeypatch, cards.h200(nvmlDeviceGetTotalEnergyConsumption=lambda: next(counter_mj)))
    events = run(
        tmp_path / "a.h5",
        lambda events: len(steps(events)) >= 30 and any(isinstance(event, PowerRead) for event in events),
    )
    reads = [event for event in events if isinstance(event, PowerRead)]
    assert isinstance(events[-1], RunEnded)
    energies = [read.energy_j for read in reads]
    assert set(energies) == {0.0, 250.0}
    assert energies == sorted(energies)  # after the fresh one the sampler may repeat it before it is stopped
    with open_run(tmp_path / "a.h5") as saved:
        time_s, power_w = saved.series("power_w", "time_s")
        energy_j = saved.series("energy_j", "time_s")[1]
        np.testing.assert_array_equal(energy_j, [read.energy_j for read in reads])
        found = window_energy(time_s, power_w, energy_j, time_s[0], time_s[np.argmax(energy_j)], least_s=0.0)
    assert found.method == COUNTER
    assert found.energy_j == pytest.approx(250.0)


def test_that_tensor_core_use_clock_and_what_holds_it_are_in_the_file(monkeypatch, tmp_path):
    monkeypatch.setattr(gpm, "LEAST_S", 0.0)
    monkeypatch.setattr(device_state, "PERIOD_S", 0.05)
    install(monkeypatch, cards.h200(nvmlDeviceGetCurrentClocksEventReasons=0x40))
    run(tmp_path / "a.h5", lambda events: sum(isinstance(event, DeviceRead) for event in events) >= 4)
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

    def after(events: list[Event]) -> list[Event]:
        """What happened after the incident."""
        kinds = [isinstance(event, Incident) for event in events]
        return events[kinds.index(True) :] if any(kinds) else []

    card.fields[186] = lost_later
    events = run(tmp_path / "a.h5", lambda events: len(steps(after(events))) > 5)
    (incident,) = [event for event in events if isinstance(event, Incident) and event.kind == "sensor"]
    assert incident.step == steps(after(events))[0].step - 1
    assert events[-1].status == "stopped"
    with open_run(tmp_path / "a.h5") as saved:
        assert np.isnan(saved.series("power_w", "time_s")[1]).any()
