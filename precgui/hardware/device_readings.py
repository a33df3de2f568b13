"""One reading of one device: every quantity that its driver or the system gives, a reason for each that it does not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from precgui.hardware import nvml
from precgui.hardware.clock_reasons import CLOCK_REASONS
from precgui.hardware.gpm import GpmMeter
from precgui.hardware.readings import Missing, Reading
from precgui.sentences import L_

CPU = "CPU"

# quantity: (title, unit). Instant and average power are two readings of two clocks of the driver, not one.
PROGRAM_TICKS = 8  # slow ticks between two lists of all programs, each of which takes milliseconds
QUANTITIES: dict[str, tuple[str, str]] = {
    "power_instant_w": (L_("Power, instant"), "W"),
    "power_average_w": (L_("Power, average"), "W"),
    "power_limit_w": (L_("Power limit"), "W"),
    "energy_j": (L_("Energy counter"), "J"),
    "energy_integrated_j": (L_("Energy, integrated from power"), "J"),  # where there is no counter, since the start
    "sm_clock_mhz": (L_("SM clock"), "MHz"),
    "memory_clock_mhz": (L_("Memory clock"), "MHz"),
    "temperature_c": (L_("Temperature"), "°C"),
    "utilisation": (L_("Utilisation"), "%"),
    "memory_used_bytes": (L_("Memory used"), "B"),
    "memory_total_bytes": (L_("Memory"), "B"),
    "sm": (L_("SMs busy"), "%"),
    "tensor": (L_("Tensor cores busy"), "%"),
    "tensor_half": (L_("Tensor cores, FP16 to FP8"), "%"),
    "tensor_int": (L_("Tensor cores, INT8"), "%"),
    "tensor_fp64": (L_("Tensor cores, FP64"), "%"),
    "dram": (L_("Memory bandwidth used"), "%"),
}
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_TEMPERATURE_GPU = 0
_UNITS = ("sm", "tensor", "tensor_half", "tensor_int", "tensor_fp64", "dram")


UNREADABLE = Missing(L_("the system does not show it to this user"))


@dataclass(frozen=True, slots=True)
class ProcessLoad:
    """A program; `cpu_percent` is of one core, so it may exceed 100. An empty `command` could not be read."""

    pid: int
    name: str
    cpu_percent: float
    memory_bytes: Reading[int] = UNREADABLE  # resident
    command: str = ""


class ProcessLoads:
    """Compares the CPU time of every process with that of the last reading."""

    def __init__(self) -> None:
        self._before: dict[int, float] = {}
        self._time_s = 0.0

    def busiest(self, count: int = 6) -> tuple[ProcessLoad, ...]:
        """The busiest programs since the last reading, the busiest first; none at the first reading."""
        now_s = time.perf_counter()
        used: dict[int, float] = {}
        names: dict[int, str] = {}
        for process in psutil.process_iter(["name", "cpu_times"], ad_value=None):
            times = process.info["cpu_times"]
            if times is not None:
                used[process.pid] = times.user + times.system
                names[process.pid] = process.info["name"] or ""
        before, self._before = self._before, used
        passed_s, self._time_s = now_s - self._time_s, now_s
        loads = {pid: 100 * (total - before[pid]) / passed_s for pid, total in used.items() if pid in before}
        top = sorted(loads.items(), key=lambda item: -item[1])[:count]
        return tuple(_described(pid, names[pid], load) for pid, load in top if load >= 1)


def _described(pid: int, name: str, load: float) -> ProcessLoad:
    """With its memory and command, as far as the system shows them to this user."""
    try:
        process = psutil.Process(pid)
        return ProcessLoad(pid, name, load, process.memory_info().rss, " ".join(process.cmdline()))
    except psutil.Error:  # ended, or another user's
        return ProcessLoad(pid, name, load)


@dataclass(frozen=True, slots=True)
class Process:
    """A program that computes on a GPU; `memory_bytes` is Missing where the driver does not report it (Windows)."""

    pid: int
    name: str
    memory_bytes: Reading[int]


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One device at one moment. `values` holds the quantities that were asked for at this tick."""

    device: str
    values: Mapping[str, Reading[float]]
    reasons: Reading[tuple[str, ...]]
    processes: Reading[tuple[Process, ...]]
    core_loads: tuple[float, ...] = ()  # of the host: percent of each logical core; empty where they were not asked
    busiest: tuple[ProcessLoad, ...] | None = None  # of the host; None at a tick that does not ask


class GpuReader:
    """Reads one GPU. A reading that the driver does not support is asked for once."""

    def __init__(self, gpu: nvml.Gpu) -> None:
        self.device = f"GPU {gpu.index} {gpu.name()}"
        self._gpu = gpu
        self._never: dict[tuple[Any, ...], Missing] = {}
        self._meter = GpmMeter(gpu)

    def close(self) -> None:
        self._meter.close()

    def power(self) -> dict[str, Reading[float]]:
        """Instant and average power in watts."""
        average = self._field(nvml.FIELD_POWER_AVERAGE)
        if isinstance(average, Missing) and not average.lost:
            average = self._ask("nvmlDeviceGetPowerUsage")
        instant = self._field(nvml.FIELD_POWER_INSTANT)
        return {"power_instant_w": _scaled(instant, 1e-3), "power_average_w": _scaled(average, 1e-3)}

    def everything(self) -> DeviceReading:
        """All quantities, throttle reasons and processes."""
        memory = self._remembered(("memory",), self._gpu.memory)
        values: dict[str, Reading[float]] = {
            **self.power(),
            "power_limit_w": _scaled(self._ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            "energy_j": _scaled(self._ask("nvmlDeviceGetTotalEnergyConsumption"), 1e-3),
            "memory_clock_mhz": _scaled(self._ask("nvmlDeviceGetClockInfo", _CLOCK_MEMORY)),
            "memory_used_bytes": memory if isinstance(memory, Missing) else float(memory.used),
            "memory_total_bytes": memory if isinstance(memory, Missing) else float(memory.total),
            **self.state(),
        }
        in_order = {name: values[name] for name in QUANTITIES if name in values}
        return DeviceReading(self.device, in_order, self.reasons(), self.processes())

    def state(self) -> dict[str, Reading[float]]:
        """Activity of the GPU: utilisation and the use of its units in percent, its clock and temperature."""
        busy = self._ask("nvmlDeviceGetUtilizationRates")
        return {
            "utilisation": busy if isinstance(busy, Missing) else float(busy.gpu),
            "sm_clock_mhz": _scaled(self._ask("nvmlDeviceGetClockInfo", _CLOCK_SM)),
            "temperature_c": _scaled(self._temperature()),
            **self._units(),
        }

    def reason_bits(self) -> Reading[int]:
        """Why the clocks are not higher, as bits of CLOCK_REASONS."""
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if isinstance(bits, Missing) and not bits.lost:
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")  # drivers before 535
        return bits if isinstance(bits, Missing) else int(bits)

    def reasons(self) -> Reading[tuple[str, ...]]:
        """Why the clocks are not higher, in words; empty when nothing limits them."""
        bits = self.reason_bits()
        if isinstance(bits, Missing):
            return bits
        return tuple(word for bit, (word, _, _) in CLOCK_REASONS.items() if bits & bit)

    def processes(self) -> Reading[tuple[Process, ...]]:
        """Programs that compute here, the largest first."""
        result = self._ask("nvmlDeviceGetComputeRunningProcesses")
        if isinstance(result, Missing):
            return result
        listed = [Process(int(p.pid), _process_name(int(p.pid)), _used(p.usedGpuMemory)) for p in result]
        return tuple(sorted(listed, key=lambda p: 0 if isinstance(p.memory_bytes, Missing) else -p.memory_bytes))

    def _temperature(self) -> Reading[Any]:
        result = self._ask("nvmlDeviceGetTemperatureV", _TEMPERATURE_GPU)
        if isinstance(result, Missing) and not result.lost:
            return self._ask("nvmlDeviceGetTemperature", _TEMPERATURE_GPU)  # drivers before CUDA 13
        return result

    def _units(self) -> dict[str, Reading[float]]:
        result = self._meter.read()
        if isinstance(result, Missing):
            return dict.fromkeys(_UNITS, result)
        return {name: result.get(name, Missing(L_("the driver leaves it out"))) for name in _UNITS}

    def _ask(self, function: str, *arguments: Any) -> Reading[Any]:
        return self._remembered((function, *arguments), lambda: self._gpu.ask(function, *arguments))

    def _field(self, number: int) -> Reading[float]:
        return self._remembered((number,), lambda: self._gpu.field(number))

    def _remembered(self, key: tuple[Any, ...], ask: Callable[[], Reading[Any]]) -> Reading[Any]:
        if key in self._never:
            return self._never[key]
        answer = ask()
        if isinstance(answer, Missing) and answer.lasting:
            self._never[key] = answer
        return answer


class CpuReader:
    """Load and memory of the host. The load is that since the reading before.

    `detailed` asks for the load of each core, too, and every few seconds for the busiest programs.
    """

    def __init__(self, *, detailed: bool = False) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # a Linux without /proc
            psutil.cpu_percent()
        self._first = True
        self._detailed, self._ticks, self._programs = detailed, 0, ProcessLoads()

    def everything(self) -> DeviceReading:
        none: Reading[Any] = Missing(L_("the system does not tell"))
        try:
            memory, load = psutil.virtual_memory(), float(psutil.cpu_percent())
        except (OSError, RuntimeError):  # a Linux without /proc
            untold = dict.fromkeys(("utilisation", "memory_used_bytes", "memory_total_bytes"), none)
            return DeviceReading(CPU, untold, none, none)
        first, self._first = self._first, False
        values: dict[str, Reading[float]] = {
            "utilisation": Missing(L_("it is measured between two readings")) if first else load,
            "memory_used_bytes": float(memory.total - memory.available),
            "memory_total_bytes": float(memory.total),
        }
        if not self._detailed:
            return DeviceReading(CPU, values, none, none)
        cores = tuple(map(float, psutil.cpu_percent(percpu=True)))
        asks, self._ticks = self._ticks % PROGRAM_TICKS == 0, self._ticks + 1
        busiest = self._programs.busiest() if asks else None
        return DeviceReading(CPU, values, none, none, () if first else cores, busiest)


def _scaled(value: Reading[Any], factor: float = 1.0) -> Reading[float]:
    return value if isinstance(value, Missing) else float(value) * factor


def _used(memory: int | None) -> Reading[int]:
    return Missing(L_("the driver does not tell on Windows")) if memory is None else int(memory)


def _process_name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return L_("another user's process")
