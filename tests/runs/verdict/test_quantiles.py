"""The distributions of `runs.verdict` against SciPy."""

import math

import pytest

from precgui.runs.verdict.quantiles import beta_cdf, beta_quantile, share_interval, student_quantile, student_sf


def test_that_the_incomplete_beta_function_is_that_of_scipy() -> None:
    from scipy.special import betainc

    for a in (0.5, 1, 2.5, 30, 400):
        for b in (0.5, 1, 3, 50, 1000):
            for x in (0, 1e-9, 0.01, 0.3, 0.5, 0.9, 0.999, 1):
                assert beta_cdf(x, a, b) == pytest.approx(float(betainc(a, b, x)), rel=1e-9, abs=1e-290)


@pytest.mark.parametrize("arguments", [(-0.1, 1, 1), (1.1, 1, 1), (0.5, 0, 1), (0.5, 1, -1), (math.nan, 1, 1)])
def test_that_the_incomplete_beta_function_refuses_what_it_is_not_defined_for(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="I_x"):
        beta_cdf(*arguments)


def test_that_student_tails_and_quantiles_are_those_of_scipy() -> None:
    from scipy import stats

    for degrees in (*range(1, 40), 100, 1000, 7.5):
        for t in (0.0, 1e-3, 0.7, 1.96, 4.3, 31.8, 1e3, -2.0):
            assert student_sf(t, degrees) == pytest.approx(stats.t.sf(t, degrees), rel=1e-8, abs=1e-280)
        for share in (0.001, 0.0147, 0.05, 0.5, 0.8, 0.95, 0.975, 0.9853, 0.99999):
            assert student_quantile(share, degrees) == pytest.approx(stats.t.ppf(share, degrees), rel=1e-8, abs=1e-12)


def test_that_infinite_t_has_no_tail_and_an_impossible_quantile_is_refused() -> None:
    assert student_sf(math.inf, 3) == 0
    assert student_sf(-math.inf, 3) == 1
    with pytest.raises(ValueError, match="between 0 and 1"):
        student_quantile(1.0, 3)


def test_that_beta_quantiles_turn_the_distribution_round() -> None:
    from scipy import stats

    for a, b, share in ((1, 9, 0.975), (4, 2, 0.025), (0.5, 0.5, 0.3)):
        assert beta_quantile(share, a, b) == pytest.approx(stats.beta.ppf(share, a, b), rel=1e-10)


def test_that_intervals_of_shares_are_exact_for_every_count_up_to_30() -> None:
    from scipy import stats

    for trials in range(1, 31):
        for successes in range(trials + 1):
            side = "less" if successes == 0 else "greater" if successes == trials else "two-sided"
            exact = stats.binomtest(successes, trials, alternative=side).proportion_ci(0.95, method="exact")
            assert share_interval(successes, trials) == pytest.approx((exact.low, exact.high), abs=1e-10)


def test_that_no_failure_in_five_runs_is_below_45_percent() -> None:
    assert share_interval(0, 5) == pytest.approx((0, 0.4507), abs=1e-4)


@pytest.mark.parametrize("counts", [(-1, 5), (6, 5), (0, 0)])
def test_that_an_impossible_share_is_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not a share"):
        share_interval(*counts)
