"""The number line: which values of a format lie in a stretch of it, and what a set of numbers loses there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precgui.formats.arrays import Floats, quantize_array
from precgui.formats.model import FloatFormat, Format


@dataclass(frozen=True)
class Stretch:
    """The values of a format between two bounds: all of them, or only their number and the ends of binades."""

    count: int
    values: Floats
    complete: bool
    largest: float
    smallest: float


def stretch(fmt: Format, low: float, high: float, most: int = 400) -> Stretch:
    """The finite values of a format in [low, high]; of more than `most`, their number and the powers of two."""
    first = _ordinal_at_or_above(fmt, Fraction(low))
    last = min(fmt.floor_ordinal(Fraction(high)) if _reaches(fmt, high) else first - 1, fmt.max_ordinal)
    count = max(last - first + 1, 0)
    largest, smallest = _float(fmt.max_finite), _float(_least(fmt))
    if count <= most:
        values = np.array([_float(fmt.value(n)) for n in range(first, last + 1)])
        return Stretch(count, values, True, largest, smallest)
    return Stretch(count, _powers(low, high, smallest, largest), False, largest, smallest)


def _reaches(fmt: Format, high: float) -> bool:
    return Fraction(high) >= fmt.value(fmt.min_ordinal)


def _ordinal_at_or_above(fmt: Format, low: Fraction) -> int:
    bottom = fmt.min_ordinal
    if low <= fmt.value(bottom):
        return bottom
    place = fmt.floor_ordinal(low)
    return place if fmt.value(place) >= low else place + 1


def _least(fmt: Format) -> Fraction:
    """The smallest positive value."""
    if isinstance(fmt, FloatFormat):
        return fmt.min_positive
    return min(abs(fmt.value(n)) for n in range(fmt.min_ordinal, fmt.max_ordinal + 1) if fmt.value(n))


def _powers(low: float, high: float, smallest: float, largest: float) -> Floats:
    """Powers of two of both signs between the bounds, as far as the format reaches."""
    found: list[float] = []
    for sign, near, far in ((1.0, low, high), (-1.0, -high, -low)):
        least, most = max(near, smallest), min(far, largest)
        if most > 0 and least <= most:
            exponents = range(math.ceil(math.log2(least)), math.floor(math.log2(most)) + 1)
            found += [sign * 2.0**e for e in exponents]
    return np.array(sorted(found))


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def midpoints(values: Floats) -> Floats:
    """Where nearest rounding changes from one value to the next."""
    return (values[1:] + values[:-1]) / 2


@dataclass(frozen=True)
class Shares:
    """What becomes of a set of numbers in a format, as shares of all of them (0 to 1)."""

    zero: float
    underflow: float
    subnormal: float
    normal: float
    saturated: float
    nan: float


def shares(values: ArrayLike, fmt: Format) -> Shares:
    """How much is zero already, becomes zero, subnormal or normal, or lies past the largest value."""
    array = np.asarray(values, dtype=np.float64).ravel()
    if not array.size:
        return Shares(0, 0, 0, 0, 0, 0)
    rounded = quantize_array(array, fmt)
    saturated = np.isinf(array) | _overflows(array, fmt)
    zero = array == 0
    gone = (rounded == 0) & ~zero & ~np.isnan(array) & ~saturated
    small = np.abs(rounded) < _float(_normal_from(fmt))
    subnormal = small & (rounded != 0) & ~saturated
    nan = np.isnan(array)
    parts = [float(np.mean(part)) for part in (zero, gone, subnormal, saturated, nan)]
    return Shares(parts[0], parts[1], parts[2], max(0.0, 1 - sum(parts)), parts[3], parts[4])


def _overflows(array: Floats, fmt: Format) -> NDArray[np.bool_]:
    magnitude = np.abs(array)
    if not isinstance(fmt, FloatFormat):
        return (array > _float(fmt.max_finite)) | (array < _float(fmt.value(fmt.min_ordinal)))
    edge = _float(fmt.overflow_midpoint)
    return magnitude >= edge if fmt.tie_overflows else magnitude > edge


def _normal_from(fmt: Format) -> Fraction:
    if isinstance(fmt, FloatFormat) and fmt.min_normal is not None:
        return fmt.min_normal
    return Fraction(0)


def binade_histogram(values: ArrayLike) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    """Exponents k and how many finite non-zero numbers have 2^k <= |x| < 2^(k+1)."""
    array = np.asarray(values, dtype=np.float64).ravel()
    known = array[np.isfinite(array) & (array != 0)]
    if not known.size:
        return np.zeros(0, dtype=np.int_), np.zeros(0, dtype=np.int_)
    exponents = np.frexp(known)[1].astype(np.int_) - 1
    low = int(exponents.min())
    counts = np.bincount(exponents - low)
    return np.arange(low, low + counts.size), counts.astype(np.int_)
