"""The kernel for element formats on GPUs, interpreted on the CPU, against the torch form, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from precgui.formats.rounding import ROUNDINGS
from tests import needs

PROGRAM = """
import itertools
import sys
import numpy as np
import torch
from precgui.engine.quantize import device, elements, torch_form, triton_elements
from precgui.formats.registry import formats, get
from precgui.formats.rounding import ROUNDINGS, CastPolicy

draw = np.random.default_rng(3)
special = np.array([
    0, 1, 0x00400000, 0x007FFFFF, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F000000, 0x7F800000, 0x7FC00000, 0x7F800001,
    0x43E00000, 0x43E80000, 0x477FE000, 0x477FF000, 0x33800000, 0x3F000000, 0x3F400000, 0x42FE0000, 0x43000000,
], np.uint32)
words = np.concatenate([draw.integers(0, 1 << 32, 1000, dtype=np.uint32), special, special | 1 << 31])
values = draw.normal(size=600) * np.exp2(draw.integers(-20, 20, 600))
ties = draw.integers(-64, 65, 300) / 16
near = np.concatenate([values, ties, ties / 4096, ties * 64]).astype(np.float32)
single = torch.from_numpy(np.concatenate([words.view(np.float32), near]))
wide = torch.from_numpy(draw.integers(0, 1 << 64, 1000, dtype=np.uint64).view(np.float64))
tiny = torch.from_numpy(values * 2.0**-1040)
double = torch.cat([single.double(), wide, tiny, single.double() * (1 + 2.0**-40)])
tensors = [single, double, single.bfloat16(), single.half()]
WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16}
triton_elements.BYTES = 1 << 16  # each program is interpreted for many milliseconds

def by_torch(tensor, fmt, policy):
    source = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
    return elements._held(device.rounded_on_device(source, fmt, policy, 11), fmt, policy, tensor.dtype)

def check(tensor, name, rounding, overflow):
    fmt, policy = get(name), CastPolicy(rounding, overflow)
    ours = triton_elements.rounded_elements(tensor, fmt, policy, 11)
    told = f"{name} {rounding} {overflow} {str(tensor.dtype).removeprefix('torch.')} {len(tensor)}"
    if ours is None:
        print(f"none: {told}")
        return
    theirs = by_torch(tensor, fmt, policy)
    word = WORDS[tensor.dtype.itemsize]
    same = (ours.view(word) == theirs.view(word)) | (ours.isnan() & theirs.isnan())
    print("same" if ours.dtype == tensor.dtype and bool(same.all()) else f"differs: {told}")

rounding = sys.argv[1]
for name, tensor in itertools.product([*formats(), "e5m7", "e9m4", "e6m9", "e8m3"], tensors):
    check(tensor, name, rounding, "ieee")
for name, overflow in itertools.product(("e4m3fn", "fp16", "tf32", "e8m0", "ue4m3", "e9m4"), ("saturate", "nan")):
    for tensor in tensors:
        check(tensor, name, rounding, overflow)
for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.bfloat16, "e4m3fn")):
    sources = [single[:700], single[:3], single[100:2000], -single[5:6]]
    targets = [torch.zeros_like(source, dtype=dtype) for source in sources]
    fmt, policy, seeds = get(name), CastPolicy(rounding), range(4)
    served = triton_elements.round_together(sources, targets, fmt, policy, seeds)
    for source, target, seed in zip(sources, targets, seeds):
        wanted = torch_form.rounded(source, fmt, policy, seed).to(dtype)
        same = (target.view(torch.int16) == wanted.view(torch.int16)) | (target.isnan() & wanted.isnan())
        print("same" if served and bool(same.all()) else f"differs: together {name} {rounding} {len(source)}")
triton_elements.BYTES = 1 << 10  # so that there are several programs
for length, tensor in itertools.product((0, 1, 255, 256, 257, 1024), tensors):
    check(tensor[:length], "e5m2", rounding, "ieee")
"""
# What no operation of a GPU serves: the gap around zero is entered from both sides, or draws need more than FP64 has.
LEFT = {
    "toward_zero": {f"sign1 toward_zero ieee {dtype}" for dtype in ("float32", "float64", "bfloat16", "float16")},
    "stochastic": {f"{name} stochastic ieee float64" for name in ("nf4", "sign1")},
}


@needs.triton
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_that_the_kernel_for_gpus_rounds_as_the_torch_form_does(rounding: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", PROGRAM, rounding], env=environment, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert not done.returncode, done.stderr[-3000:]
    assert [line for line in lines if line.startswith("differs")] == []
    left = {line.removeprefix("none: ").rsplit(" ", 1)[0] for line in lines if line.startswith("none")}
    assert left == LEFT.get(rounding, set())
    assert lines.count("same") > 180
