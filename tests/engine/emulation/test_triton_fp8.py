"""The kernel that scales and casts to FP8, interpreted on the CPU, against torch's operations, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys

from tests import needs

PROGRAM = """
import itertools
import torch
from precgui.engine.emulation import fp8_cast, native_fp8, triton_fp8
from precgui.engine.emulation.operands import TINY, AmaxScale, BatchSeed

torch.manual_seed(1)

def same(ours, theirs):
    word = torch.uint8 if ours.dtype.itemsize == 1 else torch.int32
    unknown = theirs.float().isnan()  # which the interpreter does not cast
    both = unknown if word is torch.uint8 else unknown & ours.isnan()
    return ours.shape == theirs.shape and bool(((ours.view(word) == theirs.contiguous().view(word)) | both).all())

plain = torch.randn(48, 80) * torch.exp2(torch.randint(-12, 12, (48, 80)).float())
odd, zero, infinite, unknown = plain[:33, :37].clone(), plain.clone(), plain.clone(), plain.clone()
zero[3], zero[:, 5] = 0.0, 0.0
infinite[2, 7], unknown[1, 2] = -torch.inf, torch.nan
large, small = plain * 1e30, plain * 1e-40
matrices = [plain, odd, zero, torch.zeros(16, 16), infinite, unknown, plain.t(), plain[:, 8:40], small, large]
for place, matrix in enumerate(matrices):
    for dtype, rowwise, axis in itertools.product((native_fp8.FORWARD, native_fp8.BACKWARD), (False, True), (0, 1)):
        largest = torch.finfo(dtype).max
        scale = AmaxScale(largest, BatchSeed(0), rowwise=rowwise)
        wanted = fp8_cast.quantized(matrix, dtype, scale, axis, turned=True)
        amax = fp8_cast.as_matrix(scale.amax(matrix, axis))
        for straight, turned in ((True, True), (True, False), (False, True)):
            words = {"straight": straight, "turned": turned}
            found = triton_fp8.scaled(matrix, amax, largest, TINY, dtype, **words)
            parts = [bool(straight), bool(turned), True]
            alike = [same(own, other) for own, other, asked in zip(found, wanted, parts) if asked]
            empty = [not own.numel() for own, asked in zip(found, parts) if not asked]
            print("same" if all(alike + empty) else f"differs: {place} {dtype} {rowwise} {axis} {straight} {turned}")
"""


@needs.triton
def test_that_the_kernel_casts_as_torch_does() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert not done.returncode, done.stderr[-3000:]
    assert [line for line in lines if line.startswith("differs")] == []
    assert lines.count("same") == len(lines) == 240
