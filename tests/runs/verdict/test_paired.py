"""Paired differences against SciPy, and Holm's procedure against the closed test that it shortens."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precgui.runs.verdict.paired import detectable, holm, paired_difference, seeds_for

_RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 50])
def test_that_p_values_and_intervals_are_those_of_scipy(n: int) -> None:
    from scipy import stats

    values = _RANDOM.normal(0.3, 1.0, n)
    found = paired_difference(values)
    expected = stats.ttest_1samp(values, 0.0)
    assert found.p_different() == pytest.approx(expected.pvalue, rel=1e-8)
    for level in (0.9, 0.9412, 0.95):
        ci = expected.confidence_interval(level)
        assert found.interval(level) == pytest.approx((ci.low, ci.high), rel=1e-8)
    above = stats.ttest_1samp(values, -0.2, alternative="greater").pvalue
    below = stats.ttest_1samp(values, 0.2, alternative="less").pvalue
    assert (found.p_above(-0.2), found.p_below(0.2)) == pytest.approx((above, below), rel=1e-8)
    assert found.p_equivalent(0.2) == pytest.approx(max(above, below), rel=1e-8)


def test_that_the_standard_error_is_never_below_the_grain() -> None:
    grain = 1 / 359
    found = paired_difference([0.0] * 5, grain)
    assert found.standard_error == pytest.approx(grain / math.sqrt(30))
    assert found.p_different() == 1.0
    wide = paired_difference([0.0, 1.0, 2.0], grain)
    assert wide.standard_error == pytest.approx(1 / math.sqrt(3))


def test_that_the_grain_is_the_spread_of_two_rounded_values() -> None:
    exact = _RANDOM.normal(0, 10, (2, 200_000))
    error = np.diff(np.round(exact) - exact, axis=0)
    assert error.std() == pytest.approx(1 / math.sqrt(6), rel=0.01)


def test_that_equal_differences_without_a_grain_are_certain() -> None:
    found = paired_difference([0.25] * 4)
    assert found.interval(0.95) == (0.25, 0.25)
    assert found.p_different() == 0.0
    assert found.p_equivalent(0.3) == 0.0
    assert paired_difference([0.0] * 4).p_different() == 1.0


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [1.0, math.inf]])
def test_that_less_than_two_finite_values_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="two finite values"):
        paired_difference(values)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_that_holm_is_the_closed_test_of_bonferroni(p_values: list[float]) -> None:
    """A hypothesis is rejected when each set of hypotheses that holds it is (Marcus, Peritz and Gabriel 1976)."""
    places = range(len(p_values))
    for place, adjusted in enumerate(holm(p_values)):
        sets = [
            chosen
            for size in range(1, len(p_values) + 1)
            for chosen in itertools.combinations(places, size)
            if place in chosen
        ]
        closed = max(min(1.0, len(chosen) * min(p_values[i] for i in chosen)) for chosen in sets)
        assert adjusted == pytest.approx(closed)


def test_that_what_can_be_told_apart_is_told_in_four_studies_of_five() -> None:
    from scipy import stats

    difference = detectable(1.0, 8, 0.05)
    studies = _RANDOM.normal(difference, 1.0, (4000, 8))
    seen = np.mean(stats.ttest_1samp(studies, 0.0, axis=1).pvalue < 0.05)
    assert 0.76 < seen < 0.84
    assert detectable(1.0, 1, 0.05) == math.inf
    assert detectable(1.0, 5, 0.05, arms=4) > detectable(1.0, 5, 0.05)


def test_that_so_many_seeds_as_are_named_decide_in_four_studies_of_five() -> None:
    from scipy import stats

    n = seeds_for(0.5, 1.0, 0.05)
    assert n is not None
    studies = _RANDOM.normal(0.5, 1.0, (4000, n))
    decided = np.mean(stats.ttest_1samp(studies, 0.0, axis=1, alternative="greater").pvalue < 0.05)
    assert 0.76 < decided < 0.84
    assert seeds_for(0.0, 1.0, 0.05) is None
    assert seeds_for(1e-9, 1.0, 0.05) is None
