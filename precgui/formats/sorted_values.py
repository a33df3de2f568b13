"""A tensor sorted once, so that what lies in any interval and what any format loses is counted in milliseconds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precgui.formats.arrays import Floats, quantize_array
from precgui.formats.model import CodeBook, FloatFormat, Format, IntFormat
from precgui.formats.real import finite, to_float
from precgui.formats.rounding import beyond, round_ordinal

SATURATED, NORMAL, SUBNORMAL, ZERO = 3, 2, 1, 0


@dataclass(frozen=True)
class Shares:
    """Outcome of casting a set of numbers to a format, as shares of all of them (0 to 1)."""

    zero: float
    underflow: float
    subnormal: float
    normal: float
    saturated: float
    nan: float


class SortedValues:
    """Numbers in ascending order, infinities at the ends; NaN are only counted."""

    def __init__(self, values: ArrayLike) -> None:
        array = np.asarray(values, dtype=np.float64).ravel()
        self.size = array.size
        self._sorted = np.sort(array)  # NaN come last
        self.nan = int(np.count_nonzero(np.isnan(self._sorted[-1:]))) and self.size - self._first_nan()
        self._sorted = self._sorted[: self.size - self.nan]

    def _first_nan(self) -> int:
        return int(np.searchsorted(self._sorted, np.nan, side="left"))

    def counts(self, edges: Floats) -> NDArray[np.int_]:
        """How many values lie in each [edges[i], edges[i + 1])."""
        return np.diff(np.searchsorted(self._sorted, edges, side="left")).astype(np.int_)

    def magnitudes(self, edges: Floats) -> NDArray[np.int_]:
        """Counts of absolute values between `edges`, all above 0."""
        above = np.searchsorted(self._sorted, edges, side="left")
        below = np.searchsorted(self._sorted, -edges, side="right")
        result: NDArray[np.int_] = (np.diff(above) - np.diff(below)).astype(np.int_)
        return result

    def binades(self) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
        """Exponents k and how many finite non-zero numbers have 2^k <= |x| < 2^(k+1)."""
        exponents = np.arange(-1074, 1025)
        with np.errstate(over="ignore"):
            counts = self.magnitudes(np.ldexp(1.0, exponents))
        used = np.flatnonzero(counts)
        if not used.size:
            return np.zeros(0, dtype=np.int_), np.zeros(0, dtype=np.int_)
        whole = slice(used[0], used[-1] + 1)
        return exponents[:-1][whole], counts[whole]

    def shares(self, fmt: Format) -> Shares:
        """How much is zero already, becomes zero, subnormal or normal, or lies past the largest value.

        Rounding keeps the order, so the values of one fate stand side by side and their ends are found by bisection.
        """
        if not self.size:
            return Shares(0, 0, 0, 0, 0, 0)
        bounds = range(-SATURATED + 1, SATURATED + 1)
        cuts = [0, *(self._first(fmt, fate) for fate in bounds), len(self._sorted)]
        count = {fate: high - low for fate, (low, high) in zip((-SATURATED, *bounds), pairwise(cuts), strict=True)}
        zero = int(self.counts(np.array([0.0, 5e-324]))[0])
        parts = (zero, count[ZERO] - zero, *(count[-fate] + count[fate] for fate in (SUBNORMAL, NORMAL, SATURATED)))
        return Shares(*(part / self.size for part in (*parts, self.nan)))

    def _first(self, fmt: Format, fate: int) -> int:
        """The place of the first value with at least this fate."""
        reached: Callable[[int], bool] = partial(self._reaches, fmt, fate)
        return bisect_left(range(len(self._sorted)), True, key=reached)

    def _reaches(self, fmt: Format, fate: int, place: int) -> bool:
        return fate_of(float(self._sorted[place]), fmt) >= fate


def fate_of(value: float, fmt: Format) -> int:
    """SATURATED, NORMAL, SUBNORMAL or ZERO with the sign of the value; what has no place in the format is saturated."""
    sign = -1 if value < 0 else 1
    if np.isinf(value) or _overflows(value, fmt):
        return sign * SATURATED
    rounded = float(quantize_array(value, fmt))
    if rounded == 0:
        return ZERO
    if np.isnan(rounded):
        return sign * SATURATED
    if isinstance(fmt, FloatFormat) and fmt.min_normal is not None and abs(rounded) < _float(fmt.min_normal):
        return sign * SUBNORMAL
    return sign * NORMAL


def _overflows(value: float, fmt: Format) -> bool:
    if isinstance(fmt, IntFormat):
        return beyond(fmt, round_ordinal(Fraction(value), fmt, "nearest_even"))
    if isinstance(fmt, CodeBook):
        return value > _float(fmt.max_finite) or value < _float(fmt.value(fmt.min_ordinal))
    edge = _float(fmt.overflow_midpoint)
    return abs(value) >= edge if fmt.tie_overflows else abs(value) > edge


def _float(value: Fraction) -> float:
    return to_float(finite(value))
