"""The kernel for block formats on GPUs, interpreted on the CPU, against the forms of the CPU, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys

from tests import needs

PROGRAM = """
import itertools
import numpy as np
import torch
from precgui.engine.quantize.blocks import quantize_blocks
from precgui.engine.quantize import triton_blocks
from precgui.formats.blocks import SCALE_RULES
from precgui.formats.registry import blocks
from precgui.formats.rounding import ROUNDINGS

draw = np.random.default_rng(3)
words = draw.integers(0, 1 << 32, (6, 70), dtype=np.uint32)  # of all exponents, with NaN
special = np.array([
    0, 1, 0x00400000, 0x007FFFFF, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F000000, 0x3FC00000, 0x40100000, 0x43E00000,
    0x43E80000, 0x42FD0000, 0x3DCCCCCD,
], np.uint32)
signs = draw.integers(0, 2, (6, 70), dtype=np.uint32) << 31
values = draw.normal(size=(6, 70)).astype(np.float32)
ties = draw.integers(-64, 65, (6, 70)).astype(np.float32) / 16
powers = np.ldexp(np.float32(1), draw.integers(-149, 128, (6, 70))).astype(np.float32)
infinite = values.copy()
infinite[0, 3], infinite[2, 40], infinite[4, 69] = np.inf, -np.inf, np.nan
edges = [
    words.view(np.float32), (special[draw.integers(0, len(special), (6, 70))] | signs).view(np.float32), values, ties,
    powers, infinite, values * np.float32(1e-38), values * np.float32(1e-44), np.zeros((6, 70), np.float32),
    -np.zeros((2, 5), np.float32), values * np.exp2(draw.integers(-20, 20, (6, 1))).astype(np.float32),
]
tensors = [torch.from_numpy(each) for each in edges]
together = torch.cat(tensors[:9] + tensors[10:])
narrow = [together.to(dtype) for dtype in (torch.bfloat16, torch.float16)]
layouts = [tensors[2].t(), tensors[2].reshape(3, 2, 70).transpose(0, 1), tensors[3][:, 1:38], tensors[3][0], tensors[9]]

def same(ours, theirs):
    word = torch.int32 if ours.dtype == torch.float32 else torch.int16
    both = ours.isnan() & theirs.isnan()
    return ours.dtype == theirs.dtype and bool(((ours.view(word) == theirs.contiguous().view(word)) | both).all())

triton_blocks.TILE = 8192  # each program is interpreted for many milliseconds

def check(tensor, name, rule, rounding, largest=None):
    ours = triton_blocks.rounded_blocks(tensor, blocks()[name], rule, rounding, 11, largest)
    theirs = quantize_blocks(tensor, name, rule=rule, rounding=rounding, seed=11, largest=largest)
    print("same" if same(ours, theirs) else f"differs: {name} {rule} {rounding} {tensor.dtype} {list(tensor.shape)}")

for name, rounding in itertools.product(blocks(), ROUNDINGS):
    check(together, name, "floor", rounding)
    for each in narrow if name in ("mxfp8_e5m2", "mxint8", "nvfp4") else narrow[:1]:
        check(each, name, "floor", rounding)
for name, rule in itertools.product(blocks(), SCALE_RULES[1:]):
    if name != "nvfp4":
        check(together, name, rule, "nearest_even")
for rounding, each in itertools.product(ROUNDINGS, [*tensors[2:7], tensors[8], narrow[0][12:], narrow[1][12:]]):
    check(each, "nvfp4", "floor", rounding)  # whose scale follows the largest of the tensor
triton_blocks.TILE = 512  # so that there are several programs
for name, each in itertools.product(("mxfp4", "nvfp4"), layouts):
    check(each, name, "floor", "stochastic")
check(tensors[2], "nvfp4", "floor", "nearest_even", 3.0)
"""


@needs.triton
def test_that_the_kernel_for_gpus_rounds_as_the_cpu_does() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert not done.returncode, done.stderr[-3000:]
    assert [line for line in lines if line.startswith("differs")] == []
    assert lines.count("same") == len(lines) > 200
