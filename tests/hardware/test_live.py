"""Live readings: every quantity where the driver gives it, a reason where it does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from precgui.hardware import gpm, live, rapl
from precgui.hardware.clock_reasons import CLOCK_REASONS
from precgui.hardware.device_readings import CPU, GpuReader
from precgui.hardware.live import HardwareSnapshot, LivePoller
from precgui.hardware.nvml import NvmlSession, open_session
from precgui.hardware.readings import Missing
from tests.hardware import cards
from tests.hardware.fake_nvml import (
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    NOT_SUPPORTED,
    RESERVED,
    UNKNOWN,
    Fails,
    NVMLError,
    install,
)


@pytest.fixture(autouse=True)
def no_rapl(monkeypatch, tmp_path):
    monkeypatch.setattr(rapl, "POWERCAP", tmp_path / "none")


def reader(monkeypatch, card) -> GpuReader:
    install(monkeypatch, card)
    opened = open_session()
    assert isinstance(opened, NvmlSession)
    return GpuReader(opened.gpus()[0])


def snapshots(enough: Callable[[list[HardwareSnapshot]], bool]) -> list[HardwareSnapshot]:
    """Snapshots until there are enough; asked in the thread of the poller, so that none goes by unseen."""
    found: list[HardwareSnapshot] = []
    done = threading.Event()

    def emit(snapshot: HardwareSnapshot) -> None:
        found.append(snapshot)
        if enough(found):
            done.set()

    poller = LivePoller(emit)
    poller.start()
    assert done.wait(60)
    poller.stop()
    poller.stop()
    return found


def test_that_an_h200_tells_everything_and_its_tensor_cores_after_two_samples(monkeypatch):
    monkeypatch.setattr(gpm, "LEAST_S", 0.0)
    h200 = reader(monkeypatch, cards.h200(nvmlDeviceGetCurrentClocksEventReasons=0x4 | 0x20))
    first = h200.everything()
    assert isinstance(first.values["tensor"], Missing)
    second = h200.everything()
    assert second.values["tensor"] == 64.5
    assert second.values["tensor_half"] == 64.0
    assert second.values["dram"] == 37.0
    assert second.values["power_instant_w"] == 263.5
    assert second.values["power_average_w"] == 251.0
    assert second.values["energy_j"] == pytest.approx(987654.321)
    assert second.values["utilisation"] == 83.0
    assert second.reasons == ("power cap", "thermal, software")
    assert second.processes[0].pid == 4242


def test_that_memory_of_the_driver_itself_is_not_used_unless_an_old_driver_counts_it(monkeypatch):
    assert reader(monkeypatch, cards.h100()).everything().values["memory_used_bytes"] == 3 << 30
    old = cards.h100()
    common = old.answer("nvmlDeviceGetMemoryInfo")
    old.answers["nvmlDeviceGetMemoryInfo"] = lambda version=0: Fails(13) if version else common
    assert reader(monkeypatch, old).everything().values["memory_used_bytes"] == (3 << 30) + RESERVED


def test_that_an_answer_of_a_future_type_is_absent(monkeypatch):
    fake = install(monkeypatch, cards.h100())
    answer = SimpleNamespace(nvmlReturn=0, valueType=99, value=None)
    fake.nvmlDeviceGetFieldValues = lambda card, wanted: [answer]
    assert isinstance(open_session().gpus()[0].field(186), Missing)


def test_that_gpm_is_asked_again_when_the_driver_was_only_busy(monkeypatch):
    fake = install(monkeypatch, cards.h100())
    asked, query = [], fake.nvmlGpmQueryDeviceSupport

    def busy_at_first(card):
        asked.append(card)
        if len(asked) == 1:
            raise NVMLError(UNKNOWN)
        return query(card)

    fake.nvmlGpmQueryDeviceSupport = busy_at_first
    meter = gpm.GpmMeter(open_session().gpus()[0])
    assert "999" in meter.support.reason
    assert "first sample" in meter.read().reason
    meter.read()
    assert len(asked) == 2
    meter.close()


def test_that_gpm_frees_every_sample_it_took(monkeypatch):
    monkeypatch.setattr(gpm, "LEAST_S", 0.0)
    fake = install(monkeypatch, cards.h100())
    h100 = GpuReader(open_session().gpus()[0])
    for _ in range(5):
        h100.everything()
    h100.close()
    assert fake.freed_samples == fake.taken_samples == 5


def test_that_an_a100_has_no_tensor_utilisation_and_says_why(monkeypatch):
    found = reader(monkeypatch, cards.a100()).everything()
    assert "from Hopper on" in found.values["tensor"].reason
    assert found.values["power_instant_w"] == 263.5


def test_that_older_drivers_are_asked_in_the_older_way(monkeypatch):
    card = cards.gtx_1660(
        nvmlDeviceGetTemperatureV=Fails(13), nvmlDeviceGetCurrentClocksEventReasons=Fails(13),
        nvmlDeviceGetCurrentClocksThrottleReasons=0x40,
    )  # fmt: skip
    found = reader(monkeypatch, card).everything()
    assert found.values["temperature_c"] == 47.0
    assert found.reasons == ("thermal, hardware",)
    assert found.values["power_average_w"] == 123.4
    assert isinstance(found.values["power_instant_w"], Missing)


def test_that_mig_and_wsl_leave_gaps_with_reasons(monkeypatch):
    mig = reader(monkeypatch, cards.a100_mig()).everything()
    assert "does not report" in mig.values["utilisation"].reason
    wsl = reader(monkeypatch, cards.wsl_laptop()).everything()
    assert isinstance(wsl.values["utilisation"], Missing)
    assert isinstance(wsl.reasons, Missing)
    assert isinstance(wsl.processes, Missing)
    assert wsl.values["power_average_w"] == 123.4


def test_that_what_is_never_told_is_asked_once(monkeypatch):
    asked = []

    def refuse() -> Fails:
        asked.append(1)
        return Fails(NOT_SUPPORTED)

    t4 = reader(monkeypatch, cards.t4(nvmlDeviceGetUtilizationRates=refuse))
    for _ in range(3):
        t4.everything()
    assert len(asked) == 1


def test_that_a_gpu_that_falls_off_the_bus_leaves_gaps_and_the_poller_goes_on(monkeypatch):
    card = cards.h100()
    install(monkeypatch, card)
    monkeypatch.setattr(live, "SLOW_S", 0.05)

    def lose_it(found: list[HardwareSnapshot]) -> bool:
        if len(found) == 3:
            for name in card.answers.keys() | {"nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"}:
                card.answers[name] = Fails(GPU_IS_LOST)
        return len(found) >= 10

    values = [snapshot.devices[0].values["power_instant_w"] for snapshot in snapshots(lose_it)]
    assert values[0] == 263.5
    assert isinstance(values[-1], Missing)
    assert values[-1].lost


def test_that_energy_is_integrated_only_where_there_is_no_counter(monkeypatch):
    install(monkeypatch, cards.wsl_laptop(), cards.t4())
    monkeypatch.setattr(live, "SLOW_S", 0.1)
    found = [s for s in snapshots(lambda found: sum(s.full for s in found) >= 3) if s.full]
    laptop, t4 = found[-1].devices[:2]
    seconds = found[-1].time_s - found[0].time_s
    assert laptop.values["energy_integrated_j"] == pytest.approx(123.4 * seconds)
    assert "energy_integrated_j" not in t4.values
    assert list(laptop.values)[:3] == ["power_instant_w", "power_average_w", "power_limit_w"]


def test_that_the_poller_reads_power_more_often_than_the_rest(monkeypatch):
    install(monkeypatch, cards.t4())
    monkeypatch.setattr(live, "SLOW_S", 3600.0)
    found = snapshots(lambda found: len(found) >= 4)
    full = [snapshot for snapshot in found if snapshot.full]
    assert full == found[:1]
    assert {reading.device for reading in full[0].devices} == {"GPU 0 Tesla T4", CPU}
    assert set(found[1].devices[0].values) == {"power_instant_w", "power_average_w"}


def test_that_a_machine_without_sensors_still_tells_load_and_memory(monkeypatch):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    before = set(threading.enumerate())
    (first, *_) = snapshots(lambda found: bool(found))
    assert set(threading.enumerate()) <= before
    assert [reading.device for reading in first.devices] == [CPU]
    assert first.devices[0].values["memory_used_bytes"] > 0


def test_that_every_reason_has_its_own_bit_and_word():
    words = [word for word, _, _ in CLOCK_REASONS.values()]
    assert len(set(words)) == len(words)
    assert all(bit & (bit - 1) == 0 for bit in CLOCK_REASONS)
