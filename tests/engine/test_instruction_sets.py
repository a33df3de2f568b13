"""Processors with fewer instructions than this one: the same numbers, and a note where something else ran."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from precgui import config
from precgui.engine import execution
from precgui.engine.emulation import lstm_kernel
from precgui.engine.export.script import write_script
from precgui.engine.qat import integer_layers, onednn

on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the variables take instructions from x86 only")


# The sum of 64 products 255 x 127, of which sums clamped to 16 bits leave a half.
PRODUCTS = """
import torch
from torch import nn
from precgui.engine.qat import integer_layers as il, onednn
layer = il.Integer(nn.Linear(64, 1), 8, 8, scales=1, bias=False)
layer.packed = il.pack(torch.full((1, 64), 127.0), 8)
layer.scales.fill_(1.0)
print(float(layer(torch.full((1, 64), 255.0))), onednn.integer_kernels(8), onednn.integer_kernels(4))
print(onednn.arithmetic_note({'a': (8, 8)}, int(layer.native)))
"""
LSTM = """
import warnings
from precgui import config
from precgui.engine.train import train
from precgui.events import Incident
warnings.simplefilter('ignore')
settings = ['device=cpu', 'threads=1', 'task=text', 'model.name=lstm', 'precision=bf16-amp',
            'train.max_steps=1', 'data.batch_size=2', 'data.sequence_length=8', 'record.tensors=false']
events = []
train(config.load('digits-quick', settings), events.append, lambda: False)
for event in events:
    if isinstance(event, Incident):
        print(event.message)
"""


EXPORTED = """
import runpy, sys
print('exported')
sys.modules.update(dict.fromkeys(name for name in sys.modules if name.partition('.')[0] == 'precgui'))
path, folder = sys.argv[1:]
sys.path.insert(0, folder)
runpy.run_path(path, run_name='__main__')
"""


@dataclass(frozen=True)
class Printed:
    """The lines of each program in a process whose oneDNN and torch use AVX2 and no more."""

    products: list[str]
    lstm: list[str]
    exported: list[str]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Printed:
    """All in one process, because importing torch takes seconds."""
    folder = tmp_path_factory.mktemp("exported")
    settings = ["task=text", "model.name=lstm", "precision=bf16-amp", "data.sequence_length=8", "data.epoch_steps=2"]
    wanted = config.load("digits-quick", [*settings, "data.batch_size=2", "train.max_steps=2", "device=cpu"])
    path, package = write_script(wanted, {"device": "cpu", "threads": 1}, folder / "my lstm 1.py")
    assert package.name == "my_lstm_1_parts"
    command = [sys.executable, "-c", PRODUCTS + LSTM + EXPORTED, path, folder]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240, env=environment)
    lines = done.stdout.splitlines()
    end = lines.index("exported")
    return Printed(lines[:2], lines[2:end], lines[end + 1 :])


def test_that_integer_kernels_are_asked_by_numerics_and_said_in_a_note() -> None:
    kinds = {bits: onednn.integer_kernels(bits) for bits in (8, 4, 2, 1)}
    assert set(kinds.values()) <= {"exact", "saturating", "missing"}
    assert "saturating" not in (kinds[4], kinds[2], kinds[1]), "their products fit into 16 bits"
    layer = integer_layers.Integer(nn.Linear(4, 4), 8, 8, scales=1, bias=False)
    assert layer.native == (kinds[8] == "exact")
    note = onednn.arithmetic_note({"a": (8, 8), "b": (8, 8)}, 2)
    assert note.startswith("all 2 layers multiply on oneDNN's integer kernels")


@on_x86
def test_that_products_without_vnni_are_exact_and_said_to_be_in_fp32(printed: Printed) -> None:
    numbers, note = printed.products
    assert numbers == "2072640.0 saturating exact"
    assert "0 of 1 layers" in note
    assert "clamps sums of 8-bit integers to 16 bits" in note
    assert note.endswith("1 multiply the same integers in FP32")


def _trained_once(layer: nn.LSTM, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result, _ = layer(value)
    layer.zero_grad()
    result.float().square().sum().backward()
    assert layer.weight_ih_l0.grad is not None
    return result.float().detach(), layer.weight_ih_l0.grad.clone()


def test_that_an_lstm_without_kernel_multiplies_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    layer, value = nn.LSTM(32, 32), torch.randn(5, 3, 32)
    exact = layer(value)[0].detach()
    monkeypatch.setattr(lstm_kernel, "has_lstm_kernel", lambda: False)
    assert lstm_kernel.run_without_lstm_kernel([layer, nn.Linear(2, 2)]) == 1
    torch.testing.assert_close(layer(value)[0].detach(), exact, rtol=0, atol=0, msg="without autocast it is as it was")
    result, gradient = _trained_once(layer, value)
    error = float((result - exact).norm() / exact.norm())
    assert 3e-4 < error < 1e-2, "the error of BF16"
    assert bool(gradient.isfinite().all())
    assert torch._C._get_mkldnn_enabled()


@on_x86
def test_that_bf16_amp_trains_an_lstm_without_avx512(printed: Printed) -> None:
    assert any("no BF16 LSTM kernel for this processor" in line for line in printed.lstm)
    assert any("in bf16" in line for line in printed.lstm), "and the census sees BF16 products"


@on_x86
def test_that_a_script_of_an_lstm_in_bf16_trains_without_avx512(printed: Printed) -> None:
    assert any(line.startswith("oneDNN has no BF16 LSTM kernel") for line in printed.exported)
    assert sum(line.startswith("step ") for line in printed.exported) == 2


@on_x86
def test_that_compiled_code_is_kept_apart_by_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "mine")
    execution.compile_model(nn.Linear(1, 1))
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).name == "mine", "torch makes it a whole path"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    execution.compile_model(nn.Linear(1, 1))
    capability = torch.backends.cpu.get_cpu_capability().lower()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"].endswith(f"_{capability}")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
