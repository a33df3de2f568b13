"""Which format a recorded tensor was in, from the digits of its recorded extremes.

`amax` and `amin_nonzero` are kept exactly, as FP32. A number of BF16 has 16 zero bits at its end, one of FP16 has 13,
also after a division by a power of two such as a loss scale. For k numbers of FP32 that happens by chance with a
probability of 2^-13k.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DIGITS = {"bf16": 8, "fp16": 11}  # of the significand, with the hidden one
_ZERO_BITS = (("fp16", 13), ("bf16", 16), ("fp8", 20))  # of FP32's 23 digits
_GRID = 12  # octaves from the step of a grid to its largest number
_FEWEST = 2  # numbers that are not powers of two


def half_ulp(name: str, value: float = 1.0) -> float:
    """Half the distance from a positive value to the next larger number of BF16 or FP16, subnormal numbers aside."""
    return float(2.0 ** (np.floor(np.log2(value)) - DIGITS[name]))


def trailing_zeros(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many of FP32's 23 digits at the end of each number are zero, 23 for a power of two."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.int64) & 0x7FFFFF
    lowest = bits & -bits
    return np.where(bits == 0, 23, np.round(np.log2(np.maximum(lowest, 1)))).astype(np.int64)


def format_of(values: NDArray[np.float64]) -> str:
    """`fp32` (or wider), `fp16`, `bf16` or `fp8` for numbers of one tensor; empty where they do not decide it."""
    known = np.unique(values[np.isfinite(values) & (values > 0)])
    zeros = trailing_zeros(known)
    telling = zeros[zeros < 23]
    if len(telling) < _FEWEST:
        return ""
    result = next((name for name, least in reversed(_ZERO_BITS) if telling.min() >= least), "fp32")
    return result if result == "fp32" or not _on_a_grid(known, zeros) else ""


def _on_a_grid(known: NDArray[np.float64], zeros: NDArray[np.int64]) -> bool:
    """Whether all are multiples of one step that is not small beside them: whole numbers and pixels have few digits in
    any format."""
    last = np.floor(np.log2(known)) - 23 + zeros  # the exponent of the last digit that is not zero
    return bool(np.log2(known.max()) - last.min() < _GRID)


def formats_of(amax: NDArray[np.float64], amin: NDArray[np.float64]) -> list[str]:
    """The format of each tensor from its extremes in all recorded steps, both of shape (rows, tensors)."""
    return [format_of(np.concatenate((amax[:, place], amin[:, place]))) for place in range(amax.shape[1])]
