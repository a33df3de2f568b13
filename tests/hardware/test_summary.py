"""The summary of the machine that goes into every run file."""

from __future__ import annotations

import json
import subprocess
import sys

from precgui.hardware import summary
from tests.hardware import cards
from tests.hardware.fake_nvml import GPU_IS_LOST, LIBRARY_NOT_FOUND, Fails, install


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


def test_that_an_arm_cpu_without_a_model_name_is_named_after_its_architecture(monkeypatch, tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nFeatures\t: fp asimd bf16\nCPU implementer\t: 0x41\n")
    monkeypatch.setattr(summary, "CPUINFO", file)
    monkeypatch.setattr(summary.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(summary.platform, "system", lambda: "Linux")
    assert summary.cpu_name() == "aarch64"


def test_that_the_summary_imports_neither_torch_nor_qt():
    code = (
        "import sys; from precgui.hardware.summary import machine_summary; machine_summary();"
        "print([m for m in ('torch', 'PySide6', 'numpy') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
