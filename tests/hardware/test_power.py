"""The power sampler with fake NVML cards and a fake powercap tree."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from precgui.events import DeviceRead, Event, HostRead, Incident, PowerRead
from precgui.hardware import device_state, gpm, power, rapl
from precgui.hardware.device_readings import CPU
from precgui.hardware.power import PowerSampler
from tests.hardware import cards
from tests.hardware.fake_nvml import DRIVER_NOT_LOADED, GPU_IS_LOST, LIBRARY_NOT_FOUND, MISMATCH, Fails, install


@pytest.fixture(autouse=True)
def no_rapl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty place for powercap, so that the machine of the test does not answer."""
    root = tmp_path / "powercap"
    monkeypatch.setattr(rapl, "POWERCAP", root)
    return root


def add_zone(root: Path, zone: str, name: str, energy_uj: int, range_uj: int = 262_143_328_850) -> Path:
    folder = root / zone
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return folder


def sample_until(enough: Callable[[list[Event]], bool]) -> list[Event]:
    """Events until there are enough; asked in the thread of the sampler, so that no event goes by unseen."""
    events: list[Event] = []
    done = threading.Event()

    def emit(event: Event) -> None:
        events.append(event)
        if enough(events):
            done.set()

    with PowerSampler(emit, time.perf_counter()):
        assert done.wait(60)
    return events


def reads(events: list[Event], device: str) -> list[PowerRead]:
    return [event for event in events if isinstance(event, PowerRead) and event.device == device]


def test_that_instant_power_and_the_energy_counter_of_an_a100_are_read(monkeypatch):
    counter = iter(range(1_000_000, 10**9, 500))
    monkeypatch.setattr(power, "COUNTER_PERIOD_S", 3600.0)  # at first and at last
    install(monkeypatch, cards.a100(nvmlDeviceGetTotalEnergyConsumption=lambda: next(counter)))
    found = reads(sample_until(lambda events: len(events) >= 3), "GPU 0 NVIDIA A100-SXM4-80GB")
    assert {read.power_w for read in found} == {263.5}
    assert found[0].energy_j == 0.0
    assert found[-1].energy_j == pytest.approx(0.5)
    times = [read.time_s for read in found]
    assert times == sorted(times)


def test_that_the_average_is_taken_where_there_is_no_instant_power(monkeypatch):
    fake = install(monkeypatch, cards.gtx_1660())
    sampler = PowerSampler(lambda event: None, 0.0)
    (gpu, _) = sampler.sensors()
    assert gpu.available
    assert "averaged by the driver" in gpu.message
    assert fake.open_sessions == 0
    events = sample_until(lambda events: len(events) >= 2)
    assert {read.power_w for read in reads(events, "GPU 0 NVIDIA GeForce GTX 1660")} == {123.4}
    assert fake.open_sessions == 0


def test_that_a_card_without_a_counter_has_no_energy(monkeypatch):
    install(monkeypatch, cards.wsl_laptop())
    events = sample_until(lambda events: len(events) >= 2)
    found = reads(events, "GPU 0 NVIDIA GeForce RTX 4070 Laptop GPU")
    assert found
    assert all(math.isnan(read.energy_j) and read.power_w == 123.4 for read in found)


def test_that_a_gpu_falling_off_the_bus_leaves_one_gap_and_one_incident(monkeypatch):
    card = cards.h100()
    install(monkeypatch, card)

    def lose_it_later(events: list[Event]) -> bool:
        if len(events) == 3:
            card.answers["nvmlDeviceGetFieldValues"] = Fails(GPU_IS_LOST)
        return any(isinstance(event, Incident) for event in events)

    monkeypatch.setattr(power, "_RETRY_S", 0.02)
    events = sample_until(lose_it_later)
    incidents = [event for event in events if isinstance(event, Incident)]
    assert [incident.kind for incident in incidents] == ["sensor"]
    assert "fallen off the bus" in incidents[0].message
    gaps = [read for read in reads(events, "GPU 0 NVIDIA H100 80GB HBM3") if math.isnan(read.power_w)]
    assert len(gaps) == 1


def test_that_a_sensor_that_comes_back_is_read_again(monkeypatch):
    card = cards.t4()
    install(monkeypatch, card)
    monkeypatch.setattr(power, "_RETRY_S", 0.02)

    def lose_and_find(events: list[Event]) -> bool:
        lost = any(isinstance(event, Incident) for event in events)
        card.fields[186] = 31_000 if lost or len(events) < 2 else Fails(GPU_IS_LOST)
        card.answers["nvmlDeviceGetTotalEnergyConsumption"] = 5000 if lost or len(events) < 2 else Fails(GPU_IS_LOST)
        return lost and not math.isnan(reads(events, "GPU 0 Tesla T4")[-1].power_w)

    kinds = [type(event) for event in sample_until(lose_and_find)]
    gap = kinds.index(Incident)
    assert PowerRead in kinds[gap + 1 :]


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (LIBRARY_NOT_FOUND, "no NVIDIA driver on this machine"),
        (DRIVER_NOT_LOADED, "no NVIDIA driver on this machine"),
        (MISMATCH, "reboot to load the new one"),
    ],
)
def test_that_a_missing_or_mismatched_driver_is_a_sentence(monkeypatch, code, sentence):
    install(monkeypatch, init=code)
    nvml_report, rapl_report = PowerSampler(lambda event: None, 0.0).sensors()
    assert not nvml_report.available
    assert sentence in nvml_report.message
    assert "does not exist" in rapl_report.message


def test_that_without_sensors_the_cpu_alone_is_read_and_no_thread_stays(monkeypatch):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    monkeypatch.setattr(device_state, "PERIOD_S", 0.05)
    before = set(threading.enumerate())
    events = sample_until(lambda events: len(events) >= 3)
    assert set(threading.enumerate()) <= before
    assert {type(event) for event in events} == {DeviceRead, HostRead}
    readings = [event for event in events if isinstance(event, DeviceRead)]
    assert {event.device for event in readings} == {CPU}
    assert all(0 <= event.utilisation <= 1 and math.isnan(event.tensor_use) for event in readings)
    sampler = PowerSampler(events.append, 0.0)
    sampler.start()
    sampler.stop()
    sampler.stop()
    assert set(threading.enumerate()) <= before


def states(events: list[Event], device: str) -> list[DeviceRead]:
    return [event for event in events if isinstance(event, DeviceRead) and event.device == device]


def test_that_the_use_of_a_gpu_is_told_beside_its_power(monkeypatch):
    monkeypatch.setattr(gpm, "LEAST_S", 0.0)
    monkeypatch.setattr(device_state, "PERIOD_S", 0.05)
    fake = install(monkeypatch, cards.h100(nvmlDeviceGetCurrentClocksEventReasons=0x4 | 0x1))
    name = "GPU 0 NVIDIA H100 80GB HBM3"
    events = sample_until(lambda events: len(states(events, name)) >= 3)
    first = states(events, name)[0]
    assert (first.utilisation, first.tensor_use, first.sm_use, first.dram_use) == pytest.approx(
        (0.83, 0.645, 0.91, 0.37)
    )
    assert (first.clock_mhz, first.temperature_c, first.clock_reasons) == (1860.0, 47.0, 5.0)
    (incident,) = [event for event in events if isinstance(event, Incident)]
    assert incident.message == f"{name}: The power limit holds the clocks down."
    assert fake.freed_samples == fake.taken_samples > 3
    assert fake.open_sessions == 0


def test_that_what_an_older_card_never_tells_has_a_reason(monkeypatch):
    install(monkeypatch, cards.a100(), cards.h100(), cards.a100_mig())
    a100, h100, mig, _ = PowerSampler(lambda event: None, 0.0).sensors()
    assert set(a100.unavailable) == {"tensor_use", "sm_use", "dram_use"}
    assert "from Hopper on" in a100.unavailable["tensor_use"]
    assert h100.unavailable == {}
    assert "does not report" in mig.unavailable["utilisation"]


def test_that_a_lost_gpu_leaves_one_row_without_figures_and_the_cpu_goes_on(monkeypatch):
    card = cards.t4()
    install(monkeypatch, card)
    monkeypatch.setattr(device_state, "PERIOD_S", 0.02)
    name = "GPU 0 Tesla T4"

    def lose_it_later(events: list[Event]) -> bool:
        if len(states(events, name)) == 2:
            for function in ("UtilizationRates", "ClockInfo", "TemperatureV", "Temperature"):
                card.answers[f"nvmlDeviceGet{function}"] = Fails(GPU_IS_LOST)
        return len(states(events, CPU)) >= 8

    found = states(sample_until(lose_it_later), name)
    assert [math.isnan(state.utilisation) for state in found] == [False, False, True]


def test_that_rapl_power_is_energy_over_time_and_memory_has_its_own_device(monkeypatch, no_rapl):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    package = add_zone(no_rapl, "intel-rapl:0", "package-0", 1_000_000)
    add_zone(no_rapl, "intel-rapl:0:0", "core", 1)
    add_zone(no_rapl, "intel-rapl:0:1", "dram", 500)
    add_zone(no_rapl, "intel-rapl:1", "psys", 1)
    add_zone(no_rapl, "intel-rapl-mmio:0", "package-0", 1)
    names = [report.device for report in PowerSampler(lambda event: None, 0.0).sensors() if report.available]
    assert names == ["CPU package 0", "DRAM 0"]

    def count_up(events: list[Event]) -> bool:
        (package / "next").write_text(str(1_000_000 + 250_000 * len(events)))
        (package / "next").replace(package / "energy_uj")  # a real counter is never half written
        return len(events) >= 6

    found = reads(sample_until(count_up), "CPU package 0")
    energies = [read.energy_j for read in found]
    assert energies == sorted(energies)
    assert energies[-1] > 0
    for before, after in pairwise(found):
        watts = (after.energy_j - before.energy_j) / (after.time_s - before.time_s)
        assert after.power_w == pytest.approx(watts)


def test_that_a_wrapped_counter_is_one_step_and_a_reset_one_is_not():
    assert rapl.energy_between(262_000.0, 3.0, 262_010.0, 1.0) == pytest.approx(13.0)
    assert rapl.energy_between(5.0, 7.5, 262_010.0, 1.0) == 2.5
    assert rapl.energy_between(100_000.0, 3.0, 262_010.0, 1.0) is None


def test_that_a_counter_for_root_only_tells_the_cure(monkeypatch, no_rapl):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    folder = add_zone(no_rapl, "intel-rapl:0", "package-0", 1)
    read_text = Path.read_text

    def refuse(path: Path, *arguments: object, **options: object) -> str:
        if path == folder / "energy_uj":
            raise PermissionError(13, "Permission denied")
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    report = PowerSampler(lambda event: None, 0.0).sensors()[1]
    assert not report.available
    assert "readable by root only" in report.message
    assert "chmod" in report.message


def test_that_an_emptied_powercap_folder_is_a_sentence(monkeypatch, no_rapl):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    no_rapl.mkdir()
    assert "has no package counter" in PowerSampler(lambda event: None, 0.0).sensors()[1].message
