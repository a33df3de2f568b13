"""Energy of a matrix product on a device, by the energy meter that runs use, too."""

from __future__ import annotations

from typing import Any

import torch

from precgui.engine.bench_timing import Work
from precgui.engine.device import synchronize
from precgui.hardware import nvml
from precgui.hardware.energy import EnergyPlan, measure_step
from precgui.hardware.gauge import Gauge
from precgui.hardware.power import GpuSensor, RaplSensor, find_sensors
from precgui.hardware.readings import Absent, known

PLAN = EnergyPlan(warm_up_s=3.0, idle_s=3.0, window_s=3.0, windows=3)


def energy_row(run: Work, size: int, device: torch.device, gauge: Gauge) -> dict[str, Any]:
    """Joules of one product, gross and above idle, with the operations per joule; a note says why there is none."""
    sensors = sensor_names(device, gauge.uuid)
    if not sensors:
        return {"gross_j": None, "note": "no power sensor belongs to this device"}
    found = measure_step(run, sensors, lambda: synchronize(device), PLAN, gauge.remarks)
    if isinstance(found, Absent):
        return {"gross_j": None, "note": found.reason}
    return {
        "gross_j": found.gross_j,
        "net_j": known(found.net_j),
        "idle_w": known(found.idle_w),
        "uncertainty": found.uncertainty,
        "gigaops_per_joule": 2 * size**3 / found.gross_j * 1e-9,
        "method": found.method,
        "note": " ".join(found.remarks),
    }


def sensor_names(device: torch.device, uuid: str) -> list[str]:
    """The sensors of a GPU by its UUID, or those of the CPU's packages and memory."""
    with nvml.session() as opened:
        sensors, _ = find_sensors(opened)
        if device.type == "cpu":
            return [sensor.device for sensor in sensors if isinstance(sensor, RaplSensor)]
        return [sensor.device for sensor in sensors if isinstance(sensor, GpuSensor) and sensor.uuid() == uuid]
