"""Which arithmetic really runs: settled by numerics, not by reading a switch.

The relative error of a product of random matrices against FP64 tells the format of the operands: about 3e-7
for FP32, 3e-4 for TF32 and FP16, 2e-3 for BF16 (standard normal operands, K = 256).
"""

from __future__ import annotations

import time

import torch

TRUE_FP32_BELOW = 1e-5  # between FP32's 3e-7 and TF32's 3e-4


def gemm_error(device: torch.device, dtype: torch.dtype = torch.float32, size: int = 256) -> float:
    """Frobenius error of a size^3 product in `dtype` on `device`, relative to FP64, with the switches as they are."""
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(size, size, generator=generator)
    b = torch.randn(size, size, generator=generator)
    exact = a.double() @ b.double()
    product = (a.to(device, dtype) @ b.to(device, dtype)).double().cpu()
    return float((product - exact).norm() / exact.norm())


def slowdown(dtype: torch.dtype, size: int = 256, rounds: int = 5) -> float:
    """Time of a product in `dtype` on the CPU over its time in FP32 (best of `rounds`); reference kernels show 20+."""
    operands = {kind: torch.ones(size, size, dtype=kind) for kind in (torch.float32, dtype)}
    best = dict.fromkeys(operands, float("inf"))
    for _ in range(rounds):
        for kind, a in operands.items():
            start = time.perf_counter()
            torch.mm(a, a)
            best[kind] = min(best[kind], time.perf_counter() - start)
    return best[dtype] / best[torch.float32]
