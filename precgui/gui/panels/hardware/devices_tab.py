"""The Devices tab: the advice, a card for each device and its formats, the software and the power sensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from PySide6.QtCore import QTimer
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from precgui.citations import source_lines
from precgui.gui.panels.hardware.cards import Cards, DeviceCard, label, scrolled
from precgui.gui.panels.hardware.formats_tab import MatrixTab, level_text, upper_first
from precgui.gui.panels.hardware.model import HardwareModel
from precgui.hardware.advice import Situation, advise
from precgui.hardware.detect import Machine
from precgui.hardware.device import Device
from precgui.hardware.measured import NOISY, best_tops, copy_gb_s, noise_of, rate_text
from precgui.hardware.power import SensorReport
from precgui.hardware.readings import Missing, Reading, gibibytes
from precgui.hardware.support import LEVELS
from precgui.words import L_, _, translated

_MATRIX_WIDTH_PX, _MATRIX_HEIGHT_PX = 1200, 420  # at least, for the table of formats below the cards
_OTHER = L_("For another task or size")


class DevicesTab(QWidget):
    """Cards, filled by what has answered so far."""

    def __init__(self, model: HardwareModel) -> None:
        super().__init__()
        self._model = model
        self._cards = Cards()
        self._waiting = label(_("Asking the machine…"), "muted")
        self._matrix: MatrixTab | None = None
        page = QWidget()
        self._column = column = QVBoxLayout(page)
        column.setContentsMargins(4, 12, 12, 12)
        column.addWidget(self._waiting)
        column.addWidget(self._cards)
        column.addStretch(1)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scrolled(page))
        self._room_timer = QTimer(self, singleShot=True, interval=0)  # after the cards have got their height
        self._room_timer.timeout.connect(self._use_room)
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

        self._room_timer.start()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._room_timer.start()

    def _use_room(self) -> None:
        """Show the table of formats under the cards of a large screen, with a card of each generation beside."""
        cards_px = self._cards.heightForWidth(self._cards.width()) if self._cards.isVisible() else self.height()
        has_room = self._cards.width() >= _MATRIX_WIDTH_PX and self.height() - cards_px >= _MATRIX_HEIGHT_PX
        if has_room and self._matrix is None:
            self._matrix = MatrixTab(self._model)
            self._matrix.add_generations()
            self._column.insertWidget(self._column.count() - 1, self._matrix)
            self._matrix.setMinimumHeight(_MATRIX_HEIGHT_PX - 24)
            self._column.setStretchFactor(self._matrix, 100)
        if self._matrix is not None:
            self._matrix.setVisible(has_room)

    def _lead_to(self, tab: str) -> Callable[[], object]:
        return lambda: self._model.tab_requested.emit(tab)


def advice_card(device: Device, gain: float | None, lead: Callable[[], object]) -> DeviceCard:
    """The precision that is advised on a device for a large network that classifies, and why."""
    advice = advise(Situation(device, "classification", "large", gain))
    rows = [(_("Why"), translated(advice.reason)), (_("Watch"), translated(advice.watch[0]) if advice.watch else "")]
    title, below = _("Advice: {precision}").format(precision=advice.precision), _("For a large network that classifies")
    return DeviceCard(title, below, rows, link=(translated(_OTHER), lead))


def formats_card(device: Device, lead: Callable[[], object]) -> DeviceCard:
    """The formats that a device multiplies, by how it does it."""
    rows = [
        (
            level_text(level).capitalize(),
            ", ".join(name for name, found in device.formats.items() if found.support == level),
        )
        for level in LEVELS
    ]
    return DeviceCard(
        _("Formats"),
        _("As {name} multiplies them").format(name=device.name),
        rows,
        link=(_("Why, format by format"), lead),
    )


def device_card(device: Device, result: Mapping[str, Any] | None = None) -> DeviceCard:
    """Name, architecture, memory, details, measured rates; a missing value gives its reason."""
    what = ", ".join(part for part in (device.id, device.architecture, device.capability) if part)
    rows = [
        (_("Memory"), translated(gibibytes(device.memory_bytes))),
        (_("Bandwidth"), _bandwidth(device.bandwidth_gbs, result)),
        *((translated(name), value_or_reason(value)) for name, value in device.details),
    ]
    if result:
        best = ", ".join(_rate(result, name, tops) for name, tops in best_tops(result).items())
        rows.append((_("Measured rates"), f"{best} ({result['started'][:10]})"))
    if device.sources:
        rows.append((_("Sources of its sheet"), source_lines(device.sources, translated)))
    return DeviceCard(device.name, what, rows, warning=translated(device.problem))


def _rate(result: Mapping[str, Any], name: str, tops: float) -> str:
    """A rate with its unit and its spread."""
    spread = noise_of(result, name)
    text = f"{name} {rate_text(tops)} ± {spread:.0%}"
    return _("{rate}, noisy").format(rate=text) if spread > NOISY else text


def software_card(machine: Machine, torch_problem: str) -> DeviceCard:
    """Versions, and the switches that decide what FP32 means."""
    host, facts = machine.host, machine.torch
    rows = [("Python", host["python"]), *((name, v or _("not installed")) for name, v in host["versions"].items())]
    rows.append((_("NVIDIA driver"), host["nvidia_driver"] or _("none")))
    if facts is None:
        rows.append((_("Switches of torch"), _("asking torch…") if not torch_problem else _("unknown")))
        return DeviceCard(_("Software"), host["os"], rows, warning=torch_problem)
    return DeviceCard(_("Software"), host["os"], [*rows, *_torch_rows(facts)])


def _torch_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    built = f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else _("CPU only")
    kernels = ", ".join(name.removeprefix("sm_") for name in facts["architectures"])
    if kernels:
        built = _("{built}, capabilities {kernels}").format(built=built, kernels=kernels)
    switches = facts["switches"]
    return [
        (_("torch built for"), built),
        (_("Matrix products, CUDA"), _fp32(switches["backends.cuda.matmul.fp32_precision"])),
        (_("Convolutions, cuDNN"), _fp32(switches["backends.cudnn.conv.fp32_precision"])),
        (_("Matrix products, CPU"), _fp32(switches["backends.mkldnn.matmul.fp32_precision"])),
    ]


def _fp32(value: object) -> str:
    """How torch treats FP32 operands, by the value of a `fp32_precision` switch."""
    words = {
        "none": _("FP32 (by default)"),
        "ieee": "FP32",
        "tf32": _("TF32 where the hardware has it"),
        "bf16": "BF16",
    }
    return words.get(str(value), str(value))


def sensor_card(machine: Machine, place: str = "") -> DeviceCard:
    """Which power sensors can be read, and why others cannot; `place` is empty for this machine."""
    result = sum(sensor.available for sensor in machine.sensors)
    below = _("{count} found").format(count=result)
    if not result and place:
        below = _("None found: runs at {place} record no power").format(place=place)
    elif not result:
        below = _("None found: runs on this machine record no power")
    return DeviceCard(_("Power sensors"), below, [(s.source, _sentence(s)) for s in machine.sensors])


def _sentence(sensor: SensorReport) -> str:
    """The message without the name of the source, which stands beside it."""
    return upper_first(translated(sensor.reason))


def value_or_reason(value: Reading[str]) -> str:
    """The value, or why there is none."""
    return translated(str(value) if isinstance(value, Missing) else value)


def _bandwidth(rate: Reading[float], result: Mapping[str, Any] | None) -> str:
    """The memory bandwidth by clock and bus width, else as measured by copying."""
    if not isinstance(rate, Missing):
        return f"{rate:.0f} GB/s"
    copied = copy_gb_s(result)
    if copied is None or result is None:
        return translated(str(rate))
    spread = (result["copy"] or {}).get("spread")
    sure = "" if spread is None else f" ± {spread:.0%}"
    return _("{copied:.0f} GB/s{sure}, measured by copying").format(copied=copied, sure=sure)
