"""Operands of FP8 products, scaled and cast by torch operations: the one form for exported scripts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from precgui.engine.emulation.operands import AmaxScale


class Quantized(NamedTuple):
    """A matrix in FP8 and its transpose, both contiguous, and the factors that undo the scaling.

    What is not asked for is empty. The factors are shaped [rows, 1], [1, columns] or [1, 1].
    """

    straight: Tensor
    turned: Tensor
    inverse: Tensor


def quantized(
    matrix: Tensor, dtype: torch.dtype, scale: AmaxScale, axis: int, *, straight: bool = True, turned: bool = False
) -> Quantized:
    """The matrix in FP8, scaled for products that sum along the axis."""
    return cast(matrix, scale.amax(matrix, axis), dtype, scale, turned=turned)


def cast(matrix: Tensor, amax: Tensor, dtype: torch.dtype, scale: AmaxScale, *, turned: bool) -> Quantized:
    """The matrix in FP8 by its largest value."""
    factor, largest = scale.factor(amax), torch.finfo(dtype).max
    values = (matrix * factor).clamp(-largest, largest).to(dtype)
    return Quantized(values, values.t().contiguous() if turned else values[:0], as_matrix(factor.reciprocal()))


def as_matrix(factors: Tensor) -> Tensor:
    """Factors of a whole matrix in two dimensions, too."""
    return factors.reshape(factors.shape or (1, 1))
