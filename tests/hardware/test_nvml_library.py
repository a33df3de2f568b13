"""The real binding (nvidia-ml-py, ctypes) against a library in C that answers like a driver with one H200."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
COMPILER = shutil.which("cc") or shutil.which("gcc")
PROGRAM = """
import ctypes, json, threading, time
from precgui.hardware import device_state, gpm, nvml, power
from precgui.hardware.detect import detect
from precgui.hardware.device_readings import GpuReader
from precgui.events import DeviceRead, PowerRead
from precgui.hardware.power import PowerSampler
gpm.LEAST_S = 0.0
device = detect().devices[0]
opened = nvml.open_session()
reader = GpuReader(opened.gpus()[0])
reader.everything()
reading = reader.everything()
reader.close()
events, done = [], threading.Event()
power.COUNTER_PERIOD_S = 3600.0  # at first and at last
device_state.PERIOD_S = 0.05

def emit(event):
    events.append(event)
    if isinstance(event, DeviceRead) and event.device.startswith("GPU"):
        done.set()

with PowerSampler(emit, time.perf_counter()):
    assert done.wait(60)
reads = [event for event in events if isinstance(event, PowerRead)]
state = [event for event in events if isinstance(event, DeviceRead) and event.device.startswith("GPU")][-1]
print(json.dumps({
    "name": device.name, "peak": device.formats["bf16"].peak.tops, "bandwidth": device.bandwidth_gbs,
    "values": reading.values, "reasons": reading.reasons, "process": reading.processes[0].pid,
    "used": reading.processes[0].memory_bytes, "power_w": reads[-1].power_w,
    "energies_j": sorted({read.energy_j for read in reads}),
    "state": [state.tensor_use, state.dram_use, state.clock_mhz, state.clock_reasons],
    "samples": ctypes.CDLL("libnvidia-ml.so.1").samples_alive(),
}))
"""


@pytest.mark.skipif(not (COMPILER and sys.platform == "linux"), reason="needs a C compiler on Linux")
def test_that_the_real_binding_reads_a_gpu_through_ctypes(tmp_path):
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=240
    )
    found = json.loads(answer.stdout)
    assert found["name"] == "NVIDIA H200"
    assert found["peak"] == pytest.approx(132 * 1.98 * 4096 / 1e3)
    assert found["bandwidth"] == pytest.approx(4917, rel=1e-3)
    values = found["values"]
    assert (values["power_instant_w"], values["power_average_w"]) == (251.5, 249.0)
    assert (values["tensor"], values["tensor_half"], values["dram"]) == (7.5, 10.5, 15.0)
    assert (values["temperature_c"], values["utilisation"], values["sm_clock_mhz"]) == (61.0, 97.0, 1755.0)
    assert values["memory_used_bytes"] == 4 << 30  # without what the driver keeps for itself
    assert found["reasons"] == ["power cap"]
    assert (found["process"], found["used"]) == (4194304, 3 << 30)
    assert found["power_w"] == 251.5
    assert found["state"] == pytest.approx([0.075, 0.15, 1755.0, 4.0])
    assert found["energies_j"] == [0.0, 250.0]
    assert found["samples"] == 0
