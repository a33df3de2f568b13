"""FP16 products outside of layers (attention, matmul) for a CPU, whose own FP16 kernels are references of no speed.

Operands are rounded to FP16 and multiplied in FP32, the result is rounded to FP16; gradients are rounded by the same
casts on their way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_PRODUCTS: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.nn.functional.scaled_dot_product_attention,
        torch.matmul,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        torch.bmm,
        torch.Tensor.bmm,
        torch.baddbmm,
        torch.einsum,
    }
)


class Fp16ProductMode(TorchFunctionMode):
    """While entered, products that would run in FP16 are emulated: all under autocast, else those of FP16 tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _PRODUCTS or not _would_be_half([*args, *kwargs.values()]):
            return func(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            rounded = func(*map(_rounded, args), **{key: _rounded(value) for key, value in kwargs.items()})
            return rounded.half()


def _would_be_half(values: list[Any]) -> bool:
    if torch.is_autocast_enabled("cpu"):
        return True
    return any(isinstance(value, Tensor) and value.dtype is torch.float16 for value in values)


def _rounded(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.half().float()
    if isinstance(value, list | tuple):
        return type(value)(map(_rounded, value))
    return value
