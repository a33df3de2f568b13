"""The machine as a report: one JSON tree, or text to paste into a bug report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precgui.hardware.advice import Advice, advice_json
from precgui.hardware.detect import Machine
from precgui.hardware.device import Device, device_json
from precgui.hardware.measured import best_tops, number_text, of_device
from precgui.hardware.readings import Missing


def document(machine: Machine, advices: Mapping[str, Advice], torch_problem: str = "") -> dict[str, Any]:
    """The document of `precgui detect --json`; `advices` by device id."""
    sensors = [
        {"source": s.source, "device": s.device, "found": s.available, "message": s.message} for s in machine.sensors
    ]
    return {
        "devices": [{**device_json(d), "advice": advice_json(advices[d.id])} for d in machine.devices],
        "host": {**machine.host, "sensors": sensors},
        "torch": {"problem": torch_problem} if machine.torch is None else dict(machine.torch),
    }


def text(machine: Machine, advices: Mapping[str, Advice], results: list[dict[str, Any]]) -> str:
    """The machine as plain text, with the newest measured rates of each device."""
    host = machine.host
    versions = ", ".join(f"{name} {version}" for name, version in host["versions"].items() if version)
    lines = [f"{host['os']}, Python {host['python']}, {versions}", *(sensor.message for sensor in machine.sensors)]
    for device in machine.devices:
        lines += ["", *_device_lines(device), *_measured_lines(device, results), *_advice_lines(advices[device.id])]
    if machine.torch is not None:
        lines += [
            "",
            "Switches of torch:",
            *(f"  {name} = {value}" for name, value in machine.torch["switches"].items()),
        ]
    return "\n".join(lines) + "\n"


def _device_lines(device: Device) -> list[str]:
    lines = [f"{device.id}: {device.name} ({' '.join(p for p in (device.architecture, device.capability) if p)})"]
    lines += [f"  {device.problem}"] if device.problem else []
    lines += [f"  {label}: {value}" for label, value in device.details]
    for name, cell in device.formats.items():
        peak = "" if isinstance(cell.peak, Missing) else f", peak {number_text(cell.peak.tops)} x 10^12/s"
        lines.append(f"  {name:<11} {cell.support:<9}{peak} {cell.reason}")
    return lines


def _measured_lines(device: Device, results: list[dict[str, Any]]) -> list[str]:
    newest = next(iter(of_device(device.name, results)), None)
    if newest is None:
        return []
    rates = ", ".join(f"{name} {number_text(tops)}" for name, tops in best_tops(newest).items())
    return [f"  measured {newest['started'][:10]}, 10^12/s: {rates}"]


def _advice_lines(advice: Advice) -> list[str]:
    steps = [f"    {step.question} {step.answer}" for step in advice.path]
    return [f"  use {advice.precision}: {advice.reason}", *steps]
