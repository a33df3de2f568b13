"""The Devices tab: the advice, a card for each device and its formats, the software and the power sensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from PySide6.QtWidgets import QVBoxLayout, QWidget

from precgui.citations import source_lines
from precgui.gui.panels.hardware.cards import Cards, DeviceCard, label, scrolled
from precgui.gui.panels.hardware.model import HardwareModel
from precgui.hardware.advice import Situation, advise
from precgui.hardware.detect import Machine
from precgui.hardware.device import Device
from precgui.hardware.measured import NOISY, best_tops, copy_gb_s, noise_of, rate_text
from precgui.hardware.power import SensorReport
from precgui.hardware.readings import Missing, Reading, gibibytes
from precgui.hardware.support import LEVELS

_OTHER = "For another task or size"


class DevicesTab(QWidget):
    """Cards, filled by what has answered so far."""

    def __init__(self, model: HardwareModel) -> None:
        super().__init__()
        self._model = model
        self._cards = Cards()
        self._waiting = label("Asking the machine…", "muted")
        page = QWidget()
        column = QVBoxLayout(page)
        column.setContentsMargins(4, 12, 12, 12)
        column.addWidget(self._waiting)
        column.addWidget(self._cards)
        column.addStretch(1)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scrolled(page))
        model.machine_changed.connect(self._show)
        model.results_changed.connect(self._show)
        self._show()

    def _show(self) -> None:
        machine = self._model.machine
        self._waiting.setVisible(machine is None)
        self._waiting.setText(self._model.waiting_text)
        self._cards.setVisible(machine is not None)
        if machine is not None:
            best = self._model.best()
            advices = [advice_card(best, self._model.gain_of(best), self._lead_to("advice"))] if best else []
            formats = self._lead_to("formats")
            of_devices = [
                card
                for device in machine.devices
                for card in (device_card(device, self._model.result_of(device)), formats_card(device, formats))
            ]
            software = software_card(machine, self._model.torch_problem)
            self._cards.show_cards([*advices, *of_devices, software, sensor_card(machine, self._model.place_name)])

    def _lead_to(self, tab: str) -> Callable[[], object]:
        return lambda: self._model.tab_requested.emit(tab)


def advice_card(device: Device, gain: float | None, lead: Callable[[], object]) -> DeviceCard:
    """The precision that is advised on a device for a large network that classifies, and why."""
    advice = advise(Situation(device, "classification", "large", gain))
    rows = [("Why", advice.reason), ("Watch", advice.watch[0] if advice.watch else "")]
    return DeviceCard(f"Advice: {advice.precision}", "For a large network that classifies", rows, link=(_OTHER, lead))


def formats_card(device: Device, lead: Callable[[], object]) -> DeviceCard:
    """The formats that a device multiplies, by how it does it."""
    rows = [
        (level.capitalize(), ", ".join(name for name, found in device.formats.items() if found.support == level))
        for level in LEVELS
    ]
    return DeviceCard("Formats", f"As {device.name} multiplies them", rows, link=("Why, format by format", lead))


def device_card(device: Device, result: Mapping[str, Any] | None = None) -> DeviceCard:
    """Name, architecture, memory, details, measured rates; a missing value gives its reason."""
    what = ", ".join(part for part in (device.id, device.architecture, device.capability) if part)
    rows = [
        ("Memory", gibibytes(device.memory_bytes)),
        ("Bandwidth", _bandwidth(device.bandwidth_gbs, result)),
        *((name, value_or_reason(value)) for name, value in device.details),
    ]
    if result:
        best = ", ".join(_rate(result, name, tops) for name, tops in best_tops(result).items())
        rows.append(("Measured rates", f"{best} ({result['started'][:10]})"))
    if device.sources:
        rows.append(("Sources of its sheet", source_lines(device.sources)))
    return DeviceCard(device.name, what, rows, warning=device.problem)


def _rate(result: Mapping[str, Any], name: str, tops: float) -> str:
    """A rate with its unit and its spread."""
    spread = noise_of(result, name)
    text = f"{name} {rate_text(tops)} ± {spread:.0%}"
    return f"{text}, noisy" if spread > NOISY else text


def software_card(machine: Machine, torch_problem: str) -> DeviceCard:
    """Versions, and the switches that decide what FP32 means."""
    host, facts = machine.host, machine.torch
    rows = [("Python", host["python"]), *((name, v or "not installed") for name, v in host["versions"].items())]
    rows.append(("NVIDIA driver", host["nvidia_driver"] or "none"))
    if facts is None:
        rows.append(("Switches of torch", "asking torch…" if not torch_problem else "unknown"))
        return DeviceCard("Software", host["os"], rows, warning=torch_problem)
    return DeviceCard("Software", host["os"], [*rows, *_torch_rows(facts)])


def _torch_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    built = f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else "CPU only"
    kernels = ", ".join(name.removeprefix("sm_") for name in facts["architectures"])
    switches = facts["switches"]
    return [
        ("torch built for", f"{built}, capabilities {kernels}" if kernels else built),
        ("Matrix products, CUDA", _fp32(switches["backends.cuda.matmul.fp32_precision"])),
        ("Convolutions, cuDNN", _fp32(switches["backends.cudnn.conv.fp32_precision"])),
        ("Matrix products, CPU", _fp32(switches["backends.mkldnn.matmul.fp32_precision"])),
    ]


def _fp32(value: object) -> str:
    """How torch treats FP32 operands, by the value of a `fp32_precision` switch."""
    words = {"none": "FP32 (by default)", "ieee": "FP32", "tf32": "TF32 where the hardware has it", "bf16": "BF16"}
    return words.get(str(value), str(value))


def sensor_card(machine: Machine, place: str = "") -> DeviceCard:
    """Which power sensors can be read, and why others cannot; `place` is empty for this machine."""
    result = sum(sensor.available for sensor in machine.sensors)
    where = f"at {place}" if place else "on this machine"
    below = f"{result} found" if result else f"None found: runs {where} record no power"
    return DeviceCard("Power sensors", below, [(s.source, _sentence(s)) for s in machine.sensors])


def _sentence(sensor: SensorReport) -> str:
    """The message without the name of the source, which stands beside it."""
    text = sensor.message.removeprefix(f"{sensor.source}: ")
    return text[:1].upper() + text[1:]


def value_or_reason(value: Reading[str]) -> str:
    """The value, or why there is none."""
    return str(value)


def _bandwidth(rate: Reading[float], result: Mapping[str, Any] | None) -> str:
    """The memory bandwidth by clock and bus width, else as measured by copying."""
    if not isinstance(rate, Missing):
        return f"{rate:.0f} GB/s"
    copied = copy_gb_s(result)
    if copied is None or result is None:
        return str(rate)
    spread = (result["copy"] or {}).get("spread")
    sure = "" if spread is None else f" ± {spread:.0%}"
    return f"{copied:.0f} GB/s{sure}, measured by copying"
