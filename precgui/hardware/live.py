"""Present readings of the machine: one snapshot per tick, from a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from precgui.hardware import nvml, power
from precgui.hardware.device_readings import CpuReader, DeviceReading, GpuReader
from precgui.hardware.readings import Missing, Reading, known
from precgui.sentences import L_

SLOW_S = 0.5  # clocks, temperature, utilisation, memory


@dataclass(frozen=True, slots=True)
class HardwareSnapshot:
    """All devices at `time_s` (seconds since the poller began). `full`: all readings, not only power."""

    time_s: float
    full: bool
    devices: tuple[DeviceReading, ...]


class _Integral:
    """The energy of a GPU without a counter: its power, integrated while it is read."""

    def __init__(self) -> None:
        self._joules = 0.0
        self._before: tuple[float, float] | None = None
        self._no_counter = False

    def take(self, now_s: float, reading: DeviceReading) -> DeviceReading:
        """The reading, with `energy_integrated_j` when it is one of everything and has no counter."""
        values = reading.values
        if "energy_j" in values:
            counter = values["energy_j"]
            self._no_counter = isinstance(counter, Missing) and counter.lasting
        instant = known(values["power_instant_w"])
        watts = known(values["power_average_w"]) if instant is None else instant
        if watts is not None and self._before is not None:
            self._joules += (watts + self._before[1]) / 2 * (now_s - self._before[0])
        self._before = None if watts is None else (now_s, watts)
        if not self._no_counter or watts is None or "energy_j" not in values:
            return reading
        return replace(reading, values={**values, "energy_integrated_j": self._joules})


class LivePoller:
    """Sends snapshots from `start` to `stop`: power at half the period of its counter, the rest twice a second.

    `emit` is called in the poller's thread. Polling keeps a laptop GPU awake: stop it when no reading is shown.
    """

    def __init__(self, emit: Callable[[HardwareSnapshot], None]) -> None:
        self._emit = emit
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._poll, name="live poller", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it; may be called again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join()

    def _poll(self) -> None:
        with nvml.session() as opened:
            gpus = [] if isinstance(opened, Missing) else opened.gpus()
            readers = [GpuReader(gpu) for gpu in gpus if not isinstance(gpu, Missing)]
            self._loop(readers, _rapl_sensors())
            for reader in readers:
                reader.close()

    def _loop(self, readers: list[GpuReader], rapl: list[power.RaplSensor]) -> None:
        cpu, start, slow_due = CpuReader(detailed=True), time.perf_counter(), 0.0
        period_s = power.PERIOD_S if readers or rapl else SLOW_S
        integrals = [_Integral() for _ in readers]
        due = start
        while not self._stop.wait(max(0.0, due - time.perf_counter())):
            now_s = time.perf_counter() - start
            full = now_s >= slow_due
            slow_due = now_s + SLOW_S if full else slow_due
            read = [r.everything() if full else _only_power(r) for r in readers]
            gpus = [integral.take(now_s, reading) for integral, reading in zip(integrals, read, strict=True)]
            zones = [_zone(sensor, now_s) for sensor in rapl]
            host = [cpu.everything()] if full else []
            self._emit(HardwareSnapshot(now_s, full, (*gpus, *host, *zones)))
            due = max(due + period_s, time.perf_counter())


def _only_power(reader: GpuReader) -> DeviceReading:
    none: Reading[Any] = Missing(L_("not asked at this tick"))
    return DeviceReading(reader.device, reader.power(), none, none)


def _rapl_sensors() -> list[power.RaplSensor]:
    sensors, _ = power.find_sensors(Missing(L_("asked elsewhere")))
    return [sensor for sensor in sensors if isinstance(sensor, power.RaplSensor)]


def _zone(sensor: power.RaplSensor, now_s: float) -> DeviceReading:
    result = sensor.read(now_s)
    watts, joules = (result, result) if isinstance(result, Missing) else result
    none: Reading[Any] = Missing(L_("RAPL does not tell"))
    return DeviceReading(sensor.device, {"power_average_w": watts, "energy_j": joules}, none, none)
