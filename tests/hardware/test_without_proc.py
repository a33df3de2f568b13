"""A system that tells nothing of its memory and load: "not measured", and the run goes on."""

from __future__ import annotations

import math

import psutil
import pytest

from precgui.cli.main import main
from precgui.hardware import measured
from precgui.hardware.device_readings import CpuReader
from precgui.hardware.device_state import HostLoadReader
from precgui.hardware.readings import Missing
from precgui.hardware.summary import machine_summary


@pytest.fixture
def no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/proc/meminfo")

    def no_process(*_: object) -> None:
        raise psutil.NoSuchProcess(1)

    for name in ("virtual_memory", "cpu_percent"):
        monkeypatch.setattr(psutil, name, missing)
    monkeypatch.setattr(psutil, "Process", no_process)


@pytest.mark.usefixtures("no_proc")
def test_that_the_machine_is_described_without_its_memory() -> None:
    assert machine_summary()["memory_bytes"] is None


@pytest.mark.usefixtures("no_proc")
def test_that_a_reading_of_the_cpu_has_a_reason_for_each_value() -> None:
    values = CpuReader().everything().values
    assert len(values) == 3
    assert all(isinstance(value, Missing) for value in values.values())


@pytest.mark.usefixtures("no_proc")
def test_that_the_load_of_the_host_is_read_without_the_own_process() -> None:
    assert math.isnan(HostLoadReader(0.0).read(1.0).preemptions)


@pytest.mark.usefixtures("no_proc")
def test_that_detect_prints_a_machine_whose_memory_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "the system does not tell it" in printed
    assert "memory not known" in printed


def test_that_a_folder_of_results_that_cannot_be_read_holds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def glob(self, _: str) -> None:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(measured, "folder", Refusing)
    assert measured.kept() == []
