"""Statistics and exponent histograms of FP32 and BF16 tensors in one pass over memory, compiled by numba.

Tensors are named by address, so that one call takes all of them and costs no array object for each. A tensor is looked
at in blocks of BLOCK neighbours; of `stride` blocks one is read, from block `first` on. CHUNK numbers, which stay in
the first-level cache, go through loops that are such that the compiler makes vector instructions of them; what has to
be cast, scaled or put together is copied to a buffer before. The histogram counts one bin after the other, between the
smallest and the largest exponent of the chunk: a dozen in most tensors, which is faster than one counter after the
other. Meanwhile the next chunk is brought into the cache, which else would take as long again.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from precgui.engine.compiled_loops import compiled
from precgui.engine.telemetry.llvm_intrinsics import (
    GROUP,
    LINE,
    as_floats,
    as_words,
    count_below,
    count_equal,
    prefetch,
)

FASTMATH = {"reassoc", "contract"}  # but NaN and Inf are looked for
BLOCK = 64
CHUNK = 2048  # a multiple of BLOCK and of GROUP, at most MOST_GROUPS of them
BINS = 256
# What the loops leave in a row, before `engine.telemetry.statistics.finished` turns sums into statistics.
AMAX, LEAST, SUM, SQUARES, ZEROS, NAN, POS_INF, NEG_INF, COUNT, CHANGED, LOST = range(11)
LOST_FORMATS = 5
SUMS = LOST + LOST_FORMATS
FLOAT32, BFLOAT16, CHANGE = range(3)  # what an address points to; CHANGE: to FP32 differences, for `compare` only
_PIECE = 4 * BLOCK  # bytes that are brought into the cache together

_ABS, _INF, _SIGN = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint32(0x80000000)
_ONE, _NONE = np.uint32(1), np.uint32(0xFFFFFFFF)
_EXPONENT_SHIFT, _HALF_WORD = np.uint32(23), np.uint32(16)
_SPECIAL = np.uint8(255)  # exponent of NaN and Inf; also marks places that hold no number
_WIDE = 40  # bins from which one counter after the other is faster

carray: Any = numba.carray  # type: ignore[attr-defined]


@numba.njit(inline="always")
def _read(address: Any, kind: Any, start: Any, values: Any) -> None:
    """Fill `values` with the numbers of a tensor from `start` on."""
    if kind == BFLOAT16:
        words, bits = carray(as_words(address + 2 * start), values.shape), values.view(np.uint32)
        for i in range(values.size):
            bits[i] = np.uint32(np.uint32(words[i]) << _HALF_WORD)
    else:
        source = carray(as_floats(address + 4 * start), values.shape)
        for i in range(values.size):
            values[i] = source[i]


@numba.njit(inline="always")
def _extremes(bits: Any, size: Any) -> Any:
    """The largest magnitude, and the smallest but for zero less one, as bits."""
    largest, least = np.uint32(0), _NONE
    for i in range(size):
        magnitude = np.uint32(bits[i] & _ABS)
        largest = max(largest, magnitude)
        least = min(least, np.uint32(magnitude - _ONE))  # zero becomes the largest number
    return largest, least


@numba.njit(inline="always")
def _special(values: Any, bits: Any, size: Any, row: Any, exponents: Any) -> Any:
    """Count NaN and infinities separately, put zeros in their places; returns how many there were."""
    result = 0
    for i in range(size):
        magnitude = bits[i] & _ABS
        if magnitude < _INF:
            continue
        if magnitude > _INF:
            row[NAN] += 1
        else:
            row[NEG_INF if bits[i] & _SIGN else POS_INF] += 1
        values[i] = 0
        result += 1
    exponents[255] += np.uint32(result)
    return result


@numba.njit(inline="always")
def _pack(bits: Any, size: Any, packed: Any) -> None:
    """Exponents as bytes; the places up to the next whole group hold no number."""
    for i in range(size):
        packed[i] = np.uint8(np.uint32(np.uint32(bits[i] & _ABS) >> _EXPONENT_SHIFT))
    for i in range(size, (size + GROUP - 1) // GROUP * GROUP):
        packed[i] = _SPECIAL


@numba.njit(inline="always")
def _gather(bits: Any, size: Any, packed: Any) -> None:
    """Like `_pack`, but in an order of its own: four numbers at a time, a quarter of the chunk from each other."""
    part, words = size // 4, packed.view(np.uint32)
    first, second, third, last = bits[:part], bits[part:], bits[2 * part :], bits[3 * part :]
    for i in range(part):
        a, b, c, d = np.uint32(first[i] * 2), np.uint32(second[i] * 2), np.uint32(third[i] * 2), np.uint32(last[i] * 2)
        low = np.uint32(np.uint32(a >> np.uint32(24)) | np.uint32(np.uint32(b >> np.uint32(16)) & np.uint32(0xFF00)))
        high = np.uint32(np.uint32(np.uint32(c >> np.uint32(8)) & np.uint32(0xFF0000)) | (d & np.uint32(0xFF000000)))
        words[i] = np.uint32(low | high)
    for i in range(4 * part, size):
        packed[i] = np.uint8(np.uint32(np.uint32(bits[i] & _ABS) >> _EXPONENT_SHIFT))
    for i in range(size, (size + GROUP - 1) // GROUP * GROUP):
        packed[i] = _SPECIAL


@numba.njit(inline="always")
def _histogram(packed: Any, size: Any, low: Any, high: Any, exponents: Any, ahead: Any) -> Any:
    """Count the exponents from `low` (at least 1) to `high`; how many there were. See `_ahead`."""
    result, (address, hop, pieces) = 0, ahead
    if high - low < _WIDE:
        for k in range(low, high + 1):
            for _ in range(min(pieces, 2)):
                for line in range(0, _PIECE, LINE):
                    prefetch(address + line)
                address += hop
            pieces -= 2
            count = count_equal(packed.ctypes.data, (size + GROUP - 1) // GROUP, np.uint8(k))
            exponents[k] += np.uint32(count)
            result += count
    else:
        for i in range(size):
            k = packed[i]
            if low <= k <= high:
                exponents[k] += _ONE
                result += 1
    return result


@numba.njit(inline="always")
def _add(values: Any, buffer: Any, packed: Any, row: Any, exponents: Any, ahead: Any) -> None:
    """Add at most CHUNK values to a row of sums and to a histogram; writes to them only where they are in `buffer`."""
    size, bits, special = values.size, values.view(np.uint32), 0
    _gather(bits, size, packed)
    largest, least = _extremes(bits, size)
    if largest >= _INF:
        buffer[:size] = values
        values, bits = buffer[:size], buffer[:size].view(np.uint32)
        special = _special(values, bits, size, row, exponents)
        largest, least = _extremes(bits, size)
    low, high = np.int64(1), np.int64(0)
    if least != _NONE:  # something is not zero
        low, high = np.int64((least + _ONE) >> _EXPONENT_SHIFT), np.int64(largest >> _EXPONENT_SHIFT)
    tiny = size - special - _histogram(packed, size, max(low, 1), high, exponents, ahead)
    exponents[0] += np.uint32(tiny)
    if low == 0:  # numbers below the normal ones are in the same bin as zeros
        tiny = -special
        for i in range(size):
            tiny += np.int64((bits[i] & _ABS) == 0)
    total, squares = 0.0, 0.0
    for i in range(size):
        value = np.float64(values[i])
        total += value
        squares += value * value
    row[AMAX] = max(row[AMAX], np.float64(largest))
    row[LEAST] = min(row[LEAST], np.float64(least))
    row[SUM] += total
    row[SQUARES] += squares
    row[ZEROS] += tiny
    row[COUNT] += size


@numba.njit(inline="always")
def _ahead(address: Any, size: Any, kind: Any, stride: Any, start: Any) -> Any:
    """The addresses that a chunk reads from element `start` on: first address, distance, count."""
    width = 2 if kind == BFLOAT16 else 4
    hop = _PIECE if stride == 1 else stride * BLOCK * width
    pieces = CHUNK * width // _PIECE if stride == 1 else CHUNK // BLOCK
    left = max(size - start, 0) * width
    return address + start * width, hop, min(pieces, (left + hop - 1) // hop)


def _measure(addresses: Any, sizes: Any, kinds: Any, strides: Any, firsts: Any, factor: Any, rows: Any) -> None:
    """Statistics of each tensor times `factor` into rows[t]: SUMS numbers, then BINS counts."""
    buffer, packed = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.uint8)
    exponents = np.empty(BINS, np.uint32)
    for t in range(addresses.size):
        exponents[:] = 0
        in_place = strides[t] == 1 and kinds[t] == FLOAT32 and factor == 1
        block, at = CHUNK if strides[t] == 1 else BLOCK, 0
        for start in range(firsts[t] * block, sizes[t], strides[t] * block):
            count = min(block, sizes[t] - start)
            if not in_place:
                _read(addresses[t], kinds[t], start, buffer[at : at + count])
            at += count
            then = start + strides[t] * block
            if at + block > CHUNK or then >= sizes[t]:
                values = carray(as_floats(addresses[t] + 4 * start), (at,)) if in_place else buffer[:at]
                if factor != 1:
                    for i in range(at):
                        values[i] *= np.float32(factor)
                ahead = _ahead(addresses[t], sizes[t], kinds[t], strides[t], then)
                _add(values, buffer, packed, rows[t], exponents, ahead)
                at = 0
        rows[t, SUMS:] = exponents


def _squares(addresses: Any, sizes: Any, kinds: Any, sums: Any) -> None:
    """The sum of the squares of each tensor, at the speed of the memory; not finite where an element is not."""
    buffer = np.empty(CHUNK, np.float32)
    for t in range(addresses.size):
        total, width = 0.0, 2 if kinds[t] == BFLOAT16 else 4
        for start in range(0, sizes[t], CHUNK):
            count, here = min(CHUNK, sizes[t] - start), addresses[t] + width * start
            for line in range(0, CHUNK * width, LINE):
                prefetch(here + CHUNK * width + line)
            if kinds[t] != FLOAT32:
                _read(addresses[t], kinds[t], start, buffer[:count])
            values = carray(as_floats(here), (count,)) if kinds[t] == FLOAT32 else buffer[:count]
            for i in range(count):
                value = np.float64(values[i])
                total += value * value
        sums[t] = total


def _sample(addresses: Any, sizes: Any, kinds: Any, strides: Any, firsts: Any, kept: Any) -> None:
    """Copy the blocks that `measure` would sample into `kept`, one tensor after the other."""
    at = 0
    for t in range(addresses.size):
        block = CHUNK if strides[t] == 1 else BLOCK
        for start in range(firsts[t] * block, sizes[t], strides[t] * block):
            count = min(block, sizes[t] - start)
            _read(addresses[t], kinds[t], start, kept[at : at + count])
            at += count


@numba.njit(inline="always")
def _lost(bits: Any, was: Any, size: Any, halves: Any, packed: Any, binades: Any, row: Any) -> None:
    """Count the changes that are not zero, and for each format those of them below half an ulp of `was`."""
    moved = np.int32(0)
    for i in range(size):
        magnitude = np.uint32(bits[i] & _ABS)
        moved += np.int32(magnitude != 0)
        packed[i] = np.uint8(np.uint32(magnitude >> _EXPONENT_SHIFT)) if magnitude else _SPECIAL
    _pack(was, size, binades)
    for i in range(size, (size + GROUP - 1) // GROUP * GROUP):
        packed[i] = _SPECIAL
    row[CHANGED] += moved
    for f in range(halves.shape[0]):
        down, least = np.uint8(halves[f, 1]), np.uint8(max(halves[f, 0], 0))
        groups = (size + GROUP - 1) // GROUP
        row[LOST + f] += count_below(packed.ctypes.data, groups, binades.ctypes.data, down, least)


def _compare(
    addresses: Any, sizes: Any, kinds: Any, strides: Any, firsts: Any, kept: Any, halves: Any, rows: Any
) -> None:
    """Statistics of what was added to each tensor since `sample` wrote `kept`, into rows like those of `measure`.

    halves[f] is, for format f, the least exponent of half an ulp, and the distance from the exponent of a value to that
    of half its ulp, both in biased exponents. Counted are elements that changed, and changes below half an ulp.
    """
    changes, packed, binades = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.uint8), np.empty(CHUNK, np.uint8)
    bits, was, exponents = changes.view(np.uint32), kept.view(np.uint32), np.empty(BINS, np.uint32)
    done = 0
    for t in range(addresses.size):
        exponents[:] = 0
        block, at = CHUNK if strides[t] == 1 else BLOCK, 0
        for start in range(firsts[t] * block, sizes[t], strides[t] * block):
            count = min(block, sizes[t] - start)
            _read(addresses[t], kinds[t], start, changes[at : at + count])
            at += count
            then = start + strides[t] * block
            if at + block > CHUNK or then >= sizes[t]:
                if kinds[t] != CHANGE:
                    before = kept[done : done + at]
                    for i in range(at):
                        changes[i] -= before[i]
                _lost(bits, was[done : done + at], at, halves, packed, binades, rows[t])
                ahead = _ahead(addresses[t], sizes[t], kinds[t], strides[t], then)
                _add(changes[:at], changes, packed, rows[t], exponents, ahead)
                done += at
                at = 0
        rows[t, SUMS:] = exponents


measure = compiled(_measure, fastmath=FASTMATH)
squares = compiled(_squares, fastmath=FASTMATH)
sample = compiled(_sample, fastmath=FASTMATH)
compare = compiled(_compare, fastmath=FASTMATH)
