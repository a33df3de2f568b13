"""How busy the host is: load, pressure on its CPUs, and how often this process had to give up its CPU."""

from __future__ import annotations

import math
import re
from pathlib import Path

import psutil

from precgui.events import HostRead

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
