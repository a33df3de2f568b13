"""The first message of an agent: versions and devices of its machine, read without torch in some 10 ms."""

from __future__ import annotations

import platform

import psutil

from precgui import __version__
from precgui.hardware import nvml
from precgui.hardware.cpu import read_cpu
from precgui.hardware.readings import Missing
from precgui.hardware.summary import operating_system, versions
from precgui.places.messages import PlaceDevice, PlaceHello


def hello() -> PlaceHello:
    """That of this machine."""
    return PlaceHello(
        precgui=__version__,
        python=platform.python_version(),
        torch=torch_version(),
        host=platform.node(),
        system=operating_system(),
        devices=(_host(), *_gpus()),
    )


def torch_version() -> str:
    """Of the torch that is installed; empty without one."""
    return versions(("torch",))["torch"] or ""


def _host() -> PlaceDevice:
    try:
        memory = psutil.virtual_memory()
    except (OSError, RuntimeError):  # a Linux without /proc
        return PlaceDevice("cpu", read_cpu().name, 0, 0)
    return PlaceDevice("cpu", read_cpu().name, int(memory.total), int(memory.available))


def _gpus() -> list[PlaceDevice]:
    with nvml.session() as opened:
        if isinstance(opened, Missing):
            return []
        return [_gpu(f"cuda:{index}", gpu) for index, gpu in enumerate(opened.gpus()) if not isinstance(gpu, Missing)]


def _gpu(device_id: str, gpu: nvml.Gpu) -> PlaceDevice:
    memory = gpu.ask("nvmlDeviceGetMemoryInfo")
    if isinstance(memory, Missing):
        return PlaceDevice(device_id, gpu.name(), 0, 0)
    return PlaceDevice(device_id, gpu.name(), int(memory.total), int(memory.free))
