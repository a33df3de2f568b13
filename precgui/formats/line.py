"""The number line: which values of a format lie in a stretch of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from precgui.formats.arrays import Floats
from precgui.formats.model import FloatFormat, Format


@dataclass(frozen=True)
class ValueRange:
    """The values of a format between two bounds: all of them, or only their number and the ends of binades."""

    count: int
    values: Floats
    complete: bool
    largest: float
    smallest: float


def stretch(fmt: Format, low: float, high: float, most: int = 400) -> ValueRange:
    """The finite values of a format in [low, high]; of more than `most`, their number and the powers of two."""
    first = _ordinal_at_or_above(fmt, Fraction(low))
    last = min(fmt.floor_ordinal(Fraction(high)) if _reaches(fmt, high) else first - 1, fmt.max_ordinal)
    count = max(last - first + 1, 0)
    largest, smallest = _float(fmt.max_finite), _float(_least(fmt))
    if count <= most:
        values = np.array([_float(fmt.value(n)) for n in range(first, last + 1)])
        return ValueRange(count, values, True, largest, smallest)
    return ValueRange(count, _powers(low, high, smallest, largest), False, largest, smallest)


def _reaches(fmt: Format, high: float) -> bool:
    return Fraction(high) >= fmt.value(fmt.min_ordinal)


def _ordinal_at_or_above(fmt: Format, low: Fraction) -> int:
    bottom = fmt.min_ordinal
    if low <= fmt.value(bottom):
        return bottom
    place = fmt.floor_ordinal(low)
    return place if fmt.value(place) >= low else place + 1


@cache
def _least(fmt: Format) -> Fraction:
    """The smallest positive value."""
    if isinstance(fmt, FloatFormat):
        return fmt.min_positive
    return min(abs(fmt.value(n)) for n in range(fmt.min_ordinal, fmt.max_ordinal + 1) if fmt.value(n))


def _powers(low: float, high: float, smallest: float, largest: float) -> Floats:
    """Powers of two of both signs between the bounds, as far as the format reaches."""
    results: list[float] = []
    for sign, near, far in ((1.0, low, high), (-1.0, -high, -low)):
        least, most = max(near, smallest), min(far, largest)
        if most > 0 and least <= most:
            exponents = range(math.ceil(math.log2(least)), math.floor(math.log2(most)) + 1)
            results += [sign * 2.0**e for e in exponents]
    return np.array(sorted(results))


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def midpoints(values: Floats) -> Floats:
    """Where nearest rounding changes from one value to the next."""
    return (values[1:] + values[:-1]) / 2
