"""Bias told from noise in differences of branches."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from precgui.runs.verdict.branches import judge_drift, sign_flip_p


def test_that_the_sign_flip_test_counts_all_patterns() -> None:
    values = [0.3, -0.1, 0.7, 0.2, 0.05]
    sums = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True))) for signs in itertools.product((1, -1), repeat=5)
    ]
    assert sign_flip_p(values) == sum(total >= abs(sum(values)) - 1e-12 for total in sums) / 32


def test_that_drawn_patterns_of_many_branches_agree_with_the_t_test() -> None:
    values = np.random.default_rng(1).normal(0.4, 1, 40)
    drift = judge_drift(list(values), 1.0)
    assert drift.p_t is not None and sign_flip_p(values) == pytest.approx(drift.p_t, rel=0.2)
    assert sign_flip_p([1.0] * 40) == pytest.approx(1 / 65537)


def test_that_noise_is_called_biased_in_at_most_one_percent() -> None:
    draw = np.random.default_rng(2)
    flagged = [judge_drift(list(draw.standard_t(4, 16)), 1e-3).verdict == "bias" for _ in range(400)]
    assert sum(flagged) <= 4


def test_that_a_steady_difference_is_a_bias_and_a_tiny_one_negligible() -> None:
    values = 1 + 0.1 * np.random.default_rng(3).normal(size=16)
    assert judge_drift(list(values), 10.0).verdict == "bias"
    assert judge_drift(list(values), 2000.0).verdict == "negligible"
    assert judge_drift(list(values), 10.0).share == pytest.approx(0.1, rel=0.1)


def test_that_small_noise_rules_a_bias_out_and_large_noise_asks_for_more_branches() -> None:
    values = list(np.random.default_rng(5).normal(size=16))
    assert judge_drift(values, 100.0).verdict == "no bias"
    undecided = judge_drift(values, 10.0)
    assert undecided.verdict == "undecided" and undecided.needed is not None and undecided.needed > 16
    assert judge_drift(values, 0.0).needed is None


def test_that_equal_branches_have_no_bias_and_not_finite_ones_are_broken() -> None:
    assert judge_drift([0.0] * 16, 1.0).verdict == "no bias"
    broken = judge_drift([0.0, math.nan, math.inf], 1.0)
    assert broken.verdict == "broken" and broken.broken == 2 and broken.mean is None
    with pytest.raises(ValueError, match="two branches"):
        judge_drift([1.0], 1.0)
