"""NVIDIA devices, from the driver and, where it is silent, from torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from precgui.hardware import nvml, support, tables
from precgui.hardware.device import Device
from precgui.hardware.peak import with_peaks
from precgui.hardware.readings import Missing, Reading, known
from precgui.hardware.support import Support
from precgui.hardware.tables import GpuModel
from precgui.sentences import L_, Sentence

_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_MOST_MIG_SLICES = 16

TorchDevices = Sequence[Mapping[str, Any]]


def nvidia_devices(opened: Reading[nvml.NvmlSession], torch_devices: TorchDevices) -> list[Device]:
    """Every NVIDIA GPU and MIG slice, then devices that only torch lists."""
    rows = [row for row in torch_devices if row["kind"] == "cuda"]
    devices: list[Device] = []
    if not isinstance(opened, Missing):
        for index, gpu in enumerate(opened.gpus()):
            devices += [_unreachable(index, gpu)] if isinstance(gpu, Missing) else _with_slices(gpu, opened, rows)
    visited = {device.id for device in devices}
    return devices + [_from_torch(row) for row in rows if row["id"] not in visited]


def _unreachable(index: int, gpu: Missing) -> Device:
    problem = Sentence("The driver lists this GPU but cannot open it: {reason}.", reason=gpu.reason)
    row = support.unknown(L_("The GPU does not answer."))
    return Device(f"gpu:{index}", "cuda", f"NVIDIA GPU {index}", "", "", row, problem=problem)


def _with_slices(gpu: nvml.Gpu, opened: nvml.NvmlSession, rows: TorchDevices) -> list[Device]:
    if not _is_divided(gpu):
        return [_from_driver(gpu, opened, rows)]
    whole, slices = _from_driver(gpu, opened, ()), list[Device]()
    for index in range(_MOST_MIG_SLICES):
        left = [row for row in rows if row["id"] not in [device.id for device in slices]]
        result = _slice(gpu, index, left, whole.uuid)
        slices += [result] if result else []
    return [whole, *slices]


def _is_divided(gpu: nvml.Gpu) -> bool:
    mode = gpu.ask("nvmlDeviceGetMigMode")
    return not isinstance(mode, Missing) and bool(mode[0])


def _slice(gpu: nvml.Gpu, index: int, rows: TorchDevices, whole_uuid: str) -> Device | None:
    """One MIG slice. CUDA may give torch the UUID of the whole GPU; then the name identifies the slice."""
    handle = gpu.ask("nvmlDeviceGetMigDeviceHandleByIndex", index)
    if isinstance(handle, Missing):
        return None
    part = nvml.Gpu(gpu.library, gpu.index, handle)
    attributes = part.ask("nvmlDeviceGetAttributes")
    sms: Reading[int] = attributes if isinstance(attributes, Missing) else int(attributes.multiprocessorCount)
    memory: Reading[int] = attributes if isinstance(attributes, Missing) else int(attributes.memorySizeMB) << 20
    capability = _capability(gpu)
    row, architecture = _row(gpu.name(), capability, sms, _clock(gpu, _CLOCK_SM), None)
    uuid = str(known(part.ask("nvmlDeviceGetUUID")) or "")
    named = [row for row in rows if row["name"] == part.name()]
    torch_id = _torch_id(uuid, rows) or _torch_id(whole_uuid, named)
    details = (("SMs", _text(sms)), (L_("Part of"), gpu.name()))
    bandwidth = Missing(L_("a slice has a part of that of the GPU, which the driver does not tell"))
    return Device(
        torch_id or f"gpu:{gpu.index}/{index}", "cuda", part.name(), architecture,
        known(capability) or "", row, memory, bandwidth, details, uuid=uuid,
    )  # fmt: skip


def _from_driver(gpu: nvml.Gpu, opened: nvml.NvmlSession, rows: TorchDevices) -> Device:
    name, capability = gpu.name(), _capability(gpu)
    uuid = str(known(gpu.ask("nvmlDeviceGetUUID")) or "")
    memory, sheet = gpu.ask("nvmlDeviceGetMemoryInfo"), tables.card(name)
    sms, clock = _sms(gpu, capability, uuid, rows), _clock(gpu, _CLOCK_SM)
    if sheet and not tables.is_sheet_of(sheet, known(sms), None if isinstance(memory, Missing) else int(memory.total)):
        sheet = None
    sms = sheet.sms if isinstance(sms, Missing) and sheet and sheet.sms else sms
    row, architecture = _row(name, capability, sms, clock, sheet)
    details = (
        ("SMs", _text(sms)),
        (L_("Highest SM clock"), _text(clock, "MHz")),
        (L_("Power limit"), _text(_scaled(gpu.ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3), "W")),
        ("ECC", _switch(gpu.ask("nvmlDeviceGetEccMode"))),
        ("MIG", _switch(gpu.ask("nvmlDeviceGetMigMode"))),
        (L_("Driver"), _text(opened.ask("nvmlSystemGetDriverVersion"))),
        (L_("CUDA of the driver"), _cuda_version(opened)),
    )
    return Device(
        _torch_id(uuid, rows) or f"gpu:{gpu.index}", "cuda", name, architecture, known(capability) or "", row,
        memory if isinstance(memory, Missing) else int(memory.total),
        _bandwidth(gpu, sheet), details, _problem(gpu, uuid, rows), uuid, sheet.sources if sheet else (),
    )  # fmt: skip


def _row(
    name: str, capability: Reading[str], sms: Reading[int], clock: Reading[float], sheet: GpuModel | None
) -> tuple[dict[str, Support], str]:
    """(matrix with peaks, name of the architecture); unknown cards get unknown rows, never another card's."""
    if isinstance(capability, Missing):
        return support.unknown(Sentence("The compute capability is not known: {reason}.", reason=capability.reason)), ""
    architecture = tables.by_capability("nvidia", capability)
    if architecture is None:
        return support.unknown(
            Sentence(
                "No table knows compute capability {capability}; measure it with precgui bench.", capability=capability
            )
        ), ""
    row = support.nvidia(architecture, name)
    product_class = support.product_class(name, capability)
    return with_peaks(row, architecture, product_class, sms, clock, sheet), architecture.name


def _from_torch(row: Mapping[str, Any]) -> Device:
    """A GPU that torch can use and the driver's library does not list (Jetson, or NVML out of order)."""
    sheet = tables.card(row["name"])
    if sheet and not tables.is_sheet_of(sheet, row["sms"] or None, row["memory_bytes"]):
        sheet = None
    clock = Missing(L_("NVML does not tell the clock"))
    matrix, architecture = _row(row["name"], row["capability"], row["sms"], clock, sheet)
    return Device(
        row["id"], "cuda", row["name"], architecture, row["capability"], matrix, row["memory_bytes"],
        details=(("SMs", str(row["sms"])),), problem=_no_kernels(row), uuid=row["uuid"],
        sources=sheet.sources if sheet else (),
    )  # fmt: skip


def _capability(gpu: nvml.Gpu) -> Reading[str]:
    result = gpu.ask("nvmlDeviceGetCudaComputeCapability")
    return result if isinstance(result, Missing) else f"{result[0]}.{result[1]}"


def _sms(gpu: nvml.Gpu, capability: Reading[str], uuid: str, rows: TorchDevices) -> Reading[int]:
    """The number of SMs as torch reports it, else derived from the number of cores."""
    reported = next((row["sms"] for row in rows if nvml.bare_uuid(row["uuid"]) == nvml.bare_uuid(uuid)), None)
    if reported is not None:
        return int(reported)
    cores = gpu.ask("nvmlDeviceGetNumGpuCores")
    architecture = None if isinstance(capability, Missing) else tables.by_capability("nvidia", capability)
    if not isinstance(cores, Missing) and architecture and architecture.fp32_per_sm:
        return int(cores) // architecture.fp32_per_sm
    return cores if isinstance(cores, Missing) else Missing(L_("cores per SM of this architecture are not known"))


def _clock(gpu: nvml.Gpu, kind: int) -> Reading[float]:
    result = gpu.ask("nvmlDeviceGetMaxClockInfo", kind)
    return result if isinstance(result, Missing) else float(result)


def _bandwidth(gpu: nvml.Gpu, sheet: GpuModel | None) -> Reading[float]:
    """GB/s: two transfers per memory clock over the whole bus; the datasheet where the driver is silent."""
    clock_mhz, bits = _clock(gpu, _CLOCK_MEMORY), gpu.ask("nvmlDeviceGetMemoryBusWidth")
    if not isinstance(clock_mhz, Missing) and not isinstance(bits, Missing):
        return 2 * clock_mhz * int(bits) / 8 * 1e-3
    if sheet and sheet.bandwidth_gbs:
        return float(sheet.bandwidth_gbs)
    return Missing(L_("the driver tells no memory clock or bus width"))


def _problem(gpu: nvml.Gpu, uuid: str, rows: TorchDevices) -> str:
    if _is_divided(gpu):
        return L_("This GPU is divided by MIG: programs use its slices, and all slices share one power reading.")
    row = next((row for row in rows if nvml.bare_uuid(row["uuid"]) == nvml.bare_uuid(uuid)), None)
    return _no_kernels(row) if row else ""


def _no_kernels(row: Mapping[str, Any]) -> str:
    if row.get("kernels", True):
        return ""
    return Sentence(
        "The installed torch was not built for capability {capability}: its kernels do not run on this GPU.",
        capability=row["capability"],
    )


def unseen(device: Device, facts: Mapping[str, Any]) -> str:
    """Why torch does not list a GPU that the driver lists, and the cure; empty when it does, or has another problem."""
    if device.problem or device.kind != "cuda" or not device.id.startswith("gpu:"):
        return device.problem
    if not facts.get("cuda"):
        built = "for ROCm" if facts.get("hip") else "without CUDA"
        return Sentence(
            "The installed torch was built {built} and cannot use this GPU: install one that is built for CUDA.",
            built=built,
        )
    driver = str(dict(device.details).get("CUDA of the driver", ""))
    if driver[:1].isdigit() and int(driver.split(".")[0]) < int(str(facts["cuda"]).split(".")[0]):
        return Sentence(
            "torch cannot use this GPU: it was built for CUDA {built}, the driver knows CUDA {driver}. "
            "Update the driver, or install a torch built for it.",
            built=facts["cuda"],
            driver=driver,
        )
    if refusals := facts.get("refusals"):
        text = "; ".join(f"{name}: {words}" for name, words in refusals.items())
        return Sentence("torch refuses a GPU and does not say which of the driver's it is: {text}.", text=text)
    if "/" in device.id:
        return Sentence(
            "torch sees one slice of a GPU at a time; this one with CUDA_VISIBLE_DEVICES={uuid}.", uuid=device.uuid
        )
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is None:
        return L_("torch does not see this GPU, which the driver lists.")
    return Sentence(
        "torch does not see this GPU, which the driver lists; CUDA_VISIBLE_DEVICES is set to {hidden!r}.", hidden=hidden
    )


def _torch_id(uuid: str, rows: TorchDevices) -> str:
    return next((str(row["id"]) for row in rows if uuid and nvml.bare_uuid(row["uuid"]) == nvml.bare_uuid(uuid)), "")


def _cuda_version(opened: nvml.NvmlSession) -> Reading[str]:
    result = opened.ask("nvmlSystemGetCudaDriverVersion")
    return result if isinstance(result, Missing) else f"{result // 1000}.{result % 1000 // 10}"


def _scaled(value: Reading[Any], factor: float) -> Reading[float]:
    return value if isinstance(value, Missing) else float(value) * factor


def _switch(modes: Reading[Any]) -> Reading[str]:
    """A pair (now, after the next reset) as on or off."""
    return modes if isinstance(modes, Missing) else ("on" if modes[0] else "off")


def _text(value: Reading[Any], unit: str = "") -> Reading[str]:
    if isinstance(value, Missing):
        return value
    return f"{value:g} {unit}".strip() if isinstance(value, int | float) else str(value)
