"""Reductions that leave NaN out and are NaN, without a warning, where nothing else is left; divisors that may be 0."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def nonzero(divisor: Values) -> Values:
    """The divisor, NaN where it is 0: a quotient that does not exist is unknown, not infinite."""
    return np.where(divisor == 0, np.nan, divisor)


def largest(values: Values, axis: int) -> Values:
    result: Values = np.fmax.reduce(values, axis, initial=-np.inf)
    return np.where(result == -np.inf, np.nan, result)


def least(values: Values, axis: int) -> Values:
    return -largest(-values, axis)


def middle(values: Values, axis: int) -> Values:
    """The median; of an even number of values the lower one of the two in the middle."""
    ordered = np.sort(np.moveaxis(values, axis, 0), 0)  # NaN come last
    if not len(ordered):
        return np.full(ordered.shape[1:], np.nan)
    known = (~np.isnan(ordered)).sum(0)
    place = np.maximum(known - 1, 0) // 2
    result: Values = np.take_along_axis(ordered, place[None], 0)[0]
    return result
