"""Differences paired by seed: mean, standard error, intervals, p values, and how many seeds would decide.

Rates of false verdicts and of true ones are measured by `benchmarks/verdicts.py`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from precgui.runs.verdict.quantiles import student_quantile, student_sf

POWER = 0.8  # the chance with which `seeds_for` and `detectable` want a true difference to be told
MOST_SEEDS = 1000


@dataclass(frozen=True)
class PairedDifference:
    """The mean of n differences, one for each seed, with its standard error; `n` is at least 2.

    `standard_error` is sd / sqrt(n), and never below that of two values rounded to the metric's grain,
    grain / sqrt(6 n): differences that happen to agree do not make a mean exact.
    """

    n: int
    mean: float
    sd: float
    standard_error: float

    @property
    def degrees(self) -> int:
        return self.n - 1

    def interval(self, level: float) -> tuple[float, float]:
        """The t interval of the mean; both ends are the mean when all differences are equal and have no grain."""
        half = student_quantile(0.5 + level / 2, self.degrees) * self.standard_error
        return self.mean - half, self.mean + half

    def p_different(self) -> float:
        """The two-sided p value of "the true mean is 0" (paired t test)."""
        return 2 * student_sf(abs(self._t(0.0)), self.degrees)

    def p_above(self, bound: float) -> float:
        """The one-sided p value of "the true mean is at most `bound`": small when it is surely above."""
        return student_sf(self._t(bound), self.degrees)

    def p_below(self, bound: float) -> float:
        """The one-sided p value of "the true mean is at least `bound`": small when it is surely below."""
        return student_sf(-self._t(bound), self.degrees)

    def p_equivalent(self, margin: float) -> float:
        """The p value of "the true mean is `margin` or more away from 0" (two one-sided tests, Schuirmann 1987)."""
        return max(self.p_above(-margin), self.p_below(margin))

    def _t(self, bound: float) -> float:
        distance = self.mean - bound
        if self.standard_error == 0:
            return math.copysign(math.inf, distance) if distance else 0.0
        return distance / self.standard_error


def paired_difference(differences: Sequence[float], grain: float = 0.0) -> PairedDifference:
    """The paired difference of at least two finite values; `grain` is the smallest step of the metric, 0 for none.

    Raises ValueError for fewer than two values and for values that are not finite.
    """
    values = np.asarray(differences, np.float64)
    if len(values) < 2 or not np.isfinite(values).all():
        raise ValueError("a paired difference needs two finite values at least")
    n, sd = len(values), float(values.std(ddof=1))
    return PairedDifference(n, float(values.mean()), sd, max(sd / math.sqrt(n), grain / math.sqrt(6 * n)))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values adjusted for their number, in the order given (Holm 1979)."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def detectable(sd: float, n: int, alpha: float, arms: int = 1) -> float:
    """The true difference that n seeds detect with probability 80 %; `sd` is that of a single difference.

    `alpha` is two-sided and shared by `arms` arms. An approximation: quantiles of t in place of those of the
    non-central t. Infinite below two seeds.
    """
    if n < 2:
        return math.inf
    reach = student_quantile(1 - alpha / 2 / arms, n - 1) + student_quantile(POWER, n - 1)
    return reach * sd / math.sqrt(n)


def seeds_for(distance: float, sd: float, alpha: float) -> int | None:
    """How many seeds put a one-sided interval at `alpha` inside a target `distance` away, with a chance of 80 %.

    None when MOST_SEEDS would not do.
    """

    def is_enough(n: int) -> bool:
        return (student_quantile(1 - alpha, n - 1) + student_quantile(POWER, n - 1)) * sd / math.sqrt(n) <= distance

    if distance <= 0 or not is_enough(MOST_SEEDS):
        return None
    return bisect.bisect_left(range(MOST_SEEDS), True, lo=3, key=is_enough)
