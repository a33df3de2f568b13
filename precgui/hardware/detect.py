"""Everything this machine has to compute with, and what it does with each format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from precgui.hardware import nvml, support, tables
from precgui.hardware.cpu import Cpu, read_cpu
from precgui.hardware.cpu_support import cpu_row
from precgui.hardware.device import Device
from precgui.hardware.nvidia import nvidia_devices, unseen
from precgui.hardware.peak import with_peaks
from precgui.hardware.power import SensorReport, find_sensors
from precgui.hardware.readings import Missing, Reading, known
from precgui.hardware.summary import machine_summary
from precgui.sentences import L_, Sentence

_UNTOLD = Missing(L_("torch does not tell the clock and the units of this device"))
_NO_FACTS: Mapping[str, Any] = {"devices": []}


@dataclass(frozen=True, slots=True)
class Machine:
    """Accelerators first, the CPU last; `torch` holds the facts of torch, None when torch was not imported."""

    devices: tuple[Device, ...]
    host: Mapping[str, Any]
    sensors: tuple[SensorReport, ...]
    torch: Mapping[str, Any] | None

    def device(self, device_id: str) -> Device | None:
        return next((device for device in self.devices if device.id == device_id), None)


def detect(torch_facts: Mapping[str, Any] | None = None) -> Machine:
    """Detect the machine. `torch_facts` comes from engine.torch_facts; without it only driver and system are asked."""
    facts = torch_facts or _NO_FACTS
    cpu = read_cpu(facts.get("cpu_features"))
    with nvml.session() as opened:
        devices = nvidia_devices(opened, facts["devices"])
        _, sensors = find_sensors(opened)
    if torch_facts is not None:
        devices = [replace(device, problem=unseen(device, torch_facts)) for device in devices]
    devices += [_other(row, cpu) for row in facts["devices"] if row["kind"] != "cuda"]
    host = machine_summary()
    return Machine((*devices, _cpu_device(cpu, host)), host, tuple(sensors), torch_facts)


def _cpu_device(cpu: Cpu, host: Mapping[str, Any]) -> Device:
    cores = host["cpu"]
    features: Reading[str] = cpu.features if isinstance(cpu.features, Missing) else ", ".join(sorted(cpu.features))
    permission = cpu.amx_permitted
    amx: Reading[str] = (
        permission if isinstance(permission, Missing) else L_("allowed") if permission else L_("refused")
    )
    details: tuple[tuple[str, Reading[str]], ...] = (
        (
            L_("Cores"),
            Sentence(
                "{physical} physical, {logical} logical, {usable} usable",
                physical=cores["physical_cores"],
                logical=cores["logical_cores"],
                usable=cores["usable_cores"],
            ),
        ),
        (L_("Generation"), cpu.generation or Missing(L_("no table knows this model"))),
        (L_("Instructions"), features),
        *([(L_("AMX by the kernel"), amx)] if cpu.has("amx_tile") else []),
    )
    return Device(
        "cpu", "cpu", cpu.name, cpu.generation, cpu.machine, cpu_row(cpu),
        host["memory_bytes"] or Missing(L_("the system does not tell it")),
        Missing(L_("no system tells it; precgui bench measures it")), details,
    )  # fmt: skip


def _other(row: Mapping[str, Any], cpu: Cpu) -> Device:
    """An AMD, Intel or Apple GPU as far as torch shows it."""
    kind, name = row["kind"], row["name"]
    if kind == "rocm":
        return _amd(row)
    vendor, reported_name = ("apple", cpu.name) if kind == "mps" else ("intel", name)
    architecture = tables.by_name(vendor, reported_name)
    sheet = tables.card(reported_name)
    if architecture is None:
        matrix = support.unknown(Sentence("No table knows {name}; measure it with precgui bench.", name=reported_name))
    else:
        matrix = with_peaks(support.by_list(architecture), architecture, "", _UNTOLD, _UNTOLD, sheet)
    memory: Reading[int] = row.get("memory_bytes") or Missing(L_("shared with the CPU"))
    return Device(row["id"], kind, f"{reported_name} GPU" if kind == "mps" else name,
                  architecture.name if architecture else "", "", matrix, memory,
                  sources=sheet.sources if sheet else ())  # fmt: skip


def _amd(row: Mapping[str, Any]) -> Device:
    architecture = tables.by_capability("amd", row["capability"])
    sheet = tables.card(row["name"])
    if architecture is None:
        matrix = support.unknown(
            Sentence("No table knows {name}; measure it with precgui bench.", name=row["capability"])
        )
    else:
        matrix = with_peaks(support.amd(architecture), architecture, "", _UNTOLD, _UNTOLD, sheet)
        matrix = _halved(matrix) if "MI250" in row["name"] else matrix
    return Device(
        row["id"], "rocm", row["name"], architecture.name if architecture else "", row["capability"], matrix,
        row["memory_bytes"], (sheet and sheet.bandwidth_gbs) or Missing(L_("not in the table")),
        ((L_("Compute units"), str(row["sms"])),), uuid=row["uuid"], sources=sheet.sources if sheet else (),
    )  # fmt: skip


def _halved(matrix: Mapping[str, support.Support]) -> dict[str, support.Support]:
    """MI250 boards are two devices for torch: each has half of the board's peak."""
    halved = {}
    for name, cell in matrix.items():
        peak = known(cell.peak)
        if peak is not None:
            half = replace(
                peak,
                tops=peak.tops / 2,
                formula=Sentence("half of the {formula} (two devices on one board)", formula=peak.formula),
            )
            cell = replace(cell, peak=half)
        halved[name] = cell
    return halved


def best_device(devices: Sequence[Device]) -> Device:
    """Where a run would go with `device = auto`: the first accelerator that torch can use, else the CPU."""
    usable = [d for d in devices if d.kind != "cpu" and not d.problem and d.id.startswith(("cuda", "xpu", "mps"))]
    return usable[0] if usable else devices[-1]
