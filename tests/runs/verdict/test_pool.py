"""Rates of false verdicts on the shipped pools of trained networks: the property that the rules exist for.

Few draws, with bounds wide enough for them; `benchmarks/verdicts.py` does the same with many.
"""

import pytest

from benchmarks.verdicts import (
    MARGIN,
    Drawer,
    is_different,
    is_different_at_any_time,
    is_different_in_plan,
    is_equivalent,
    load_pool,
    share,
)

DRAWS = 1500


@pytest.mark.parametrize("name", ["digits", "gpt"])
def test_that_two_equal_arms_are_called_different_in_one_study_of_twenty(name: str) -> None:
    pool, grain = load_pool(name)
    drawer = Drawer(pool, seed=1)
    assert 0.025 < share(DRAWS, lambda: is_different(drawer.same(5), grain)) < 0.07
    assert 0.025 < share(DRAWS, lambda: is_different_in_plan(drawer.same(10), grain)) < 0.07
    assert share(300, lambda: is_different_at_any_time(drawer.same(12), grain)) > 0.1  # why looks are planned


def test_that_a_difference_of_the_margin_is_not_called_equal() -> None:
    pool, grain = load_pool("digits")
    drawer = Drawer(pool, seed=2)
    assert share(DRAWS, lambda: is_equivalent(drawer.same(5) - MARGIN, grain)) < 0.06


def test_that_two_points_are_seen_with_five_seeds_and_bf16_is_called_equal() -> None:
    pool, grain = load_pool("digits")
    drawer = Drawer(pool, seed=3)
    assert share(400, lambda: is_different(drawer.other("int3", 5), grain)) > 0.85
    assert share(400, lambda: is_equivalent(drawer.other("bf16", 5), grain)) > 0.95
