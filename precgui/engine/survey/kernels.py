"""One pass over rows of weights for all formats: a tile stays in the first cache while each format rounds it.

Only sums come out, so memory traffic is that of reading. Elements round as `engine.quantize.plan` says, (x + C) - C,
without fast-math; sums are with it. `precgui.formats.weight_formats.round_weights` is the reference.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from precgui.engine.compiled_loops import compiled

W, F = np.uint32, np.float32
TILE, BLOCK = 128, 16
MOST_TILE = 512  # numbers; a tile of a row is a multiple of TILE
# What an element is, and how its scale is found.
ADDING, MASKING, INTEGER, BOOK = range(4)
NONE, TENSOR, ROW, ABSMAX, SIGNED, NVFP4, POWER, NVFP4_DIVIDED = range(8)
EVEN, AWAY, UP = range(3)
# Columns of the tables of formats: whole numbers, and numbers.
KIND, RULE, GROUP, LOWEST, MAGIC, DROP, ROUNDING, HALF_SCALE, SHIFT, TOP_EXPONENT, LIMIT, INTEGERS = range(12)
LARGEST, LEAST, DIVISOR, FLOATS = range(4)
NOISE, CROSS, WORST, ZEROED, CLIPPED, SUMS = range(6)
_ABS, _EXPONENT, _MANTISSA = W(0x7FFFFFFF), W(0x7F800000), W(0x7FFFFF)
BOOK_STEPS = 15
_MAGIC_INTEGER = F(12582912.0)


def _count_codes(words: Any, counts: Any) -> None:
    """How often each 16-bit code is in `words`; (4, 65536), so that equal neighbours do not wait for each other."""
    whole = len(words) // 4 * 4
    for i in range(0, whole, 4):
        counts[0, words[i]] += W(1)
        counts[1, words[i + 1]] += W(1)
        counts[2, words[i + 2]] += W(1)
        counts[3, words[i + 3]] += W(1)
    for i in range(whole, len(words)):
        counts[0, words[i]] += W(1)


count_codes = compiled(_count_codes)


def _row_peaks(rows: Any, peaks: Any) -> None:
    """The largest magnitude of each row."""
    bits = rows.view(np.uint32)
    for r in range(rows.shape[0]):
        largest = W(0)
        for c in range(rows.shape[1]):
            largest = max(largest, W(bits[r, c] & _ABS))
        peaks[r] = W(largest).view(F)


row_peaks = compiled(_row_peaks)


def _column_peaks(rows: Any, peaks: Any) -> None:
    """The largest magnitude of each column so far."""
    bits, largest = rows.view(np.uint32), peaks.view(np.uint32)
    for r in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            largest[c] = max(largest[c], W(bits[r, c] & _ABS))


column_peaks = compiled(_column_peaks)


def _row_peaks_of_words(words: Any, peaks: Any) -> None:
    """`_row_peaks` of BF16 numbers, given as their codes."""
    for r in range(words.shape[0]):
        largest = np.uint16(0)
        for c in range(words.shape[1]):
            largest = max(largest, np.uint16(words[r, c] & np.uint16(0x7FFF)))
        peaks[r] = W(W(largest) << W(16)).view(F)


row_peaks_of_words = compiled(_row_peaks_of_words)


def _column_peaks_of_words(words: Any, peaks: Any) -> None:
    """`_column_peaks` of BF16 numbers, given as their codes."""
    largest = peaks.view(np.uint32)
    for r in range(words.shape[0]):
        for c in range(words.shape[1]):
            largest[c] = max(largest[c], W(W(words[r, c] & np.uint16(0x7FFF)) << W(16)))


column_peaks_of_words = compiled(_column_peaks_of_words)


def _peaks(bits: Any, peaks: Any) -> None:
    """The largest magnitude of each 16 numbers of a tile, given as bits, shape (blocks, BLOCK)."""
    for g in range(len(bits)):
        largest = W(0)
        for i in range(BLOCK):
            largest = max(largest, W(bits[g, i] & _ABS))
        peaks[g] = W(largest).view(F)


_peaks_of = compiled(_peaks)


def _add(x: Any, e: Any, bits: Any, norm: Any, out: Any, f: Any) -> None:
    """Add a tile's errors (`bits`: their bits) in format `f`; `norm` brings numbers near 1, against overflow."""
    noise, cross, zeroed, worst = F(0), F(0), F(0), W(0)
    for i in range(len(x)):
        scaled = F(e[i] * norm)
        noise += F(scaled * scaled)
        cross += F(scaled * F(x[i] * norm))
        zeroed += F(1) if e[i] == x[i] else F(0)  # zeros of the tensor, too: taken off at the end
    for i in range(len(x)):
        worst = max(worst, W(bits[i] & _ABS))
    out[f, NOISE] += noise
    out[f, CROSS] += cross
    out[f, WORST] = max(out[f, WORST], W(worst).view(F))
    out[f, ZEROED] += zeroed


_add_tile = compiled(_add, fastmath=True)


def _signal(x: Any, norm: Any) -> Any:
    total = F(0)
    for i in range(len(x)):
        scaled = F(x[i] * norm)
        total += F(scaled * scaled)
    return total


_signal_of = compiled(_signal, fastmath=True)


@numba.njit(inline="always")
def _power_of(peak: Any, wholes: Any, f: Any) -> Any:
    """The power of two of an MX block; SHIFT and LIMIT say by which rule."""
    bits = F(peak).view(W)
    exponent = np.int64(W(bits + W(wholes[f, SHIFT])) >> W(23)) - 127 - wholes[f, TOP_EXPONENT]
    if wholes[f, LIMIT] and np.int64(bits & _MANTISSA) > wholes[f, LIMIT] - 1:
        exponent += 1
    exponent = min(max(exponent, np.int64(-126)), np.int64(127))
    return W(W(exponent + 127) << W(23)).view(F)


@numba.njit(inline="always")
def _e4m3_of(value: Any) -> Any:
    """A positive number in E4M3, saturated."""
    big = W(max(W(F(value).view(W) & _EXPONENT), W(121 << 23)) + W(20 << 23)).view(F)
    return min(F(F(value + big) - big), F(448))


@numba.njit(inline="always")
def _half_of(value: Any) -> Any:
    """A number in FP16."""
    magnitude = abs(value)
    big = W(max(W(F(magnitude).view(W) & _EXPONENT), W(113 << 23)) + W(13 << 23)).view(F)
    rounded = F(F(magnitude + big) - big)
    return rounded if value >= 0 else -rounded


def _signed_scale(x: Any, first: Any, blocks: Any, divisor: Any) -> Any:
    """The number of largest magnitude in some blocks, over the divisor."""
    largest, found = F(-1), F(0)
    for g in range(first, first + blocks):
        for i in range(BLOCK):
            if abs(x[g, i]) > largest:
                largest, found = abs(x[g, i]), x[g, i]
    return F(found / divisor)


_signed_scale_of = compiled(_signed_scale)


def _fill_one(by: Any, back: Any, scale: Any) -> None:
    """`_fill` for one scale of all numbers; apart, since within `_fill` it takes far longer."""
    divided = scale if scale > 0 else F(1)
    for i in range(len(by)):
        by[i] = divided
    for i in range(len(back)):
        back[i] = scale


_fill_one_scale = compiled(_fill_one)


def _fill(x: Any, peaks: Any, amax: Any, wholes: Any, reals: Any, f: Any, by: Any, back: Any) -> None:
    """With scales of blocks, per number, (blocks, BLOCK): its divisor, and the factor of its code.

    The divisor is a factor for scales in FP16.
    """
    rule, blocks, divisor = wholes[f, RULE], wholes[f, GROUP] // BLOCK, reals[f, DIVISOR]
    tensor = F(amax / F(448 * 6))
    for first in range(0, len(x), blocks):
        peak = F(0)
        for g in range(first, first + blocks):
            peak = max(peak, peaks[g])
        if rule == SIGNED:
            scale = _signed_scale_of(x, first, blocks, divisor)
        elif rule == NVFP4:
            scale = F(_e4m3_of(F(F(peak / F(6)) / tensor)) * tensor) if tensor > 0 else F(0)
        elif rule == NVFP4_DIVIDED:
            reciprocal = F(F(F(1) / amax) * F(448 * 6)) if amax >= F(2.0**-114) else F(1)
            local = _e4m3_of(F(reciprocal * F(peak / F(6))))
            scale = F((local if local > 0 else F(0.125)) / reciprocal)
        elif rule == POWER:
            scale = _power_of(peak, wholes, f)
        else:
            scale = F(peak / divisor)
        divided, multiplied = scale if scale != 0 else F(1), scale
        if wholes[f, HALF_SCALE]:
            divided, multiplied = F(F(1) / scale) if scale != 0 else F(0), _half_of(scale)
        for g in range(first, first + blocks):
            row = by[g]
            for i in range(BLOCK):
                row[i] = divided
        for g in range(first, first + blocks):
            row = back[g]
            for i in range(BLOCK):
                row[i] = multiplied


_fill_scales = compiled(_fill)


@numba.njit(inline="always")
def _signed(value: Any, like: Any) -> Any:
    """The value times the sign of `like`."""
    return W(F(value).view(W) ^ W(F(like).view(W) & W(0x80000000))).view(F)


def _round_adding(x: Any, e: Any, by: Any, back: Any, wholes: Any, reals: Any, f: Any) -> Any:
    lowest, magic, top, most = W(wholes[f, LOWEST]), W(wholes[f, MAGIC]), reals[f, LARGEST], W(0)
    for i in range(len(x)):
        magnitude = F(abs(x[i]) / by[i])
        big = W(max(W(F(magnitude).view(W) & _EXPONENT), lowest) + magic).view(F)
        rounded = F(F(magnitude + big) - big)
        most = max(most, F(rounded).view(W))
        e[i] = _signed(F(abs(x[i]) - F(min(rounded, top) * back[i])), x[i])
    return most


def _round_masking(x: Any, e: Any, by: Any, back: Any, wholes: Any, reals: Any, f: Any) -> Any:
    drop, top, most = W(wholes[f, DROP]), reals[f, LARGEST], W(0)
    half, kept = W((1 << wholes[f, DROP] - 1) - 1), W(W(0xFFFFFFFF) << drop)
    for i in range(len(x)):
        bits = F(abs(x[i]) / by[i]).view(W)
        rounded = W(W(bits + half + (W(bits >> drop) & W(1))) & kept)
        most = max(most, rounded)
        e[i] = _signed(F(abs(x[i]) - F(min(W(rounded).view(F), top) * back[i])), x[i])
    return most


def _round_integer(x: Any, e: Any, by: Any, back: Any, wholes: Any, reals: Any, f: Any) -> Any:
    least, high, most, rounding = reals[f, LEAST], reals[f, LARGEST], W(0), wholes[f, ROUNDING]
    if rounding == EVEN:
        for i in range(len(x)):
            code = F(F(F(x[i] / by[i]) + _MAGIC_INTEGER) - _MAGIC_INTEGER)
            most = max(most, W(F(code).view(W) & _ABS))
            e[i] = x[i] - F(min(max(code, least), high) * back[i])
    elif rounding == AWAY:
        for i in range(len(x)):
            scaled = F(x[i] * by[i])
            code = _signed(np.floor(F(abs(scaled) + F(0.5))), scaled)
            most = max(most, W(F(code).view(W) & _ABS))
            e[i] = x[i] - F(min(max(code, least), high) * back[i])
    else:
        for i in range(len(x)):
            code = F(np.trunc(F(F(x[i] * by[i]) + F(F(0.5) - least))) + least)
            most = max(most, W(F(code).view(W) & _ABS))
            e[i] = x[i] - F(min(max(code, least), high) * back[i])
    return most


def _round_book(x: Any, e: Any, by: Any, back: Any, values: Any, thresholds: Any) -> None:
    scaled = back * F(0)
    for i in range(len(x)):
        scaled[i] = F(x[i] / by[i])
        e[i] = values[0]
    for k in range(BOOK_STEPS):
        threshold, value = thresholds[k], values[k + 1]
        for i in range(len(x)):
            e[i] = value if scaled[i] >= threshold else e[i]
    for i in range(len(x)):
        e[i] = x[i] - F(e[i] * back[i])


_adding, _masking, _integer = compiled(_round_adding), compiled(_round_masking), compiled(_round_integer)
_book = compiled(_round_book)


def _count_clipped(x: Any, by: Any, wholes: Any, reals: Any, f: Any) -> Any:
    """How many numbers of a tile are cut off; asked only where the largest one is beyond."""
    count, most, least = 0, reals[f, LARGEST], reals[f, LEAST]
    for i in range(len(x)):
        scaled = F(x[i] * by[i]) if wholes[f, HALF_SCALE] else F(x[i] / by[i])
        magnitude = F(abs(scaled))
        if wholes[f, KIND] == ADDING:
            big = W(max(W(F(magnitude).view(W) & _EXPONENT), W(wholes[f, LOWEST])) + W(wholes[f, MAGIC])).view(F)
            count += F(F(magnitude + big) - big) > most
        elif wholes[f, KIND] == MASKING:
            count += magnitude > most
        elif wholes[f, ROUNDING] == EVEN:
            code = np.rint(scaled)
            count += code > most or code < least
        elif wholes[f, ROUNDING] == AWAY:
            count += np.floor(magnitude + F(0.5)) > (most if scaled > 0 else -least)
        else:
            code = np.trunc(scaled + (F(0.5) - least)) + least
            count += code > most or code < least
    return count


_clipped_of = compiled(_count_clipped)


def _tile_errors(
    tile: Any, row: Any, amax: Any, norm: Any, wholes: Any, reals: Any, values: Any, thresholds: Any, out: Any,
) -> None:  # fmt: skip
    """Add the errors of one tile in every format; tile: its numbers, errors, scales, and views of them."""
    x, e, by, back, peaks, x2, by2, back2, bits2, bits = tile
    _peaks_of(bits2, peaks)
    for f in range(len(wholes)):
        rule = wholes[f, RULE]
        if rule <= ROW:
            scale = F(1) if rule == NONE else F((amax if rule == TENSOR else row) / reals[f, DIVISOR])
            _fill_one_scale(by, back, scale)
        else:
            _fill_scales(x2, peaks, amax, wholes, reals, f, by2, back2)
        kind, most = wholes[f, KIND], W(0)
        if kind == ADDING:
            most = _adding(x, e, by, back, wholes, reals, f)
        elif kind == MASKING:
            most = _masking(x, e, by, back, wholes, reals, f)
        elif kind == INTEGER:
            most = _integer(x, e, by, back, wholes, reals, f)
        else:
            _book(x, e, by, back, values, thresholds)
        if W(most).view(F) > reals[f, LARGEST]:
            out[f, CLIPPED] += _clipped_of(x, by, wholes, reals, f)
        _add_tile(x, e, bits, norm, out, f)


_errors_of_tile = compiled(_tile_errors)


def _tile_length(line: Any) -> Any:
    """The length of the tiles of a row: as few as MOST_TILE allows, of one length."""
    tiles = (line + MOST_TILE - 1) // MOST_TILE
    return (line + tiles * TILE - 1) // (tiles * TILE) * TILE


_tile_of = compiled(_tile_length)


def padding_of(line: int) -> int:
    """How many zeros a row is filled up with."""
    return -line % int(_tile_of(line))


def _scan_rows(
    rows: Any, words: Any, row_peaks: Any, amax: Any, norm: Any, wholes: Any, reals: Any, values: Any, thresholds: Any,
    out: Any,
) -> None:  # fmt: skip
    """Add the errors of rows, or of one part of a row that begins at a multiple of TILE.

    They are FP32 numbers, or `words`, codes of BF16, where there are no `rows`. row_peaks: the largest magnitude of
    each row; amax: of the tensor. out: [formats + 1, SUMS] float64; the last row gets the sum of squares.
    """
    from_words = len(rows) == 0
    count_rows, line = words.shape if from_words else rows.shape
    size = _tile_of(line)
    x, e, by = np.zeros(size, np.float32), np.zeros(size, np.float32), np.zeros(size, np.float32)
    back, blocks, bits = np.zeros(size, np.float32), (size // BLOCK, BLOCK), x.view(np.uint32)
    views = (x.reshape(blocks), by.reshape(blocks), back.reshape(blocks), bits.reshape(blocks), e.view(np.uint32))
    tile = (x, e, by, back, np.zeros(len(x) // BLOCK, np.float32), *views)
    for r in range(count_rows):
        for low in range(0, line, size):
            count = min(size, line - low)
            if from_words:
                codes = words[r, low : low + count]
                for i in range(len(codes)):
                    bits[i] = W(W(codes[i]) << W(16))
            else:
                part = rows[r, low : low + count]
                for i in range(len(part)):
                    x[i] = part[i]
            for i in range(count, size):
                x[i] = F(0)
            out[len(wholes), NOISE] += _signal_of(x, norm)
            _errors_of_tile(tile, row_peaks[r], amax, norm, wholes, reals, values, thresholds, out)


scan_rows = compiled(_scan_rows)
