"""The programs that use the processor most, between two readings."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from precgui.hardware.readings import Absent, Maybe

UNREADABLE = Absent("the system does not show it to this user")


@dataclass(frozen=True, slots=True)
class ProcessLoad:
    """A program; `cpu_percent` is of one core, so it may exceed 100. An empty `command` could not be read."""

    pid: int
    name: str
    cpu_percent: float
    memory_bytes: Maybe[int] = UNREADABLE  # resident
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
