"""Which arithmetic really runs: determined from results, not from a switch.

The relative error of a product of random matrices against FP64 tells the format of the operands: about 3e-7
for FP32, 3e-4 for TF32 and FP16, 2e-3 for BF16 (standard normal operands, K = 128 to 256).
"""

from __future__ import annotations

import functools
import os
import time
from typing import Any

import torch

from precgui.engine.errors import EngineError
from precgui.sentences import Sentence, first_line

TRUE_FP32_BELOW = 1e-5  # between FP32's 3e-7 and TF32's 3e-4
TF32_BELOW = 1e-3  # between TF32's 3e-4 and BF16's 2e-3

_DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_VARIABLES = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "CUBLAS_WORKSPACE_CONFIG",
)


def gemm_error(device: torch.device, dtype: torch.dtype = torch.float32, size: int = 256) -> float:
    """Frobenius error of a size^3 product in `dtype` on `device`, relative to FP64, with the switches as they are."""
    generator = torch.Generator("cpu").manual_seed(1)
    a, b = (torch.randn(size, size, generator=generator, device="cpu", dtype=torch.float32) for _ in range(2))
    exact = a.double() @ b.double()
    product = (a.to(device, dtype) @ b.to(device, dtype)).cpu().double()
    return float((product - exact).norm() / exact.norm())


def require_true_fp32(device: torch.device) -> None:
    """Raises EngineError when products of FP32 operands on `device` are not FP32 to the last bits."""
    error = gemm_error(device)
    if error > TRUE_FP32_BELOW:
        raise EngineError(
            Sentence(
                "this device does not multiply in true FP32 (relative error {error:.1e}, FP32 gives 3e-7); look for "
                "NVIDIA_TF32_OVERRIDE or ONEDNN_DEFAULT_FPMATH_MODE in the environment",
                error=error,
            )
        )


def executed_fp32(error: float) -> str:
    """The format in which FP32 products really run, from their `gemm_error`."""
    return "fp32" if error < TRUE_FP32_BELOW else "tf32" if error < TF32_BELOW else "bf16"


def certificate(device: torch.device, *, fp32_only: bool = False) -> dict[str, Any]:
    """Measures the precision of products on `device` now; built-in types.

    `gemm_error` holds the relative error against FP64 for each format (or why it has none), `fp32_products` the format
    in which FP32 ones run, `switches` all that decides it, `environment` the variables that override switches.
    `fp32_only` tries FP32 products and no others: products of other formats may be slow.
    """
    from precgui.engine.torch_facts import switches

    tried = {"fp32": torch.float32} if fp32_only else _DTYPES
    size = 128 if device.type == "cpu" else 256  # reference kernels of 16-bit formats need 25 ms for 256
    errors = {name: _error(device, dtype, size) for name, dtype in tried.items()}
    fp32 = errors["fp32"]
    return {
        "gemm_error": errors,
        "gemm_size": size,
        "fp32_products": executed_fp32(fp32) if isinstance(fp32, float) else "unknown",
        "switches": {
            **switches(),
            "flash_attention": torch.backends.cuda.flash_sdp_enabled(),
            "math_attention": torch.backends.cuda.math_sdp_enabled(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        },
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _error(device: torch.device, dtype: torch.dtype, size: int) -> float | str:
    try:
        return gemm_error(device, dtype, size)
    except (RuntimeError, TypeError) as error:
        return first_line(error)


@functools.cache
def slowdown(dtype: torch.dtype, size: int = 256, rounds: int = 5) -> float:
    """Time of a product in `dtype` on the CPU over its time in FP32 (best of `rounds`); reference kernels show 20+.

    A matter of the processor: measured once in a process.
    """
    operands = {kind: torch.ones(size, size, dtype=kind) for kind in (torch.float32, dtype)}
    best = dict.fromkeys(operands, float("inf"))
    for _ in range(rounds):
        for kind, a in operands.items():
            start = time.perf_counter()
            torch.mm(a, a)
            best[kind] = min(best[kind], time.perf_counter() - start)
    return best[dtype] / best[torch.float32]
