"""Statistics and exponent histograms of FP32 tensors in one pass over memory, compiled by numba.

Tensors are named by address, so that one call takes all of them and costs no array object for each. A tensor is looked
at in blocks of BLOCK neighbours; of `stride` blocks one is read, from block `first` on. Each block is copied to a
buffer that stays in the first-level cache; counting and summing run over the buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

BLOCK = 64
BINS = 256
# What the loops leave in a row, before `telemetry_rows.finished` turns sums into statistics.
AMAX, LEAST, SUM, SQUARES, ZEROS, NAN, POS_INF, NEG_INF, COUNT, CHANGED, LOST = range(11)
LOST_FORMATS = 5
SUMS = LOST + LOST_FORMATS

_ABS, _INF, _SIGN = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint32(0x80000000)
_ONE, _NONE = np.uint32(1), np.uint32(0xFFFFFFFF)
_EXPONENT_SHIFT = np.uint32(23)


_array: Any = numba.carray  # type: ignore[attr-defined]


def _pointer_to_float(context: Any, address: Any) -> Any:
    """An address as a pointer to float32."""
    float_pointer: Any = types.CPointer
    signature = float_pointer(types.float32)(types.intp)

    def code(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], target.get_value_type(signature.return_type))

    return signature, code


_pointer: Any = intrinsic(_pointer_to_float)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, and keep the machine code on disk where there is a place for it."""
    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract"}, "error_model": "numpy"}
    try:
        compiled: Callable[..., Any] = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder that it may write to
        compiled = numba.njit(**options)(function)
    return compiled


@numba.njit(inline="always")
def _special(bits: Any, size: Any, row: Any) -> None:
    """Tell NaN from the infinities."""
    for i in range(size):
        magnitude = bits[i] & _ABS
        if magnitude > _INF:
            row[NAN] += 1
        elif magnitude == _INF:
            row[NEG_INF if bits[i] & _SIGN else POS_INF] += 1


@numba.njit(inline="always")
def _add_block(values: Any, bits: Any, size: Any, row: Any, counts: Any) -> None:
    """Add `size` buffered values (`bits` is the same memory) to a row of sums and to four histograms."""
    for i in range(size):  # four, because a counter cannot be incremented twice in a row without waiting
        counts[i & 3, (bits[i] & _ABS) >> _EXPONENT_SHIFT] += _ONE
    amax, least, largest = np.uint32(0), _NONE, np.uint32(0)
    zeros = np.uint32(0)
    for i in range(size):
        magnitude = bits[i] & _ABS
        largest = max(largest, magnitude)
        amax = max(amax, magnitude if magnitude < _INF else np.uint32(0))
        least = min(least, np.uint32(magnitude - _ONE))  # zero becomes the largest number
        zeros += np.uint32(magnitude == 0)
    if largest >= _INF:
        _special(bits, size, row)
        for i in range(size):
            if bits[i] & _ABS >= _INF:
                values[i] = 0
    total, squares = 0.0, 0.0
    for i in range(size):
        value = np.float64(values[i])
        total += value
        squares += value * value
    row[AMAX] = max(row[AMAX], np.float64(amax))
    row[LEAST] = min(row[LEAST], np.float64(least))
    row[SUM] += total
    row[SQUARES] += squares
    row[ZEROS] += zeros
    row[COUNT] += size


@numba.njit(inline="always")
def _merge(counts: Any, exponents: Any) -> None:
    for k in range(BINS):
        exponents[k] += counts[0, k] + counts[1, k] + counts[2, k] + counts[3, k]


def _measure(addresses: Any, sizes: Any, strides: Any, firsts: Any, factor: Any, rows: Any, exponents: Any) -> None:
    """Statistics of each tensor times `factor` into rows[t] (SUMS numbers) and exponents[t] (BINS counts)."""
    values = np.empty(BLOCK, np.float32)
    bits = values.view(np.uint32)
    for t in range(addresses.size):
        source = _array(_pointer(addresses[t]), (sizes[t],))
        counts = np.zeros((4, BINS), np.uint32)
        for start in range(firsts[t] * BLOCK, sizes[t], strides[t] * BLOCK):
            size = min(BLOCK, sizes[t] - start)
            for i in range(size):
                values[i] = source[start + i] * np.float32(factor)
            _add_block(values, bits, size, rows[t], counts)
        _merge(counts, exponents[t])


def _sample(addresses: Any, sizes: Any, strides: Any, firsts: Any, kept: Any) -> None:
    """Copy the blocks that `measure` would look at, one tensor after the other, into `kept`."""
    at = 0
    for t in range(addresses.size):
        source = _array(_pointer(addresses[t]), (sizes[t],))
        for start in range(firsts[t] * BLOCK, sizes[t], strides[t] * BLOCK):
            size = min(BLOCK, sizes[t] - start)
            for i in range(size):
                kept[at + i] = source[start + i]
            at += size


def _compare(
    addresses: Any, sizes: Any, strides: Any, firsts: Any, kept: Any, halves: Any, rows: Any, exponents: Any
) -> None:
    """Statistics of what was added to each tensor since `sample` wrote `kept`.

    halves[f] is, for format f, the least exponent of half an ulp, and the distance from the exponent of a value to that
    of half its ulp, both in biased exponents. Counted are elements that changed, and changes below half an ulp.
    """
    changes = np.empty(BLOCK, np.float32)
    bits = changes.view(np.uint32)
    at = 0
    for t in range(addresses.size):
        source = _array(_pointer(addresses[t]), (sizes[t],))
        counts = np.zeros((4, BINS), np.uint32)
        for start in range(firsts[t] * BLOCK, sizes[t], strides[t] * BLOCK):
            size = min(BLOCK, sizes[t] - start)
            old = kept[at : at + size]
            was = old.view(np.uint32)
            for i in range(size):
                changes[i] = source[start + i] - old[i]
            moved = 0
            for i in range(size):
                moved += (bits[i] & _ABS) != 0
            rows[t, CHANGED] += moved
            for f in range(halves.shape[0]):
                lost = 0
                for i in range(size):
                    change = np.int32((bits[i] & _ABS) >> _EXPONENT_SHIFT)
                    half = max(np.int32((was[i] & _ABS) >> _EXPONENT_SHIFT) - halves[f, 1], halves[f, 0])
                    lost += (change < half) & ((bits[i] & _ABS) != 0)
                rows[t, LOST + f] += lost
            _add_block(changes, bits, size, rows[t], counts)
            at += size
        _merge(counts, exponents[t])


measure = _compiled(_measure)
sample = _compiled(_sample)
compare = _compiled(_compare)
