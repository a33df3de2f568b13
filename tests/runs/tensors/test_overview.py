"""Rows of tensors added up: whatever their order and number, none is left out."""

from __future__ import annotations

import numpy as np
import pytest

from precgui.events import EXPONENT_BINS, TENSOR_STATS
from precgui.runs.tensors.overview import Overview

NAN = TENSOR_STATS.index("nan")
COUNT = TENSOR_STATS.index("count")


def rows(steps: int, tensors: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    stats = rng.lognormal(size=(steps, tensors, len(TENSOR_STATS))).astype(np.float32)
    stats[:, :, [NAN, NAN + 1, NAN + 2]] = 0
    stats[:, :, COUNT] = 100
    return stats, rng.integers(0, 2**32, (steps, tensors, EXPONENT_BINS)).astype(np.uint32)


@pytest.mark.parametrize("order", ["forward", "backward", "shuffled"])
@pytest.mark.parametrize("spread", [1, 7, -3, 2**50])
@pytest.mark.parametrize("expected", [False, True])
def test_that_sums_and_extremes_are_those_of_all_rows(order: str, spread: int, expected: bool) -> None:
    stats, exponents = rows(200, 3)
    stats[150, 1, NAN] = 5
    stats[:, 2, COUNT] = np.arange(200) % 2 == 0
    steps = np.arange(1, 201) * spread
    places = {
        "forward": np.arange(200),
        "backward": np.arange(200)[::-1],
        "shuffled": np.random.default_rng(1).permutation(200),
    }
    overview = Overview(most_columns=30)
    if expected:
        overview.expect(steps, 3)
    for own in np.array_split(places[order], 9):
        assert overview.add(steps[own], stats[own], exponents[own]).all()
    found = overview.columns()
    assert 15 <= len(found.steps) <= 30
    assert found.rows.sum() == overview.rows == 200
    column_of = np.searchsorted(np.sort(steps // overview.width), steps // overview.width)
    for column, first in enumerate(np.unique(column_of)):
        own = column_of == first
        seen = stats[own, :, COUNT] > 0
        assert found.steps[column] == steps[own].min()
        np.testing.assert_array_equal(found.exponents[column], exponents[own].sum(0, dtype=np.float64))
        amax = np.where(seen, stats[own, :, 0], np.nan)
        np.testing.assert_array_equal(found.stats[column, :, 0], np.fmax.reduce(amax, 0))
        np.testing.assert_array_equal(found.stats[column, :, COUNT], stats[own, :, COUNT].sum(0))
    assert found.bad_rows.sum() == 1
    assert found.bad_step[np.isfinite(found.bad_step)].tolist() == [steps[150]]
    assert np.isfinite(found.bad_step).any(0).tolist() == [False, True, False]


def test_that_tensors_may_be_added_later_even_when_columns_then_run_out() -> None:
    overview = Overview(most_columns=100, most_histograms=100)
    stats, exponents = rows(90, 4)
    for tensors, own in ((1, slice(0, 80)), (4, slice(80, 90))):
        overview.add(np.arange(90)[own], stats[own, :tensors], exponents[own, :tensors])
    found = overview.columns()
    assert len(found.steps) <= 25
    np.testing.assert_array_equal(found.exponents[:, 0].sum(0), exponents[:, 0].sum(0, dtype=np.float64))
    np.testing.assert_array_equal(found.exponents[:, 1:].sum(0), exponents[80:, 1:].sum(0, dtype=np.float64))
    assert found.rows.sum() == 90


def test_that_a_row_that_a_file_has_lost_is_told() -> None:
    stats, exponents = rows(3, 2)
    stats[1] = 0
    overview = Overview()
    assert overview.add(np.arange(3), stats, exponents).tolist() == [True, False, True]
    assert overview.rows == 2
    assert overview.columns().steps.tolist() == [0, 2]
    assert not len(Overview().columns().steps)


def test_that_samples_count_as_often_as_they_stand_for_others() -> None:
    stats, exponents = rows(40, 3)
    strides = np.random.default_rng(1).choice([0, 1, 4, 16], (40, 3))
    stats[:, :, COUNT] = np.where(strides > 0, 100, 0)
    exponents[strides == 0] = 0
    overview = Overview(most_columns=24)
    overview.add(np.arange(40), stats, exponents, strides)
    found = overview.columns()
    np.testing.assert_array_equal(found.stats[:, :, COUNT].sum(0), 100 * strides.sum(0))
    np.testing.assert_array_equal(found.exponents.sum(0), (exponents * strides[:, :, None].astype(float)).sum(0))
    np.testing.assert_array_equal(found.sampled[:, 0], 100 * (strides > 1).sum(0))
    np.testing.assert_array_equal(found.sampled[:, 1], 100 * np.where(strides > 1, strides, 0).sum(0))


def test_that_rows_are_added_though_a_file_has_lost_their_strides() -> None:
    stats, exponents = rows(5, 3)
    overview = Overview()
    assert overview.add(np.arange(5), stats, exponents, np.zeros((5, 0), np.uint32)).all()
    np.testing.assert_array_equal(overview.columns().exponents, exponents)


@pytest.mark.filterwarnings("error")
def test_that_wild_numbers_of_a_damaged_file_do_no_harm() -> None:
    stats, exponents = rows(40, 2)
    stats[:, :, :] = np.array([np.inf, -np.inf, np.nan, 3e38])[np.arange(40) % 4][:, None, None]
    steps = np.random.default_rng(2).integers(-(2**63), 2**63 - 1, 40)
    overview = Overview(most_columns=24)
    overview.add(steps, stats, exponents, np.full((40, 2), 2**32 - 1, np.uint32))
    assert 0 < len(overview.columns().steps) <= 24


def test_that_shares_are_means_over_the_rows_that_have_them() -> None:
    stats, exponents = rows(8, 2)
    places = [place for place, name in enumerate(TENSOR_STATS) if name == "changed" or name.startswith("lost_")]
    stats[:, :, places] = np.random.default_rng(3).random((8, 2, len(places)))
    stats[2, 0, places[1]] = np.nan
    overview = Overview(most_columns=24)
    overview.width = 8
    overview.add(np.arange(8), stats, exponents)
    found = overview.columns().stats
    assert found.shape[0] == 1
    changed = stats[:, :, places[0]].astype(float)
    np.testing.assert_allclose(found[0][:, places[0]], changed.mean(0))
    for place in places[1:]:  # shares of what has changed
        lost = np.where(np.isnan(stats[:, :, place]), 0, stats[:, :, place]).astype(float)
        known = np.where(np.isnan(stats[:, :, place]), 0, changed)
        np.testing.assert_allclose(found[0][:, place], (lost * known).sum(0) / known.sum(0))
