"""The Hardware panel with fake cards."""

from __future__ import annotations

from PySide6.QtWidgets import QLabel

from precgui.gui.panels.hardware import HardwarePanel
from tests.hardware import cards
from tests.hardware.fake_nvml import LIBRARY_NOT_FOUND, install


def texts(widget) -> str:
    return "\n".join(found.text() for found in widget.findChildren(QLabel))


def test_that_the_panel_names_devices_versions_and_sensors(qtbot, monkeypatch):
    install(monkeypatch, cards.h100(), cards.t4())
    panel = HardwarePanel(None)
    qtbot.addWidget(panel)
    qtbot.waitUntil(lambda: "NVIDIA H100 80GB HBM3" in texts(panel), timeout=5000)
    shown = texts(panel)
    assert "Tesla T4" in shown
    assert "580.95.05" in shown
    assert "instant power, energy counter" in shown


def test_that_a_machine_without_sensors_says_what_was_looked_for(qtbot, monkeypatch):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    panel = HardwarePanel(None)
    qtbot.addWidget(panel)
    qtbot.waitUntil(lambda: "NVML: no NVIDIA driver on this machine." in texts(panel), timeout=5000)
    assert "torchvision" in texts(panel)
