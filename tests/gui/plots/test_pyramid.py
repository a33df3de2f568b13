"""The pyramid: nothing that was recorded may be hidden by drawing less of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precgui.gui.plots.pyramid import Pyramid


def wild_series(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """A noisy series over uneven x, with spikes, NaN and both infinities."""
    x = np.cumsum(rng.exponential(1.0, count) * rng.choice([0.0, 1.0, 50.0], count, p=[0.1, 0.88, 0.02]))
    y = rng.standard_normal(count)
    y[rng.random(count) < 0.002] *= 1e6
    for value in (np.nan, np.inf, -np.inf):
        y[rng.random(count) < 0.003] = value
    return x, y


def assert_nothing_lost(x: np.ndarray, y: np.ndarray, pyramid: Pyramid, x0: float, x1: float, pixels: int) -> None:
    drawn = pyramid.query(x0, x1, pixels)
    inside, shown = (x >= x0) & (x <= x1), (drawn.x >= x0) & (drawn.x <= x1)
    finite, shown_finite = y[inside & np.isfinite(y)], drawn.y[shown & np.isfinite(drawn.y)]
    assert (len(finite) == 0) == (len(shown_finite) == 0)
    if len(finite):
        assert shown_finite.min() == finite.min()
        assert shown_finite.max() == finite.max()
    assert np.isfinite(y[inside]).all() == np.isfinite(drawn.y[shown]).all()
    assert (np.diff(drawn.x) >= 0).all()


def test_that_thousands_of_random_queries_lose_no_extreme_and_no_gap() -> None:
    rng = np.random.default_rng(7)
    for count in (1, 15, 16, 17, 33, 1000, 4097, 100_000):
        x, y = wild_series(rng, count)
        pyramid = Pyramid(x, y)
        for _ in range(400):
            x0, x1 = np.sort(rng.uniform(x[0] - 1, x[-1] + 1, 2))
            assert_nothing_lost(x, y, pyramid, x0, x1, int(rng.integers(1, 60)))


@settings(max_examples=60)
@given(st.lists(st.integers(0, 700), max_size=12), st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_that_growing_in_any_portions_equals_building_at_once(portions: list[int], seed: int, pixels: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = wild_series(rng, sum(portions))
    grown = Pyramid()
    for end in np.cumsum([0, *portions]):
        grown.update(x[:end], y[:end])
    whole = Pyramid(x, y)
    x0, x1 = np.sort(rng.uniform(-1, x[-1] + 1 if len(x) else 1, 2))
    a, b = grown.query(x0, x1, pixels), whole.query(x0, x1, pixels)
    np.testing.assert_array_equal(a.x, b.x)
    np.testing.assert_array_equal(a.y, b.y)
    assert_nothing_lost(x, y, grown, x0, x1, pixels)


def test_that_every_drawn_point_is_a_recorded_point_at_its_place() -> None:
    rng = np.random.default_rng(1)
    x, y = np.sort(rng.uniform(0, 1e6, 50_000)), rng.standard_normal(50_000)
    drawn = Pyramid(x, y).query(1e5, 9e5, 300)
    assert not drawn.exact
    recorded = dict(zip(x.tolist(), y.tolist(), strict=True))
    assert all(recorded[a] == b for a, b in zip(drawn.x.tolist(), drawn.y.tolist(), strict=True))


def test_that_few_points_are_drawn_exactly_with_a_neighbour_on_each_side() -> None:
    x = np.arange(100.0)
    drawn = Pyramid(x, x**2).query(10, 20, 50)
    assert drawn.exact
    np.testing.assert_array_equal(drawn.x, np.arange(9.0, 22.0))
    np.testing.assert_array_equal(drawn.y, drawn.x**2)


def test_that_a_million_points_cost_a_few_points_a_pixel() -> None:
    y = np.random.default_rng(2).standard_normal(1_000_000)
    pyramid = Pyramid(np.arange(1_000_000.0), y)
    for width in (1_000_000, 500_000, 99_999, 33_333):
        drawn = pyramid.query(1000, 1000 + width - 2000, 1000)
        assert 2000 <= len(drawn.x) <= 4200
        assert not drawn.exact


def test_that_one_nan_among_a_million_breaks_the_line_and_hides_no_neighbour() -> None:
    y = np.zeros(1_000_000)
    y[500_000], y[500_001], y[499_999] = np.nan, 7.0, -7.0
    drawn = Pyramid(np.arange(1_000_000.0), y).query(0, 1e6, 800)
    assert np.isnan(drawn.y).sum() == 1
    assert drawn.x[np.isnan(drawn.y)][0] == 500_000
    assert (np.nanmin(drawn.y), np.nanmax(drawn.y)) == (-7.0, 7.0)


def test_that_a_changed_tail_replaces_what_was_known_of_it() -> None:
    rng = np.random.default_rng(5)
    x, y = np.arange(5000.0), rng.standard_normal(5000)
    pyramid = Pyramid(x, y)
    other = np.concatenate([y[:3210], rng.standard_normal(2500)])
    pyramid.update(np.arange(5710.0), other, known=3210)
    for low, high in ((0, 5710), (3000, 3400), (3209, 5709)):
        assert_nothing_lost(np.arange(5710.0), other, pyramid, low, high, 20)


def test_that_bounds_ignore_what_is_not_finite() -> None:
    pyramid = Pyramid(np.arange(6.0), np.array([1.0, np.nan, np.inf, -np.inf, -3.0, 9.0]))
    assert pyramid.bounds(0, 4) == (-3.0, 1.0)
    assert pyramid.bounds(1, 3) is None
    assert pyramid.bounds(10, 12) is None


def test_that_series_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="equally long"):
        Pyramid([1.0, 2.0], [1.0])
