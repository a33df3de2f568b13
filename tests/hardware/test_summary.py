"""The summary of the machine that goes into every run file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from precgui.hardware import cpu, summary
from tests.hardware import cards
from tests.hardware.fake_nvml import GPU_IS_LOST, LIBRARY_NOT_FOUND, Fails, install

TEXTS = Path(__file__).parent / "cpuinfo"


def test_that_the_summary_is_json_and_names_cpu_gpu_and_versions(monkeypatch):
    install(monkeypatch, cards.a100(), cards.t4(open=Fails(GPU_IS_LOST)))
    found = summary.machine_summary()
    assert json.loads(json.dumps(found)) == found
    assert found["cpu"]["name"]
    assert found["cpu"]["usable_cores"] >= 1
    assert found["gpus"][0]["name"] == "NVIDIA A100-SXM4-80GB"
    assert found["gpus"][0]["memory_bytes"] == 81920 << 20
    assert "fallen off the bus" in found["gpus"][1]["problem"]
    assert found["nvidia_driver"] == "580.95.05"
    assert found["versions"]["torch"].startswith("2.")


def test_that_a_machine_without_a_driver_has_no_gpus(monkeypatch):
    install(monkeypatch, init=LIBRARY_NOT_FOUND)
    found = summary.machine_summary()
    assert found["gpus"] == []
    assert found["nvidia_driver"] is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ((TEXTS / "zen4.txt").read_text(), "AMD EPYC 9R14"),
        ((TEXTS / "grace.txt").read_text(), "Neoverse V2 (Graviton4, Grace)"),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\nCPU implementer\t: 0x41\n", "aarch64"),
    ],
)
def test_that_a_cpu_is_named_as_it_says_or_by_its_generation_or_architecture(monkeypatch, tmp_path, text, name):
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    monkeypatch.setattr(cpu, "CPUINFO", file)
    monkeypatch.setattr(cpu.platform, "machine", lambda: "aarch64")  # type: ignore[attr-defined]
    monkeypatch.setattr(cpu.platform, "system", lambda: "Linux")  # type: ignore[attr-defined]
    assert cpu.read_cpu().name == name


def test_that_the_summary_imports_neither_torch_nor_qt():
    code = (
        "import sys; from precgui.hardware.summary import machine_summary; machine_summary();"
        "print([m for m in ('torch', 'PySide6', 'numpy') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
