"""A matrix unit with planted arithmetic, in NumPy: aligned products of a block are added to a short running sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
_ROUND: dict[str, Any] = {"toward_zero": np.trunc, "down": np.floor, "up": np.ceil, "nearest_even": np.rint}


@dataclass(frozen=True)
class MatrixUnit:
    """`bits` of the aligned terms and of the running sum; `terms` in a block; every `promoted_every` terms the running
    sum is added in FP32 and begins anew. `least` are the exponents of the operands' smallest normal numbers."""

    bits: int
    terms: int
    promoted_every: int | None = None
    rounding: str = "toward_zero"
    sum_bits: int | None = None
    flushes_below: float = 0.0
    least: tuple[int, int] = (-6, -6)

    def product(self, a: Floats, b: Floats) -> Floats:
        """[m, k] times [k, n]."""
        a, b = (np.where(np.abs(each) < self.flushes_below, 0.0, each) for each in (a, b))
        total = np.zeros((len(a), b.shape[1]), np.float32)
        running = np.zeros(total.shape)
        for start in range(0, a.shape[1], self.terms):
            x, y = a[:, start : start + self.terms, None], b[None, start : start + self.terms]
            products, exponents = x * y, _exponent(x, self.least[0]) + _exponent(y, self.least[1])
            highest = np.maximum(exponents.max(1), _exponent(running, -126))
            unit = np.exp2(highest - (self.bits - 1.0))
            added = self._round(products / unit[:, None]).sum(1) + self._round(running / unit)
            running = self._in_register(added * unit)
            if self.promoted_every and (start + self.terms) % self.promoted_every == 0:
                total, running = total + running.astype(np.float32), np.zeros(total.shape)
        result: Floats = (total + running.astype(np.float32)).astype(np.float64)
        return result

    def scaled_mm(self, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, **_: Any) -> Tensor:
        """As `torch._scaled_mm`."""
        result = torch.from_numpy(self.product(a.double().numpy(), b.double().numpy())).float()
        return result * scale_a * scale_b

    def _round(self, values: Floats) -> Floats:
        result: Floats = _ROUND[self.rounding](values)
        return result

    def _in_register(self, values: Floats) -> Floats:
        unit = np.exp2(_exponent(values, -126) - (self.sum_bits or self.bits) + 1.0)
        return self._round(values / unit) * unit


def _exponent(values: Floats, least: int) -> Floats:
    return np.where(values == 0, -1000.0, np.maximum(np.frexp(values)[1] - 1.0, least))
