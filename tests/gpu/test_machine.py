"""Detection, live readings, tensor-core use and energy through the real NVML."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from precgui.engine.bench.parts import sensor_names
from precgui.engine.torch_facts import torch_facts
from precgui.events import DeviceRead, Event, PowerRead
from precgui.hardware import nvml
from precgui.hardware.detect import detect
from precgui.hardware.device_readings import QUANTITIES, GpuReader
from precgui.hardware.energy import COUNTER, INTEGRATED, window_energy
from precgui.hardware.live import HardwareSnapshot, LivePoller
from precgui.hardware.power import PowerSampler
from precgui.hardware.readings import Missing, known
from precgui.hardware.step_energy import EnergyPlan, StepEnergy, measure_step
from precgui.hardware.support import FORMATS

pytestmark = pytest.mark.gpu
HOPPER = (9, 0)


def test_that_driver_and_torch_agree_on_the_gpu(gpu):
    properties = torch.cuda.get_device_properties(0)
    assert gpu.name == properties.name
    assert gpu.capability == f"{properties.major}.{properties.minor}"
    assert gpu.problem == ""
    assert properties.total_memory <= gpu.memory_bytes <= 1.1 * properties.total_memory
    assert dict(gpu.details)["SMs"] == str(properties.multi_processor_count)
    assert not isinstance(dict(gpu.details)["Driver"], Missing)
    assert set(gpu.formats) == set(FORMATS)
    assert all(cell.reason for cell in gpu.formats.values())


def test_that_the_architecture_is_known_and_its_peaks_are_near_the_datasheet(gpu):
    if gpu.architecture == "":
        pytest.skip(f"no table knows {gpu.name}")
    peak = known(gpu.formats["fp32"].peak)
    assert peak is not None
    assert peak.datasheet_tops is None or peak.tops == pytest.approx(peak.datasheet_tops, rel=0.15)


def test_that_every_reading_is_a_figure_or_a_reason(gpu):
    with nvml.session() as opened:
        assert not isinstance(opened, Missing)
        reader = GpuReader(opened.gpus()[0])
        reader.everything()
        time.sleep(0.3)
        reading = reader.everything()
        reader.close()
    for name, value in reading.values.items():
        assert name in QUANTITIES
        assert value.reason if isinstance(value, Missing) else np.isfinite(value), name
    assert 10 < reading.values["temperature_c"] < 110
    assert 0 < reading.values["memory_used_bytes"] <= reading.values["memory_total_bytes"]


def test_that_memory_used_is_that_of_programs(gpu):
    held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    with nvml.session() as opened:
        assert not isinstance(opened, Missing)
        memory = opened.gpus()[0].memory()
    assert not isinstance(memory, Missing)
    assert held.nbytes <= memory.used <= memory.total


def test_that_live_readings_see_a_load(load):
    found: list[HardwareSnapshot] = []
    poller = LivePoller(found.append)
    with load():
        poller.start()
        time.sleep(4)
        poller.stop()
    last = [snapshot for snapshot in found if snapshot.full][-1].devices[0].values
    assert last["utilisation"] > 50
    power = last["power_average_w"]
    assert isinstance(power, Missing) or power > 20
    tensor = last["tensor"]
    assert isinstance(tensor, Missing) or tensor > 10  # a container may not read it on Hopper either
    assert isinstance(tensor, Missing) or torch.cuda.get_device_capability() >= HOPPER
    if not isinstance(tensor, Missing):
        assert tensor > 10


def sampled(seconds: float) -> list[Event]:
    events: list[Event] = []
    with PowerSampler(events.append, time.perf_counter()):
        time.sleep(seconds)
    return events


def test_that_what_a_run_would_keep_sees_the_load(load):
    with load():
        events = sampled(3.0)
    states = [event for event in events if isinstance(event, DeviceRead) and event.device.startswith("GPU 0")]
    assert len(states) >= 4
    assert states[-1].utilisation > 0.5
    assert states[-1].clock_mhz > 200
    if torch.cuda.get_device_capability() >= HOPPER:
        assert states[-1].tensor_use > 0.1
        assert states[-1].sm_use > 0.5


def test_that_the_energy_counter_and_integrated_power_agree(load):
    with load():
        time.sleep(2)  # the power rises for a second
        events = sampled(6.0)
    reads = [event for event in events if isinstance(event, PowerRead) and event.device.startswith("GPU 0")]
    times, watts, joules = np.array([(read.time_s, read.power_w, read.energy_j) for read in reads]).T
    if np.isnan(joules).all():
        pytest.skip("this GPU has no energy counter")
    counted = window_energy(times, watts, joules, 0.5, 5.5)
    integrated = window_energy(times, watts, np.full_like(joules, np.nan), 0.5, 5.5)
    assert (counted.method, integrated.method) == (COUNTER, INTEGRATED)
    assert counted.energy_j == pytest.approx(integrated.energy_j, rel=0.2)


def test_that_the_energy_of_a_product_is_below_what_the_board_may_draw(gpu):
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    plan = EnergyPlan(warm_up_s=1.0, idle_s=2.0, window_s=2.0, windows=2)
    sensors = sensor_names(torch.device("cuda:0"), gpu.uuid)
    if not sensors:
        pytest.skip("this GPU has no power sensor")
    begin = time.perf_counter()
    found = measure_step(lambda: torch.mm(a, a), sensors, torch.cuda.synchronize, plan)
    assert isinstance(found, StepEnergy)
    watts = found.gross_j * found.steps / (plan.windows * plan.window_s)
    assert 20 < watts < 1.3 * float(str(dict(gpu.details)["Power limit"]).split()[0])
    assert known(found.net_j) is None or 0 < found.net_j < found.gross_j
    assert time.perf_counter() - begin > plan.windows * plan.window_s


def test_that_detection_without_torch_sees_the_same_gpu(gpu):
    assert gpu.name in [device.name for device in detect().devices]
    assert torch_facts()["devices"][0]["name"] == gpu.name
