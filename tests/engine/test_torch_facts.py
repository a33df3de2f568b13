"""What torch tells about itself, also when its getters refuse."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from precgui.engine import torch_facts
from tests.warm_children import python


def test_that_the_facts_are_json_and_hold_what_a_report_needs():
    facts = torch_facts.torch_facts()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["version"] == str(torch.__version__)
    assert facts["threads"] >= 1
    assert facts["switches"]["backends.cudnn.conv.fp32_precision"] in ("none", "ieee", "tf32")


def test_that_mixed_switches_are_told_and_do_not_raise():
    """In a process of its own: the switches cannot be unwritten."""
    code = (
        "import torch, json; from precgui.engine.torch_facts import switches;"
        "torch.backends.cuda.matmul.fp32_precision = 'tf32';"
        "print(json.dumps(switches()))"
    )
    found = json.loads(python("-c", code).stdout)
    assert found["backends.cuda.matmul.fp32_precision"] == "tf32"
    assert found["get_float32_matmul_precision()"].startswith(("torch refuses", "high"))


def test_that_the_override_in_the_environment_is_shown(monkeypatch):
    monkeypatch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")
    assert torch_facts.switches()["$TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] == "1"


def test_that_a_missing_switch_is_a_word(monkeypatch):
    monkeypatch.setattr(torch_facts, "_SWITCHES", ("backends.no_such_backend.fp32_precision",))
    assert torch_facts.switches()["backends.no_such_backend.fp32_precision"] == "not in this version of torch"


@pytest.mark.parametrize(
    ("built", "capability", "runs"),
    [
        (["sm_75", "sm_80", "sm_90"], (8, 6), True),
        (["sm_75", "sm_80", "sm_90"], (7, 0), False),
        (["sm_75", "sm_80", "sm_90"], (10, 0), False),
        (["sm_90a", "compute_90"], (12, 0), True),
        (["sm_100", "sm_120"], (12, 1), True),
    ],
)
def test_that_missing_kernels_are_found(monkeypatch, built, capability, runs):
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
    assert torch_facts._has_kernels(*capability) is runs


def test_that_accelerators_are_listed_as_torch_names_them(monkeypatch):
    card = SimpleNamespace(
        name="NVIDIA A100", major=8, minor=0, multi_processor_count=108, total_memory=1 << 36, uuid="ab-cd"
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80"])
    arc = SimpleNamespace(name="Intel(R) Arc(TM) A770 Graphics", total_memory=1 << 34, has_fp64=False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 1)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda index: arc)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    (cuda, xpu, mps), refusals = torch_facts.devices()
    assert refusals == {}
    assert (cuda["id"], cuda["capability"], cuda["sms"], cuda["uuid"]) == ("cuda:0", "8.0", 108, "ab-cd")
    assert (xpu["kind"], xpu["fp64"]) == ("xpu", False)
    assert mps["id"] == "mps:0"


def test_that_a_gpu_that_torch_counts_but_cannot_open_is_told_and_the_others_stay(monkeypatch):
    def refuse(index):
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nmore")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", refuse)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    found, refusals = torch_facts.devices()
    assert [row["id"] for row in found] == ["mps:0"]
    assert refusals == {"cuda:0": "CUDA error: CUDA-capable device(s) is/are busy or unavailable"}


def test_that_the_task_emits_once_and_not_after_a_stop():
    said = []
    torch_facts.serve(said.append, SimpleNamespace(stopped=lambda: False))
    torch_facts.serve(said.append, SimpleNamespace(stopped=lambda: True))
    assert len(said) == 1
