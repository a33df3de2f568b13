"""Properties of rounding that hold for every format, checked on random reals."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precgui.formats.arrays import draws
from precgui.formats.model import Format
from precgui.formats.registry import formats, get
from precgui.formats.rounding import (
    DRAW_BITS,
    ROUNDINGS,
    RoundingMode,
    draw,
    probability_up,
    round_ordinal,
    rounding_interval,
)

FORMATS = [*(f for f in formats().values() if f.has_zero), get("e0m3"), get("e5m0"), get("e1m4"), get("e15m112")]
DETERMINISTIC: tuple[RoundingMode, ...] = tuple(r for r in ROUNDINGS if r != "stochastic")
reals = st.fractions(min_value=-600, max_value=600, max_denominator=5000) | st.fractions(-2, 2, max_denominator=1 << 20)


@given(st.sampled_from(FORMATS), reals, st.sampled_from(DETERMINISTIC))
@settings(max_examples=400)
def test_that_a_real_lies_in_the_interval_of_the_value_it_rounds_to(
    fmt: Format, value: Fraction, rounding: RoundingMode
) -> None:
    ordinal = round_ordinal(value, fmt, rounding)
    if fmt.min_ordinal < ordinal < fmt.max_ordinal:
        assert value in rounding_interval(fmt, ordinal, rounding)


@given(st.sampled_from(FORMATS), reals)
@settings(max_examples=300)
def test_that_every_mode_gives_one_of_the_two_neighbours(fmt: Format, value: Fraction) -> None:
    low = round_ordinal(value, fmt, "down")
    high = round_ordinal(value, fmt, "up")
    assert high - low in (0, 1)
    results = {round_ordinal(value, fmt, mode, random=12345) for mode in ROUNDINGS}
    assert results == {low, high} or len(results) == 1
    if fmt.value(low) <= value <= fmt.value(high):
        nearest = fmt.value(round_ordinal(value, fmt, "nearest_even"))
        assert abs(nearest - value) == min(value - fmt.value(low), fmt.value(high) - value)


@given(st.sampled_from(FORMATS), reals, reals)
@settings(max_examples=300)
def test_that_rounding_keeps_order(fmt: Format, first: Fraction, second: Fraction) -> None:
    first, second = sorted((first, second))
    for mode in DETERMINISTIC[:5]:
        assert round_ordinal(first, fmt, mode) <= round_ordinal(second, fmt, mode)


def test_that_a_tie_goes_to_even_and_away_from_zero() -> None:
    fp16 = get("fp16")
    tie = 1 + Fraction(1, 2**11)
    assert fp16.value(round_ordinal(tie, fp16, "nearest_even")) == 1
    assert fp16.value(round_ordinal(tie, fp16, "nearest_away")) == 1 + Fraction(1, 2**10)
    assert fp16.value(round_ordinal(-tie, fp16, "nearest_away")) == -1 - Fraction(1, 2**10)


def test_that_round_to_odd_makes_double_rounding_harmless() -> None:
    """Odd with two extra bits, then nearest, equals nearest at once (Boldo and Melquiond 2008)."""
    wide, narrow = get("e5m7"), get("e5m5")
    for count in range(-3000, 3000):
        value = Fraction(count, 1237)
        middle = wide.value(round_ordinal(value, wide, "to_odd"))
        assert round_ordinal(middle, narrow, "nearest_even") == round_ordinal(value, narrow, "nearest_even")


def test_that_stochastic_rounding_goes_up_as_often_as_the_distance_says() -> None:
    fmt, value = get("e4m3fn"), Fraction(21, 20)
    chance = probability_up(value, fmt)
    assert chance == Fraction(2, 5)
    ups = Counter(round_ordinal(value, fmt, "stochastic", draw(3, i)) for i in range(20_000))
    low = round_ordinal(value, fmt, "down")
    spread = (20_000 * float(chance * (1 - chance))) ** 0.5
    assert abs(ups[low + 1] - 8_000) < 4 * spread


def test_that_the_draws_of_an_array_are_the_draws_of_its_places() -> None:
    assert draws(17, 500).tolist() == [draw(17, place) for place in range(500)]
    assert draws(18, 500).tolist() != draws(17, 500).tolist()


def test_that_draws_are_uniform_and_independent_of_their_neighbours() -> None:
    sample = draws(5, 1 << 16).astype(np.float64) / (1 << DRAW_BITS)
    counts = np.histogram(sample, bins=64, range=(0, 1))[0]
    chi_square = float(np.sum((counts - 1024) ** 2 / 1024))
    assert 25 < chi_square < 115
    assert abs(float(np.corrcoef(sample[:-1], sample[1:])[0, 1])) < 0.02
    other = draws(6, 1 << 16).astype(np.float64) / (1 << DRAW_BITS)
    assert abs(float(np.corrcoef(sample, other)[0, 1])) < 0.02


@pytest.mark.parametrize("seed", [0, 1, 7920, 2**40 + 5])
def test_that_draws_at_any_distance_are_independent(seed: int) -> None:
    """Also at powers of two, as rows of a matrix lie apart; draws 4096 places apart were correlated by 52 sigma."""
    count = 1 << 20
    drawn = draws(seed, count).astype(np.float64)
    drawn = (drawn - drawn.mean()) / drawn.std()
    lags = [*(1 << power for power in range(17)), 3, 5, 96, 1000, 3 << 10, 5 << 12]
    sigmas = [float(drawn[:-lag] @ drawn[lag:]) / math.sqrt(count - lag) for lag in lags]
    assert max(map(abs, sigmas)) < 4.5


def test_that_draws_of_neighbouring_seeds_are_independent() -> None:
    count = 1 << 18
    rows = np.array([draws(seed, count) for seed in range(6)], dtype=np.float64)
    correlations = np.corrcoef(rows)[np.triu_indices(6, 1)]
    assert np.abs(correlations).max() * math.sqrt(count) < 4.5
