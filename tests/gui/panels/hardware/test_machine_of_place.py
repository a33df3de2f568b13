"""Hardware of a place: its devices, formats, rates and advice as of this machine, and its faults in one sentence."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QLabel
from pytestqt.qtbot import QtBot

from precgui.gui.panels.hardware import bench_tab, model
from precgui.gui.panels.hardware.panel import TABS, HardwarePanel
from precgui.gui.theme import themes
from precgui.hardware.detect import Machine, detect
from precgui.places.contact import ContactError
from precgui.places.machine import MachineThere
from precgui.places.settings import NamedPlace, add_place, command_place, remove_place
from tests.cli.test_detect_cli import RESULT
from tests.gui.panels.hardware.test_panel import texts
from tests.hardware import cards
from tests.hardware.fake_nvml import LIBRARY_NOT_FOUND, install

BOX = command_place("box", ["a-command"])


@pytest.fixture(autouse=True)
def no_torch(children: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "ASK_TORCH_AFTER_MS", 10**6)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine of the place, which has an H100; this one has no GPU."""
    install(monkeypatch, cards.h100())
    machine = detect()
    monkeypatch.setattr(model, "machine_asked", lambda place: None)
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    add_place(BOX)
    return machine


@pytest.fixture
def panel(there: Machine, qtbot: QtBot) -> HardwarePanel:
    made = HardwarePanel(None)
    qtbot.addWidget(made)
    made.show()
    qtbot.waitUntil(lambda: made.model.machine is not None)
    return made


def tab(panel: HardwarePanel, title: str) -> Any:
    panel.show_tab(title.lower())
    return panel.tab([name for name, _, _ in TABS].index(title))


def answers(monkeypatch: pytest.MonkeyPatch, there: Machine, results: list[dict[str, Any]]) -> None:
    monkeypatch.setattr(model, "ask_machine", lambda place: MachineThere(place, there, "", list(results)))


def test_that_the_tabs_show_the_machine_of_the_chosen_place(
    panel: HardwarePanel, there: Machine, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = {**RESULT, "device": {**RESULT["device"], "name": there.devices[0].name}}  # type: ignore[dict-item]
    answers(monkeypatch, there, [result])
    devices, formats, rates, advice = (tab(panel, name) for name in ("Devices", "Formats", "Measured", "Advice"))
    assert "H100" not in texts(devices)
    panel.where.choose("box")
    assert "Asking box" in panel.machine_text.text()
    qtbot.waitUntil(lambda: "H100" in texts(devices))
    assert formats.matrix.devices[0].name == there.devices[0].name
    assert rates.results.itemText(0).endswith(there.devices[0].name)
    assert advice.device.currentText() == there.devices[0].name
    assert "detect --watch 60 --place box" in tab(panel, "Live").caption.text()
    panel.where.choose("")
    qtbot.waitUntil(lambda: "H100" not in texts(devices))
    assert panel.ask_button.isHidden()


def test_that_a_place_that_does_not_answer_says_why_and_is_asked_again(
    panel: HardwarePanel, there: Machine, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(place: NamedPlace) -> MachineThere:
        raise ContactError("box does not answer; check that it is on")

    monkeypatch.setattr(model, "ask_machine", fails)
    panel.where.choose("box")
    qtbot.waitUntil(lambda: "box does not answer" in panel.machine_text.text())
    assert "box does not answer" in texts(tab(panel, "Devices"))
    assert "box does not answer" in tab(panel, "Measured").message.text()
    answers(monkeypatch, there, [])
    panel.ask_button.click()
    qtbot.waitUntil(lambda: "H100" in texts(tab(panel, "Devices")))


def test_that_a_place_is_measured_and_its_measurement_is_shown_or_stopped(
    panel: HardwarePanel, there: Machine, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[dict[str, Any]] = []
    answers(monkeypatch, there, kept)
    panel.where.choose("box")
    rates = tab(panel, "Measured")
    qtbot.waitUntil(rates.measure.isEnabled)
    may_end, asked = threading.Event(), []

    def measure(place: NamedPlace, device: str, look: Any) -> None:
        asked.append((place.name, device))
        while not may_end.wait(0.01):
            look()
        kept.append({**RESULT, "device": {"id": device, "name": there.devices[0].name, "kind": "cuda"}})

    monkeypatch.setattr(bench_tab, "measure_there", measure)
    rates.measure.click()
    qtbot.waitUntil(lambda: rates.message.text().startswith("Measuring at box for "))
    assert not panel.where.isEnabled()
    rates.stop.click()
    qtbot.waitUntil(panel.where.isEnabled)
    assert (kept, rates.message.text()) == ([], "The measurement was stopped; nothing of it is kept.")
    may_end.set()
    rates.measure.click()
    qtbot.waitUntil(lambda: rates.results.count() == 1)
    assert asked == [("box", "cpu")] * 2  # the driver alone has told of the GPU


def test_that_the_choice_of_the_machine_goes_with_the_last_place(panel: HardwarePanel) -> None:
    assert not panel.machine_row.isHidden()
    remove_place("box")
    panel.model.places_changed.emit()
    assert panel.machine_row.isHidden()


def test_that_the_title_stands_where_it_stands_without_a_place(panel: HardwarePanel, qtbot: QtBot) -> None:
    themes().dress(panel)
    panel.resize(1000, 600)

    def titles() -> list[tuple[int, int]]:
        """Left edge and middle of each title in view."""
        found = [each for each in panel.findChildren(QLabel) if each.property("kind") == "title" and each.isVisible()]
        return [each.mapTo(panel, QPoint(0, each.contentsRect().center().y())).toTuple() for each in found]

    qtbot.waitUntil(lambda: panel.width() == 1000 and len(titles()) == 1)
    beside = titles()
    remove_place("box")
    panel.model.places_changed.emit()
    qtbot.waitUntil(lambda: titles() == beside)
