"""The kernel for GPUs, interpreted on the CPU, against the loops of the CPU."""

from __future__ import annotations

import os
import subprocess
import sys

from tests import needs

PROGRAM = """
import mmap
import numpy as np
import torch
from precgui.engine.telemetry import triton_kernels
from precgui.engine.telemetry.backends import CpuStats, CudaStats, fetched

assert triton_kernels.works(torch.device("cpu"))
draw = torch.Generator().manual_seed(0)
odd = torch.tensor([0.0, -0.0, torch.nan, torch.inf, -torch.inf, 1e-40, 3e38, -2.0])
tensors = [
    torch.randn(10_000, generator=draw), torch.randn(64 * 5, generator=draw).bfloat16(), odd,
    torch.randn(5001, generator=draw).half(), torch.randn(8, 16, generator=draw).T, torch.zeros(0),
]
host, device = CpuStats(), CudaStats(torch.device("cpu"), triton_kernels)

def check(found, wanted):
    (wanted,), (found,) = fetched([wanted]), fetched([found])
    none = wanted[:, 1] >= 0x7F800000  # nothing is the least of no numbers
    assert (found[none, 1] >= 0x7F800000).all()
    wanted[none, 1] = found[none, 1]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)

for stride, factor in ((1, 1.0), (4, 0.125)):
    strides = [stride if tensor.numel() % 64 == 0 else 1 for tensor in tensors]
    wanted = host.measure(tensors, strides, 3, factor)
    check(device.measure(tensors, strides, 3, factor), wanted.copy())
    alone = device.in_turn()
    for tensor, own in zip(tensors, strides):
        if tensor.numel():
            alone.add(tensor, own, 3, factor)
    check(alone.rows(), wanted[[tensor.numel() > 0 for tensor in tensors]])
    before = [meter.keep(tensors, strides, 3) for meter in (host, device)]
    changed = [tensor + 1e-3 * tensor.abs().clamp(max=1).round(decimals=1) for tensor in tensors]
    wanted, found = (meter.compare(changed, strides, 3, kept) for meter, kept in zip((host, device), before))
    check(found, wanted)
for dtypes in ((torch.bfloat16, torch.float32), (torch.float32, torch.float64), (torch.float32, torch.float16)):
    # a copy in more digits that is held inside a step alone: before it, and behind it, is another type
    old, new = (torch.linspace(1, 2, 640).mul(factor).to(dtype) for factor, dtype in zip((1.0, 1.25), dtypes))
    wanted, found = (meter.compare([new], [1], 3, meter.keep([old], [1], 3)) for meter in (host, device))
    check(found, wanted)
many = device.in_turn()
for number in range(130):  # more than a table has rows, with one between them that the kernel does not read
    many.add(torch.full((65,), float(number), dtype=torch.float64 if number == 70 else torch.float32), 1, 0, 1.0)
assert many.rows()[:, 2].tolist() == [65.0 * number for number in range(130)]
full = triton_kernels.empty_rows(1, torch.device("cpu"))
full[0, 8] = full[0, 142] = 2.0**31 - 1
triton_kernels.measure_alone(torch.ones(3), 1, 0, 1.0, full, 0)
assert full[0, 8] == full[0, 142] == 2.0**31 + 2, "counts go on beyond 32 bits"
MAP_32BIT = 0x40  # the place of small tensors where Python is linked to fixed addresses
low = torch.frombuffer(mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_32BIT), dtype=torch.float32)
check(device.measure([low.fill_(2)], [1], 3, 1.0), host.measure([low], [1], 3))
alone = device.in_turn()
alone.add(low, 1, 3, 1.0)
check(alone.rows(), host.measure([low], [1], 3))
print("equal")
"""


@needs.triton
def test_that_the_kernel_for_gpus_finds_what_the_loops_find() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    end = f"code {done.returncode}, {done.stderr[-160:]!r}\n{done.stderr}"
    assert (done.returncode, done.stdout.strip()) == (0, "equal"), end
