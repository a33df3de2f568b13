"""The kernel for GPUs, interpreted on the CPU, against the loops of the CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from tests import needs

PROGRAM = """
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
for stride, factor in ((1, 1.0), (4, 0.125)):
    strides = [stride if tensor.numel() % 64 == 0 else 1 for tensor in tensors]
    (wanted,), (found,) = (
        fetched([meter.measure(tensors, strides, 3, factor)]) for meter in (host, device)
    )
    none = np.isinf(wanted)  # nothing is the least of no numbers
    wanted[none] = found[none]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
print("equal")
"""


@needs.triton
def test_that_the_kernel_for_gpus_finds_what_the_loops_find() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "equal", done.stderr


def test_that_counts_of_more_than_2_to_the_31_elements_are_not_negative() -> None:
    triton_kernels = pytest.importorskip("precgui.engine.telemetry.triton_kernels", reason="needs Triton")
    wrapped = torch.tensor([0, 5, 2**31 - 1, -(2**31), -1], dtype=torch.int32)
    assert triton_kernels._unsigned(wrapped).tolist() == [0.0, 5.0, 2.0**31 - 1, 2.0**31, 2.0**32 - 1]
