"""Power and energy of every device with a sensor and the load of the devices, sampled in one thread, as events."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from precgui.events import Event, Incident, PowerRead
from precgui.hardware import device_state, nvml, rapl
from precgui.hardware.readings import Missing, Reading, known
from precgui.sentences import L_, Sentence, filled, together

# The sensors renew their value every 20 ms (Pascal, Volta) to 100 ms (all later GPUs): half of that, at most 20 Hz.
PERIOD_S = 0.05
# Energy counters of some GPUs fall short when read faster (an RTX 4090 by 75 % at 10 ms, by 2 % at 1 s).
COUNTER_PERIOD_S = 1.0
_RETRY_S = 1.0


_OF_SOURCE = L_("{source}: {clause}.")


@dataclass(frozen=True, slots=True)
class SensorReport:
    """One sensor that was tried. `message` is a sentence for the user; `unavailable` the fields of DeviceRead
    that the device does not support, each with the reason."""

    source: str  # "NVML" or "RAPL"
    device: str  # "" when the whole source is missing
    available: bool
    message: str
    unavailable: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, source: str, device: str, available: bool, clause: str, unavailable: Mapping[str, str] | None = None
    ) -> Self:
        """The report of a sensor of this machine; `clause` says what it is, or why it is not available."""
        message = filled(_OF_SOURCE, source=source, clause=clause)
        return cls(source, device, available, message, unavailable or {})

    @property
    def reason(self) -> str:
        """The message without the source."""
        if isinstance(self.message, Sentence) and self.message.template == _OF_SOURCE:
            return Sentence("{clause}.", clause=self.message.values["clause"])
        return self.message.removeprefix(f"{self.source}: ")


class Sensor(Protocol):
    """Something with a power reading. `device` names it in events and files."""

    device: str

    def read(self, now_s: float, last: bool = False) -> Reading[tuple[float, float]]:
        """(watts, joules since the first reading), NaN for what the sensor lacks. `last` forces a fresh counter."""
        ...


class GpuSensor:
    """NVML power of one GPU: the instant reading where there is one, the driver's average otherwise."""

    def __init__(self, gpu: nvml.Gpu) -> None:
        self.device = f"GPU {gpu.index} {gpu.name()}"
        self._gpu = gpu
        self._instant = not isinstance(gpu.field(nvml.FIELD_POWER_INSTANT), Missing)
        self._has_counter = not isinstance(self._counter_j(), Missing)
        self._first_j = math.nan
        self._energy_j = math.nan
        self._counter_read_s = -math.inf

    def uuid(self) -> str:
        """The answer of NVML, empty where it has none."""
        return str(known(self._gpu.ask("nvmlDeviceGetUUID")) or "")

    def describe(self) -> Reading[str]:
        """The readings of this sensor, in words; Missing when neither power nor energy can be read."""
        power = self._power_w()
        if isinstance(power, Missing) and not self._has_counter:
            return power
        kind = L_("instant power") if self._instant else L_("power as averaged by the driver")
        first = L_("no power reading") if isinstance(power, Missing) else kind
        return together(first, L_("energy counter") if self._has_counter else L_("no energy counter"), between=", ")

    def read(self, now_s: float, last: bool = False) -> Reading[tuple[float, float]]:
        power = self._power_w()
        if isinstance(power, Missing) and (power.lost or not self._has_counter):
            return power
        if self._has_counter and (last or now_s - self._counter_read_s >= COUNTER_PERIOD_S):
            counter = self._counter_j()
            if isinstance(counter, Missing):
                return counter
            if math.isnan(self._first_j):
                self._first_j = counter
            self._counter_read_s, self._energy_j = now_s, counter - self._first_j
        return (math.nan if isinstance(power, Missing) else power), self._energy_j

    def _power_w(self) -> Reading[float]:
        milliwatts = (
            self._gpu.field(nvml.FIELD_POWER_INSTANT) if self._instant else self._gpu.ask("nvmlDeviceGetPowerUsage")
        )
        return milliwatts if isinstance(milliwatts, Missing) else float(milliwatts) * 1e-3

    def _counter_j(self) -> Reading[float]:
        millijoules = self._gpu.ask("nvmlDeviceGetTotalEnergyConsumption")
        return millijoules if isinstance(millijoules, Missing) else float(millijoules) * 1e-3


class RaplSensor:
    """Mean power of a CPU package or its memory between two readings of its energy counter.

    A silence is bridged by the counter where that allows it. Where it does not, the joules begin at 0 again, so that no
    window across the silence can be measured.
    """

    def __init__(self, zone: rapl.Zone) -> None:
        self.device = zone.device
        self._zone = zone
        self._previous: tuple[float, float] | None = None
        self._energy_j = 0.0

    def read(self, now_s: float, last: bool = False) -> Reading[tuple[float, float]]:
        counter = self._zone.read_j()
        if isinstance(counter, Missing):
            return counter
        previous, self._previous = self._previous, (now_s, counter)
        if previous is None or now_s <= previous[0]:
            return math.nan, math.nan
        interval_s = now_s - previous[0]
        used_j = rapl.energy_between(previous[1], counter, self._zone.range_j, interval_s)
        if used_j is None:
            self._energy_j = 0.0
            return math.nan, self._energy_j
        self._energy_j += used_j
        return used_j / interval_s, self._energy_j


def find_sensors(opened: Reading[nvml.NvmlSession]) -> tuple[list[Sensor], list[SensorReport]]:
    """Every readable sensor, GPUs first, and a report on each that was tried."""
    sensors: list[Sensor] = []
    reports: list[SensorReport] = []
    for find in (_gpu_sensors(opened), _rapl_sensors()):
        for sensor, report in find:
            reports.append(report)
            if sensor is not None:
                sensors.append(sensor)
    return sensors, reports


def _gpu_sensors(opened: Reading[nvml.NvmlSession]) -> list[tuple[Sensor | None, SensorReport]]:
    if isinstance(opened, Missing):
        return [(None, SensorReport.of("NVML", "", False, opened.reason))]
    gpus = opened.gpus()
    if not gpus:
        return [(None, SensorReport.of("NVML", "", False, L_("the driver is there but lists no GPU")))]
    return [_gpu_sensor(index, gpu) for index, gpu in enumerate(gpus)]


def _gpu_sensor(index: int, gpu: Reading[nvml.Gpu]) -> tuple[Sensor | None, SensorReport]:
    if isinstance(gpu, Missing):
        text = Sentence("GPU {index} cannot be opened, {reason}", index=index, reason=gpu.reason)
        return None, SensorReport.of("NVML", f"GPU {index}", False, text)
    sensor, unavailable = GpuSensor(gpu), device_state.unavailable(gpu)
    what = sensor.describe()
    if isinstance(what, Missing):
        text = Sentence("{device} has no power: {reason}", device=sensor.device, reason=what.reason)
        return None, SensorReport.of("NVML", sensor.device, False, text, unavailable)
    text = Sentence("{device}, {kind}", device=sensor.device, kind=what)
    return sensor, SensorReport.of("NVML", sensor.device, True, text, unavailable)


def _rapl_sensors() -> list[tuple[Sensor | None, SensorReport]]:
    zones = rapl.zones()
    if isinstance(zones, Missing):
        return [(None, SensorReport.of("RAPL", "", False, zones.reason))]
    return [_rapl_sensor(zone) for zone in zones]


def _rapl_sensor(zone: rapl.Zone) -> tuple[Sensor | None, SensorReport]:
    counter = zone.read_j()
    if isinstance(counter, Missing):
        return None, SensorReport.of("RAPL", zone.device, False, counter.reason)
    text = Sentence("{device}, energy counter", device=zone.device)
    return RaplSensor(zone), SensorReport.of("RAPL", zone.device, True, text)


class PowerSampler:
    """Reads every power sensor about 20 times a second, and what the devices do twice a second, in one daemon thread.

    `emit` is called in that thread. `start_time` is the `time.perf_counter()` of the run's zero. Between two readings
    of a GPU's energy counter (one a second, and one at the end) `energy_j` repeats the latest one. A sensor that
    disappears gives one NaN reading and one `Incident`; it is tried again every second.
    """

    def __init__(self, emit: Callable[[Event], None], start_time: float) -> None:
        self._emit = emit
        self._start_time = start_time
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._session: Reading[nvml.NvmlSession] = Missing(L_("not opened yet"))
        self._sensors: list[Sensor] = []
        self._states: device_state.StateSampler | None = None
        self._reading = threading.Lock()
        self._retry_at: dict[str, float] = {}
        self._announced: set[str] = set()

    def sensors(self) -> list[SensorReport]:
        """A report on each sensor that was tried, with the reason where it cannot be read; starts nothing."""
        with nvml.session() as opened:
            return find_sensors(opened)[1]

    def start(self) -> None:
        """Begin sampling; does nothing when it runs already."""
        if self._thread is not None:
            return
        self._session = nvml.open_session()
        self._sensors, _ = find_sensors(self._session)
        self._states = device_state.StateSampler(self._session, self._emit, self._now())
        self._stop.clear()
        self._thread = threading.Thread(target=self._sample, name="power sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take a last reading, end the thread and wait for it; may be called again."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stop.set()
        thread.join()
        self._sensors = []
        if self._states is not None:
            self._states.close()
        self._close_session()

    def read_now(self) -> None:
        """Take a reading with a fresh energy counter at once, in the calling thread: the end of a window of energy."""
        if self._thread is not None:
            self._read_all(last=True)

    def __enter__(self) -> PowerSampler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _close_session(self) -> None:
        if isinstance(self._session, nvml.NvmlSession):
            self._session.close()
        self._session = Missing("closed")

    def _now(self) -> float:
        return time.perf_counter() - self._start_time

    def _sample(self) -> None:
        period_s = PERIOD_S if self._sensors else device_state.PERIOD_S
        due = time.perf_counter()
        while not self._stop.wait(max(0.0, due - time.perf_counter())):
            self._read_all(last=False)
            due = max(due + period_s, time.perf_counter())
        self._read_all(last=True)

    def _read_all(self, last: bool) -> None:
        with self._reading:
            for sensor in self._sensors:
                now_s = self._now()
                if now_s >= self._retry_at.get(sensor.device, -math.inf):
                    self._read(sensor, now_s, last)
            if self._states is not None:
                self._states.read(self._now(), last)

    def _read(self, sensor: Sensor, now_s: float, last: bool) -> None:
        reading = sensor.read(now_s, last)
        if isinstance(reading, Missing):
            self._lose(sensor.device, now_s, reading.reason)
            return
        self._retry_at.pop(sensor.device, None)
        if not all(map(math.isnan, reading)):
            self._emit(PowerRead(sensor.device, now_s, *reading))

    def _lose(self, device: str, now_s: float, reason: str) -> None:
        if device not in self._retry_at:
            self._emit(PowerRead(device, now_s, math.nan, math.nan))
        self._retry_at[device] = now_s + _RETRY_S
        if device not in self._announced:
            self._announced.add(device)
            message = Sentence(
                "{device} no longer reports its power: {reason}. The gap in the plot starts here.",
                device=device,
                reason=reason,
            )
            self._emit(Incident(now_s, -1, "sensor", "warning", message))
