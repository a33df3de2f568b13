"""Drivers and bindings that lack one function of NVML: all else is read, and the gap has a reason."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from precgui.events import Event
from precgui.hardware import gpm, rapl
from precgui.hardware.advice import Situation, advise
from precgui.hardware.detect import detect
from precgui.hardware.device_readings import GpuReader
from precgui.hardware.nvml import NvmlSession, session
from precgui.hardware.power import PowerSampler
from precgui.hardware.readings import Missing
from precgui.hardware.report import document
from precgui.hardware.summary import machine_summary
from tests.hardware import cards
from tests.hardware.fake_nvml import FUNCTION_NOT_FOUND, Card, module

CARDS: dict[str, Callable[[], Card]] = {"H200": cards.h200, "MIG": cards.a100_mig, "WSL": cards.wsl_laptop}
# Without these no GPU is seen; all others leave it in the list.
DOORS = {"nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"}


class Lacking(ModuleType):
    """A binding over a driver without the function `missing`; notes the names that it is asked for."""

    def __init__(self, card: Card, missing: str = "", *, in_binding: bool = False) -> None:
        super().__init__("pynvml")
        self.whole, self.missing, self.in_binding = module(card), missing, in_binding
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            return getattr(self.whole, name)
        self.asked.add(name)
        if name != self.missing:
            return getattr(self.whole, name)
        if self.in_binding:
            raise AttributeError(name)
        return self._refuse

    def _refuse(self, *_: Any) -> None:
        raise self.whole.NVMLError(FUNCTION_NOT_FOUND)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(rapl, "POWERCAP", tmp_path / "none")
    monkeypatch.setattr(gpm, "LEAST_S", 0.0)


def read_all(monkeypatch: pytest.MonkeyPatch, library: Lacking) -> tuple[list[str], dict[str, Any]]:
    """The ids of the devices, and the readings of the first GPU, as each door of the hardware gives them."""
    monkeypatch.setitem(sys.modules, "pynvml", library)
    machine = detect()
    document(machine, {device.id: advise(Situation(device, "classification", "large")) for device in machine.devices})
    machine_summary()
    events: list[Event] = []
    with PowerSampler(events.append, time.perf_counter()) as sampler:
        sampler.read_now()
    values: dict[str, Any] = {}
    with session() as opened:
        first = opened.gpus()[0] if isinstance(opened, NvmlSession) else opened
        if not isinstance(first, Missing):
            reader = GpuReader(first)
            reader.everything()
            values = dict(reader.everything().values)
            reader.close()
    assert library.whole.open_sessions == 0 or library.missing == "nvmlShutdown"
    return [device.id for device in machine.devices], values


@pytest.mark.parametrize("in_binding", [False, True], ids=("driver", "binding"))
@pytest.mark.parametrize("card", CARDS)
def test_that_each_function_of_nvml_may_be_missing(
    monkeypatch: pytest.MonkeyPatch, card: str, in_binding: bool
) -> None:
    whole = Lacking(CARDS[card]())
    ids, values = read_all(monkeypatch, whole)
    functions = sorted(name for name in whole.asked if callable(getattr(whole.whole, name)))
    assert len(functions) > 20
    for function in functions:
        left, readings = read_all(monkeypatch, Lacking(CARDS[card](), function, in_binding=in_binding))
        assert "cpu" in left
        if function not in DOORS:
            assert set(left) >= {each for each in ids if "/" not in each}, function
            assert readings.keys() == values.keys(), function
            gaps = [name for name, value in readings.items() if isinstance(value, Missing)]
            assert all(readings[name].reason for name in gaps), function
