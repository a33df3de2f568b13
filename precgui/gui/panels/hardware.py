"""The machine: what it is, which sensors it has, what it can do in each format."""

from __future__ import annotations

from typing import Any

from PySide6.QtWidgets import QScrollArea, QVBoxLayout, QWidget

from precgui.gui.panels.hardware_cards import Card, Cards, label
from precgui.gui.panels.hardware_task import Task
from precgui.hardware.power import PowerSampler, SensorReport
from precgui.hardware.summary import machine_summary


def _look() -> tuple[dict[str, Any], list[SensorReport]]:
    return machine_summary(), PowerSampler(lambda event: None, 0.0).sensors()


class HardwarePanel(QWidget):
    """Device cards, filled by a thread as soon as the machine has answered."""

    def __init__(self, state: object, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.state = state
        self._cards = Cards()
        self._waiting = label("Asking the machine…", "muted")
        self._fill()
        self._task = Task(_look, self)
        self._task.answered.connect(self._show)
        self.destroyed.connect(self._task.close)
        self._task.start()

    def _fill(self) -> None:
        page = QWidget()
        column = QVBoxLayout(page)
        column.setContentsMargins(20, 16, 20, 20)
        column.setSpacing(12)
        column.addWidget(label("Hardware", bold=True))
        column.addWidget(self._waiting)
        column.addWidget(self._cards)
        column.addStretch(1)
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setWidget(page)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scroll)

    def _show(self, answer: tuple[dict[str, Any], list[SensorReport]]) -> None:
        summary, sensors = answer
        self._waiting.hide()
        self._cards.show_cards(
            [*_gpu_cards(summary), _cpu_card(summary), _versions_card(summary), _sensor_card(sensors)]
        )

    def closeEvent(self, event: object) -> None:
        self._task.close()


def _gpu_cards(summary: dict[str, Any]) -> list[Card]:
    return [_gpu_card(gpu) for gpu in summary["gpus"]]


def _gpu_card(gpu: dict[str, Any]) -> Card:
    rows = [("Memory", gibibytes(gpu["memory_bytes"])), ("UUID", gpu["uuid"] or "")]
    return Card(gpu["name"], gpu.get("problem", ""), rows)


def _cpu_card(summary: dict[str, Any]) -> Card:
    cpu = summary["cpu"]
    cores = f"{cpu['physical_cores']} physical, {cpu['logical_cores']} logical, {cpu['usable_cores']} usable here"
    return Card(cpu["name"], "CPU", [("Cores", cores), ("Memory", gibibytes(summary["memory_bytes"]))])


def _versions_card(summary: dict[str, Any]) -> Card:
    rows = [(name, version or "not installed") for name, version in summary["versions"].items()]
    driver = summary["nvidia_driver"] or "no NVIDIA driver on this machine"
    return Card("Software", summary["os"], [("Python", summary["python"]), *rows, ("NVIDIA driver", driver)])


def _sensor_card(sensors: list[SensorReport]) -> Card:
    found = sum(sensor.found for sensor in sensors)
    below = f"{found} found" if found else "None found: runs on this machine record no power"
    return Card("Power sensors", below, [(sensor.source, sensor.message) for sensor in sensors])


def gibibytes(count: int | None) -> str:
    """A memory size as text, empty when unknown."""
    return "" if count is None else f"{count / 2**30:.1f} GiB"
