"""Inputs of integer kernels: FP32 to unsigned bytes in one pass over memory, compiled by numba.

torch would take five passes (divide, round, add, clamp, convert), which costs a small layer more than its product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, and keep the machine code on disk where there is a place for it."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        made: Callable[..., Any] = numba.njit(function, cache=True, **options)
    except RuntimeError:
        made = numba.njit(function, **options)
    return made


@_compiled
def _round(values: Any, out: Any, step: Any, zero: Any, largest: Any) -> None:
    for i in range(values.size):
        out[i] = np.uint8(min(max(np.rint(values[i] / step) + zero, np.float32(0)), largest))


def to_integers(value: Tensor, step: float, zero: int, largest: int) -> Tensor:
    """The integers 0 to `largest` that FP32 values on the CPU become, as uint8 in the same layout."""
    value = value if _is_dense(value) else value.contiguous()
    made = torch.empty_like(value, dtype=torch.uint8)
    numbers = np.float32(step), np.float32(zero), np.float32(largest)
    _round(_in_memory(value), _in_memory(made), *numbers)
    return made


def _is_dense(value: Tensor) -> bool:
    return value.is_contiguous() or (value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last))


def _in_memory(value: Tensor) -> Any:
    """The numbers in the order in which they lie in memory, without a copy."""
    return (value if value.is_contiguous() else value.permute(0, 2, 3, 1)).detach().view(-1).numpy()
