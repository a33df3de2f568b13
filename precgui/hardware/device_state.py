"""Activity of the devices during a run, as `DeviceRead` events: use, tensor cores, clocks and clock limits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from precgui.events import DeviceRead, Event, HostRead, Incident
from precgui.hardware import nvml
from precgui.hardware.clock_reasons import CLOCK_REASONS
from precgui.hardware.device_readings import CPU, CpuReader, GpuReader
from precgui.hardware.readings import Missing, Reading, known
from precgui.sentences import L_, Sentence

PERIOD_S = 0.5
_LEAST_S = 0.1  # between two readings: use is measured from one to the next

# Field of DeviceRead: the quantity it comes from, and the factor on it (percent become shares of 1).
_FIELDS = {
    "utilisation": ("utilisation", 0.01), "tensor_use": ("tensor", 0.01), "sm_use": ("sm", 0.01),
    "dram_use": ("dram", 0.01), "clock_mhz": ("sm_clock_mhz", 1.0), "temperature_c": ("temperature_c", 1.0),
}  # fmt: skip


PRESSURE = Path("/proc/pressure/cpu")  # Linux 4.20 and later, where the kernel was built with it


class HostLoadReader:
    """Reads the load since the last reading; NaN for values that the system does not provide."""

    def __init__(self, now_s: float, pressure: Path = PRESSURE) -> None:
        self._pressure = pressure
        self._process = _own_process()
        self._now_s, self._stalled_s, self._switches = now_s, self._stalled(), self._involuntary()

    def read(self, now_s: float) -> HostRead:
        stalled_s, switches, passed_s = self._stalled(), self._involuntary(), now_s - self._now_s
        share = (stalled_s - self._stalled_s) / passed_s if passed_s > 0 else math.nan
        result = HostRead(now_s, _load(), min(max(share, 0.0), 1.0), switches - self._switches)
        self._now_s, self._stalled_s, self._switches = now_s, stalled_s, switches
        return result

    def _stalled(self) -> float:
        """Seconds since the start of the system in which some process waited for a CPU."""
        try:
            match = re.search(r"^some .*\btotal=(\d+)", self._pressure.read_text(), re.MULTILINE)
        except OSError:
            return math.nan
        return int(match[1]) * 1e-6 if match else math.nan

    def _involuntary(self) -> float:
        if self._process is None:
            return math.nan
        try:
            return float(self._process.num_ctx_switches().involuntary)
        except (psutil.Error, OSError, NotImplementedError):
            return math.nan


def _own_process() -> psutil.Process | None:
    try:
        return psutil.Process()
    except (psutil.Error, OSError):  # a system without /proc
        return None


def _load() -> float:
    try:
        return float(psutil.getloadavg()[0])
    except OSError:
        return math.nan


class StateSampler:
    """Reads every GPU of a session and the CPU when `read` is called and it is time to.

    A device that disappears gives one row of NaN. What holds a clock down is one `Incident` per device and reason.
    Close it before the session.
    """

    def __init__(self, opened: Reading[nvml.NvmlSession], emit: Callable[[Event], None], now_s: float) -> None:
        self._emit = emit
        gpus = [] if isinstance(opened, Missing) else opened.gpus()
        self._gpus = [GpuReader(gpu) for gpu in gpus if not isinstance(gpu, Missing)]
        self._cpu = CpuReader()
        self._host = HostLoadReader(now_s)
        self._read_s = now_s
        self._spoke: set[str] = set()
        self._announced: set[tuple[str, str]] = set()
        for reader in self._gpus:
            reader.state()  # the first of two samples between which the driver counts

    def close(self) -> None:
        for reader in self._gpus:
            reader.close()

    def read(self, now_s: float, last: bool = False) -> None:
        """Emit the state since the last reading where the interval has passed; `last` allows a shorter interval."""
        if now_s - self._read_s < (_LEAST_S if last else PERIOD_S):
            return
        self._read_s = now_s
        for reader in self._gpus:
            bits = reader.reason_bits()
            self._tell(reader.device, now_s, reader.state(), bits)
            self._tell_held(reader.device, now_s, known(bits) or 0)
        self._tell(CPU, now_s, self._cpu.everything().values, Missing(L_("the system does not tell")))
        self._emit(self._host.read(now_s))

    def _tell(self, device: str, now_s: float, values: Mapping[str, Reading[float]], bits: Reading[int]) -> None:
        fields = {name: _scaled(values.get(quantity), factor) for name, (quantity, factor) in _FIELDS.items()}
        speaks = not all(map(math.isnan, fields.values()))
        if speaks or device in self._spoke:
            reasons = math.nan if isinstance(bits, Missing) else float(bits)
            self._emit(DeviceRead(device, now_s, **fields, clock_reasons=reasons))
        (self._spoke.add if speaks else self._spoke.discard)(device)

    def _tell_held(self, device: str, now_s: float, bits: int) -> None:
        for bit, (word, sentence, warns) in CLOCK_REASONS.items():
            if warns and bits & bit and (device, word) not in self._announced:
                self._announced.add((device, word))
                text = Sentence("{device}: {sentence}", device=device, sentence=sentence)
                self._emit(Incident(now_s, -1, "sensor", "warning", text))


def unavailable(gpu: nvml.Gpu) -> dict[str, str]:
    """The fields of DeviceRead that this GPU does not support, each with the reason."""
    reader = GpuReader(gpu)
    values = reader.state()
    reader.close()
    results = {name: values[quantity] for name, (quantity, _) in _FIELDS.items()}
    missing = {name: value.reason for name, value in results.items() if isinstance(value, Missing) and value.lasting}
    bits = reader.reason_bits()
    return missing | ({"clock_reasons": bits.reason} if isinstance(bits, Missing) and bits.lasting else {})


def _scaled(value: Reading[float] | None, factor: float) -> float:
    return math.nan if value is None or isinstance(value, Missing) else value * factor
