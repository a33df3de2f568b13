"""How the operands of a product are rounded.

Each rounding is called with an FP32 tensor and the axis along which the product sums, and gives FP32 values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Round(Protocol):
    """Rounds a tensor for a product that sums along `axis`; with `axis_free` the axis does not matter."""

    @property
    def axis_free(self) -> bool: ...

    def __call__(self, tensor: Tensor, axis: int) -> Tensor: ...


class Exact:
    """No rounding."""

    axis_free = True

    def __call__(self, tensor: Tensor, axis: int) -> Tensor:
        return tensor


@dataclass(frozen=True)
class Cast:
    """Rounded to nearest even by torch's own cast; overflow gives Inf where the format has it."""

    dtype: torch.dtype
    axis_free = True

    def __call__(self, tensor: Tensor, axis: int) -> Tensor:
        return tensor.to(self.dtype).to(torch.float32)


class ToTF32:
    """Rounded to TF32's 10 mantissa bits, nearest even; NaN and Inf pass."""

    axis_free = True

    def __call__(self, tensor: Tensor, axis: int) -> Tensor:
        bits = tensor.contiguous().view(torch.int32)
        rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
        return torch.where(tensor.isfinite(), rounded.view(torch.float32), tensor)
