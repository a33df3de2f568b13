"""A few lines on this machine: kept in every run file and shown first in the window."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import psutil

from precgui.hardware import nvml
from precgui.hardware.cpu import read_cpu
from precgui.hardware.readings import Missing, known

_DISTRIBUTIONS = ("precgui", "torch", "torchvision")


def machine_summary() -> dict[str, Any]:
    """Host, system, CPU, memory, GPUs and versions in built-in types. Imports no torch; some 10 ms without a GPU."""
    with nvml.session() as opened:
        gpus = _gpus(opened)
        driver = None if isinstance(opened, Missing) else known(opened.ask("nvmlSystemGetDriverVersion"))
    return {
        "host": platform.node(),
        "os": operating_system(),
        "python": platform.python_version(),
        "cpu": {
            "name": read_cpu().name,
            "physical_cores": psutil.cpu_count(logical=False),
            "logical_cores": psutil.cpu_count(),
            "usable_cores": usable_cores(),
        },
        "memory_bytes": _memory_bytes(),
        "gpus": gpus,
        "nvidia_driver": driver,
        "versions": versions(),
    }


def _memory_bytes() -> int | None:
    """The main memory, None where the system does not report it, such as a Linux without /proc."""
    try:
        return int(psutil.virtual_memory().total)
    except (OSError, RuntimeError):
        return None


def versions(distributions: Sequence[str] = _DISTRIBUTIONS) -> dict[str, str | None]:
    """The installed versions by distribution, None for what is not installed; nothing is imported."""
    return {name: _version(name) for name in distributions}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def operating_system() -> str:
    """For example `Debian GNU/Linux 12 (bookworm), kernel 6.1.0`."""
    system = platform.system()
    if system == "Linux":
        try:
            name = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
        except OSError:
            name = "Linux"
        return f"{name}, kernel {platform.release()}"
    if system == "Darwin":
        return f"macOS {platform.mac_ver()[0]}"
    return f"{system} {platform.release()} {platform.version()}"


def usable_cores() -> int:
    """Logical cores that this process may run on (a container or taskset may give fewer than there are)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus(opened: nvml.NvmlSession | Missing) -> list[dict[str, Any]]:
    if isinstance(opened, Missing):
        return []
    return [
        {"name": f"GPU {index}", "memory_bytes": None, "uuid": None, "problem": gpu.reason}
        if isinstance(gpu, Missing)
        else _gpu(gpu)
        for index, gpu in enumerate(opened.gpus())
    ]


def _gpu(gpu: nvml.Gpu) -> dict[str, Any]:
    memory = gpu.ask("nvmlDeviceGetMemoryInfo")
    return {
        "name": gpu.name(),
        "memory_bytes": None if isinstance(memory, Missing) else int(memory.total),
        "uuid": known(gpu.ask("nvmlDeviceGetUUID")),
    }
