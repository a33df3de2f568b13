"""A system that tells nothing of its memory and load: "not measured", and the run goes on."""

from __future__ import annotations

import psutil
import pytest

from precgui.hardware import measured
from precgui.hardware.device_readings import CpuReader
from precgui.hardware.readings import Absent
from precgui.hardware.summary import machine_summary


@pytest.fixture
def no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/proc/meminfo")

    for name in ("virtual_memory", "cpu_percent"):
        monkeypatch.setattr(psutil, name, missing)


@pytest.mark.usefixtures("no_proc")
def test_that_the_machine_is_described_without_its_memory() -> None:
    assert machine_summary()["memory_bytes"] is None


@pytest.mark.usefixtures("no_proc")
def test_that_a_reading_of_the_cpu_has_a_reason_for_each_value() -> None:
    values = CpuReader().everything().values
    assert len(values) == 3
    assert all(isinstance(value, Absent) for value in values.values())


def test_that_a_folder_of_results_that_cannot_be_read_holds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def glob(self, _: str) -> None:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(measured, "folder", Refusing)
    assert measured.kept() == []
