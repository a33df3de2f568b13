"""Facts about the installed torch and the devices it sees, as built-in types only."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from precgui.sentences import L_, Sentence, first_line

# Switches of the new API, read by attribute: the legacy getters raise once one of these has been written.
_SWITCHES = (
    "backends.fp32_precision",
    "backends.cuda.matmul.fp32_precision",
    "backends.cudnn.fp32_precision",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
    "backends.mkldnn.matmul.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
)
_TF32_OVERRIDE = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"


class _Stoppable(Protocol):
    def stopped(self) -> bool: ...


def serve(emit: Callable[[Any], None], control: _Stoppable) -> None:
    """Task of a child process: emits the facts once."""
    if not control.stopped():
        emit(torch_facts())


def torch_facts() -> dict[str, Any]:
    """Version, build, switches, threads, CPU features and devices of this torch; JSON-able. Raises nothing.

    `refusals` holds, by device id, with which words torch refuses a device that it counts.
    """
    result, refusals = devices()
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "onednn": _onednn(),
        "architectures": torch.cuda.get_arch_list() if torch.version.cuda else [],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_features": _cpu_features(),
        "threads": torch.get_num_threads(),
        "switches": switches(),
        "devices": result,
        "refusals": refusals,
    }


def switches() -> dict[str, Any]:
    """Each precision switch with its present value, or the message of torch where it cannot be read."""
    results = {name: _switch(name) for name in _SWITCHES}
    results["get_float32_matmul_precision()"] = _plain_value(torch.get_float32_matmul_precision)
    if _TF32_OVERRIDE in os.environ:
        results[f"${_TF32_OVERRIDE}"] = os.environ[_TF32_OVERRIDE]
    return results


def _switch(path: str) -> Any:
    def read() -> Any:
        value: Any = torch
        for part in path.split("."):
            value = getattr(value, part)
        return value

    return _plain_value(read)


def _plain_value(read: Callable[[], Any]) -> Any:
    try:
        value = read()
    except AttributeError:
        return L_("not in this version of torch")
    except RuntimeError as error:
        return Sentence("torch refuses to tell: {why}…", why=str(error)[:80])
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _onednn() -> str | None:
    match = re.search(r"MKL-DNN v([\d.]+)", torch.__config__.show())
    return match.group(1) if match else None


def _cpu_features() -> dict[str, bool]:
    """`torch.cpu.get_capabilities()` where this torch has it, its flags only."""
    ask: Callable[[], Mapping[str, Any]] | None = getattr(torch.cpu, "get_capabilities", None)
    return {key: value for key, value in sorted(ask().items()) if isinstance(value, bool)} if ask else {}


def devices() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """(accelerators that torch can use: CUDA or ROCm, Intel XPU, Apple MPS; why it refuses others, by id)."""
    results: list[dict[str, Any]] = []
    refusals: dict[str, str] = {}
    for kind, backend, describe in (("cuda", torch.cuda, _cuda), ("xpu", torch.xpu, _xpu)):
        for index in range(backend.device_count() if backend.is_available() else 0):
            try:
                results.append(describe(index))
            except RuntimeError as error:  # a GPU in exclusive use, with a fault, or out of memory
                refusals[f"{kind}:{index}"] = first_line(error)
    if torch.backends.mps.is_available():
        results.append({"id": "mps:0", "kind": "mps", "name": "Apple GPU"})
    return results, refusals


def cuda_uuid(device: torch.device) -> str:
    """The UUID of an NVIDIA GPU, without the prefix of NVML; empty for another device."""
    if device.type != "cuda" or torch.version.hip:
        return ""
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))


def _cuda(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    gfx = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    return {
        "id": f"cuda:{index}",
        "kind": "rocm" if torch.version.hip else "cuda",
        "name": properties.name,
        "capability": gfx if torch.version.hip else f"{properties.major}.{properties.minor}",
        "sms": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "uuid": str(getattr(properties, "uuid", "")),
        "kernels": torch.version.hip is not None or _has_kernels(properties.major, properties.minor),
    }


def _has_kernels(major: int, minor: int) -> bool:
    """Whether this build of torch carries machine code for the card, or code that the driver can translate for it."""
    built = [re.match(r"(sm|compute)_(\d+?)(\d)[a-z]?$", name) for name in torch.cuda.get_arch_list()]
    parts = [(result[1], int(result[2]), int(result[3])) for result in built if result]
    same_major = any(kind == "sm" and m == major and n <= minor for kind, m, n in parts)
    return same_major or any(kind == "compute" and (m, n) <= (major, minor) for kind, m, n in parts)


def _xpu(index: int) -> dict[str, Any]:
    properties = torch.xpu.get_device_properties(index)
    return {
        "id": f"xpu:{index}",
        "kind": "xpu",
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "fp64": bool(getattr(properties, "has_fp64", False)),
    }
