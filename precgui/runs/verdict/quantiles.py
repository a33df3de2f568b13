"""Probabilities and quantiles of the beta, Student and binomial distributions, exact to about 1e-12.

The package needs these three only, so that SciPy does not become a dependency; the tests compare them with SciPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

_TERMS = 10_000
_TINY = 1e-300
_EPSILON = 1e-16


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22).

    Raises ValueError unless 0 <= x <= 1 and a, b > 0.
    """
    if not 0 <= x <= 1 or a <= 0 or b <= 0:
        raise ValueError(f"I_x(a, b) needs 0 <= x <= 1 and positive a and b, not {x}, {a}, {b}")
    if x in (0, 1):
        return float(x)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on one side only
        return 1 - beta_cdf(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _beta_fraction(x, a, b) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction by the modified method of Lentz (Numerical Recipes, 3rd edition, section 5.2)."""
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < _EPSILON * 4:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def beta_quantile(share: float, a: float, b: float) -> float:
    """The x at which I_x(a, b) is `share`."""
    return _bisect(lambda x: beta_cdf(x, a, b) < share, 0.0, 1.0)


def student_sf(t: float, degrees: float) -> float:
    """The probability that a Student t variable with so many degrees of freedom is above `t`."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    tail = 0.5 * beta_cdf(degrees / (degrees + t * t), degrees / 2, 0.5)
    return tail if t >= 0 else 1 - tail


@lru_cache(maxsize=4096)  # of few arguments, asked for again and again
def student_quantile(share: float, degrees: float) -> float:
    """The t below which a Student t variable lies with probability `share`. Raises ValueError unless 0 < share < 1."""
    if not 0 < share < 1:
        raise ValueError(f"a quantile of {share} is not between 0 and 1")
    if share < 0.5:
        return -student_quantile(1 - share, degrees)
    highest = 1.0
    while student_sf(highest, degrees) > 1 - share:
        highest *= 2
    return _bisect(lambda t: student_sf(t, degrees) > 1 - share, 0.0, highest)


def share_interval(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share (Clopper and Pearson 1934).

    With no success or no failure at all, the one bound that is not 0 or 1 is one-sided: 0 of 5 is below 0.451.
    Raises ValueError where there are no trials, or more successes than trials.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} of {trials} is not a share")
    if successes == 0:
        return 0.0, 1 - (1 - level) ** (1 / trials)
    if successes == trials:
        return (1 - level) ** (1 / trials), 1.0
    tail = (1 - level) / 2
    return (
        beta_quantile(tail, successes, trials - successes + 1),
        beta_quantile(1 - tail, successes + 1, trials - successes),
    )


def _bisect(is_below: Callable[[float], bool], low: float, high: float) -> float:
    """The place between `low` and `high` at which `is_below` turns from true to false, to the last bit or so."""
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2
