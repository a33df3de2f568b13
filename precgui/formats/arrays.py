"""Whole NumPy arrays rounded to a format: the same answers as the exact form, a million values at a time."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precgui.formats.codec import decode, encode
from precgui.formats.model import CodeBook, FloatFormat, Format, IntFormat
from precgui.formats.real import finite, nan, to_float
from precgui.formats.rounding import DRAW_BITS, MIX_A, MIX_B, STRIDE, CastPolicy, keeps_finite, stream_keys

Floats = NDArray[np.float64]
Draws = NDArray[np.uint32]
_DEFAULT = CastPolicy()
_NO_DRAWS: Draws = np.zeros((), np.uint32)


def quantize_array(
    values: ArrayLike, fmt: Format, cast_policy: CastPolicy = _DEFAULT, seed: int = 0, first: int = 0
) -> Floats:
    """Each double rounded to `fmt`, as doubles of the same shape.

    Stochastic rounding takes the draw of the element's place in the flattened array, counted from `first`. In a format
    with more range than double, what rounds to a value beyond double becomes infinity.
    """
    with np.errstate(invalid="ignore"):  # a signalling NaN on its way to double
        array = np.asarray(values, dtype=np.float64)
    drawn = draws(seed, array.size, first).reshape(array.shape) if cast_policy.rounding == "stochastic" else _NO_DRAWS
    if isinstance(fmt, CodeBook):
        return _to_codebook(array, fmt, cast_policy, drawn)
    if isinstance(fmt, IntFormat):
        return _to_integer(array, fmt, cast_policy, drawn)
    return _to_float(array, fmt, cast_policy, drawn)


def draws(seed: int, count: int, first: int = 0) -> Draws:
    """The random integers of elements first ... first + count - 1, as `rounding.draw` gives them one by one."""
    out = np.empty(count, dtype=np.uint32)
    for block in range(first >> 32, -(-(first + count) >> 32)):
        start, stop = max(first, block << 32), min(first + count, (block + 1) << 32)
        key, second = (np.uint32(number) for number in stream_keys(seed, block))
        word = np.arange(start, stop, dtype=np.uint64).astype(np.uint32) * np.uint32(STRIDE) + key
        word = (word ^ (word >> np.uint32(16))) * np.uint32(MIX_A) + second
        word = (word ^ (word >> np.uint32(15))) * np.uint32(MIX_B)
        out[start - first : stop - first] = (word ^ (word >> np.uint32(15))) >> np.uint32(32 - DRAW_BITS)
    return out


def _goes_away(scaled: Floats, negative: NDArray[np.bool_], cast_policy: CastPolicy, drawn: Draws) -> Floats:
    """Magnitudes in units of their last place, rounded to integers."""
    if cast_policy.rounding == "nearest_even":
        nearest: Floats = np.rint(scaled)
        return nearest
    whole: Floats = np.floor(scaled)
    floats: Floats = scaled - whole
    match cast_policy.rounding:
        case "nearest_away":
            away = floats >= 0.5
        case "toward_zero":
            return whole
        case "up":
            away = (floats > 0) & ~negative
        case "down":
            away = (floats > 0) & negative
        case "to_odd":
            away = (floats > 0) & (whole % 2 == 0)
        case _:
            away = floats >= (drawn + 1.0) / (1 << DRAW_BITS)
    result: Floats = whole + away
    return result


def _to_float(array: Floats, fmt: FloatFormat, cast_policy: CastPolicy, drawn: Draws) -> Floats:
    negative = np.signbit(array)
    magnitude = np.abs(array)
    is_finite = np.isfinite(array)
    safe = np.where(is_finite, magnitude, 0.0)
    if not fmt.has_zero:
        safe = np.maximum(safe, float(fmt.min_positive))
    with np.errstate(over="ignore", under="ignore"):
        shrink, grow = _quanta(safe, fmt)
        rounded = grow(_goes_away(shrink(safe), negative, cast_policy, drawn))
    result = _past_the_end(rounded, array, fmt, cast_policy, negative)
    if not fmt.has_negative_zero:
        result = np.where(result == 0, 0.0, result)
    return _nan_and_sign(result, array, fmt, cast_policy)


def _quanta(magnitude: Floats, fmt: FloatFormat) -> tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]:
    """Division by the unit of the last place of each magnitude, and multiplication with it, both exact."""
    if fmt.emin - fmt.mantissa_bits < -1020 or fmt.emax > 1000:
        quantum = np.maximum(np.frexp(magnitude)[1] - 1, fmt.emin) - fmt.mantissa_bits
        return lambda values: np.ldexp(values, -quantum), lambda values: np.ldexp(values, quantum)
    # Where powers of two are normal doubles, their bits make them without frexp and ldexp, which are slow.
    field = np.clip(magnitude.view(np.int64) >> 52, fmt.emin + 1023, fmt.emax + 1024) - fmt.mantissa_bits
    unit, inverse = (field << 52).view(np.float64), ((2046 - field) << 52).view(np.float64)
    return lambda values: values * inverse, lambda values: values * unit


def _past_the_end(
    rounded: Floats, array: Floats, fmt: FloatFormat, cast_policy: CastPolicy, negative: NDArray[np.bool_]
) -> Floats:
    largest = _largest_double(fmt)
    is_inf = np.isinf(array)
    limit = np.array([_limit(fmt, cast_policy, negative=False), _limit(fmt, cast_policy, negative=True)])
    from_inf = CastPolicy("nearest_even", cast_policy.overflow, cast_policy.nan)
    limit_inf = np.array([_limit(fmt, from_inf, negative=False), _limit(fmt, from_inf, negative=True)])
    side = negative.astype(np.intp)
    result = np.where(rounded > largest, limit[side], rounded)
    return np.copysign(np.where(is_inf, limit_inf[side], result), array)


@lru_cache(maxsize=256)
def _largest_double(fmt: FloatFormat) -> float:
    """The largest double that is not past the format, which may end between two of them; else infinity."""
    nearest = float(to_float(finite(fmt.max_finite)))
    return nearest if np.isinf(nearest) or Fraction(nearest) <= fmt.max_finite else float(np.nextafter(nearest, 0.0))


def _limit(fmt: FloatFormat, cast_policy: CastPolicy, *, negative: bool) -> float:
    largest = float(to_float(finite(fmt.max_finite)))
    if cast_policy.overflow == "saturate":
        return largest
    if cast_policy.overflow == "nan":
        return np.nan if fmt.has_nan else largest
    if keeps_finite(cast_policy.rounding, negative=negative):
        return largest
    return np.inf if fmt.has_inf else np.nan if fmt.has_nan else largest


def _nan_and_sign(result: Floats, array: Floats, fmt: FloatFormat, cast_policy: CastPolicy) -> Floats:
    if not fmt.signed:
        outside = (result < 0) if fmt.has_zero else (array <= 0)
        below = 0.0 if fmt.has_zero else float(fmt.min_positive)
        result = np.where(outside, below if cast_policy.overflow == "saturate" else np.nan, result)
    stand_in = np.nan if fmt.has_nan else _nan_stand_in(array, fmt, cast_policy)
    final: Floats = np.where(np.isnan(array), stand_in, result)
    return final


def _nan_stand_in(array: Floats, fmt: FloatFormat, cast_policy: CastPolicy) -> float | Floats:
    if cast_policy.nan == "max":
        return float(fmt.max_finite)
    if cast_policy.nan == "zero" or not fmt.has_negative_zero:
        return 0.0
    return np.where(np.signbit(array), 0.0, -0.0)


def _to_integer(array: Floats, fmt: IntFormat, cast_policy: CastPolicy, drawn: Draws) -> Floats:
    step = float(fmt.step)
    scaled = np.nan_to_num(array, nan=0.0, posinf=np.inf, neginf=-np.inf) / step
    clipped = np.clip(scaled, fmt.min_ordinal - 1.0, fmt.max_ordinal + 1.0)
    magnitude = _goes_away(np.abs(clipped), np.signbit(clipped), cast_policy, drawn)
    result: Floats = np.clip(np.copysign(magnitude, clipped), fmt.min_ordinal, fmt.max_ordinal) * step + 0.0
    return result


def _to_codebook(array: Floats, fmt: CodeBook, cast_policy: CastPolicy, drawn: Draws) -> Floats:
    book = np.array([float(value) for value in fmt.values])
    clipped = np.clip(np.nan_to_num(array, nan=0.0), book[0], book[-1])
    low = np.clip(np.searchsorted(book, clipped, side="right") - 1, 0, len(book) - 2)
    below, above = book[low], book[low + 1]
    inside, at_top = clipped > below, clipped >= above
    negative, middle = clipped <= 0, below + above
    odd = (low + (len(book) == 2)) % 2 == 1
    match cast_policy.rounding:
        case "nearest_even":
            up = (2 * clipped > middle) | ((2 * clipped == middle) & odd)
        case "nearest_away":
            up = np.where(clipped < 0, 2 * clipped > middle, 2 * clipped >= middle)
        case "toward_zero":
            up = inside & negative
        case "up":
            up = inside
        case "down":
            up = at_top
        case "to_odd":
            up = inside & ~odd
        case _:
            share = (clipped - below) / (above - below)
            threshold = (drawn + 1.0) / (1 << DRAW_BITS)
            up = np.where(negative, 1 - share < threshold, share >= threshold)
    nearest_to_zero = float(decode(encode(nan(), fmt), fmt).real.value)
    result: Floats = np.where(np.isnan(array), nearest_to_zero, book[low + (up | at_top)])
    return result


def values_of(fmt: Format) -> Floats:
    """Every finite value in ascending order, of shape (values,). Raises ValueError for a format of over 16 bits."""
    if fmt.bits > 16:
        raise ValueError(f"{fmt.name} has too many values to list; {fmt.bits} bits, the most is 16")
    return np.array([float(fmt.value(n)) for n in range(fmt.min_ordinal, fmt.max_ordinal + 1)])


def decode_table(fmt: Format) -> Floats:
    """The value of each code, NaN and infinities included, of shape (codes,).

    Raises ValueError for a format of over 16 bits.
    """
    if fmt.bits > 16:
        raise ValueError(f"{fmt.name} has too many codes to list; {fmt.bits} bits, the most is 16")
    count = fmt.finite_values if isinstance(fmt, CodeBook) else 1 << fmt.bits
    reals = (decode(code, fmt).real for code in range(count))
    return np.array([np.nan if r.kind == "nan" else (-np.inf if r.negative else np.inf) if r.kind == "inf"
                     else (-0.0 if r.is_zero and r.negative else float(r.value)) for r in reals])  # fmt: skip
