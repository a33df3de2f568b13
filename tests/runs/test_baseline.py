"""The loss of a run beside that of a baseline: averaged, and the distance between both."""

from __future__ import annotations

import numpy as np
import pytest

from precgui.runs.baseline import LOSS_GAP, LOSS_MEAN, BaselineComparison, trailing_mean, window_of
from tests.gui.plotted import ArrayRun, training_run


@pytest.mark.parametrize("window", [1, 2, 7, 64, 1000, 5000])
def test_that_the_trailing_mean_is_that_of_the_values_one_by_one(window: int) -> None:
    values = np.random.default_rng(0).normal(size=1003)
    values[[0, 5, 6, 500]] = np.nan, np.inf, np.nan, -np.inf
    values[700] = 1e300  # must not spoil what comes after it
    expected = values.copy()
    for n in np.flatnonzero(np.isfinite(values)):
        seen = values[max(0, n - window + 1) : n + 1]
        expected[n] = seen[np.isfinite(seen)].mean()
    np.testing.assert_allclose(trailing_mean(values, window), expected, rtol=1e-12, atol=1e-15)


def test_that_the_mean_of_what_was_there_does_not_change_when_a_run_goes_on() -> None:
    loss = training_run("a").values["loss"]
    np.testing.assert_array_equal(trailing_mean(loss[:431], 50), trailing_mean(loss, 50)[:431])


def test_that_the_gap_is_taken_at_the_steps_that_both_runs_have() -> None:
    long, short = training_run("long", 1000, 1), training_run("short", 400, 2)
    short.values["loss"][10] = np.nan
    x, gap = BaselineComparison(long, short, 1).series(LOSS_GAP)
    kept = np.delete(np.arange(400), 10)  # the baseline has nothing to compare with at step 11
    np.testing.assert_array_equal(x, kept + 1)
    np.testing.assert_allclose(gap, (long.values["loss"][:400] - short.values["loss"])[kept])
    time_s, same = BaselineComparison(long, short, 1).series(LOSS_GAP, "time_s")
    np.testing.assert_allclose(time_s, x * 0.01)
    np.testing.assert_array_equal(same, gap)
    x, gap = BaselineComparison(short, long, 1).series(LOSS_GAP)
    assert len(x) == 400
    assert np.isnan(gap[10])  # its own NaN is told
    assert not BaselineComparison(long, long, 20).series(LOSS_GAP)[1].any()


def test_that_the_mean_takes_in_an_epoch_but_never_a_large_part_of_the_run() -> None:
    assert window_of(training_run("a", 2000)) == 50
    assert window_of(training_run("a", 200)) == 10
    assert window_of(training_run("a", 4)) == 1
    run = training_run("a", 2000)
    x, mean = BaselineComparison(run, run, 50).series(LOSS_MEAN)
    np.testing.assert_allclose(mean[-1], run.values["loss"][-50:].mean())
    assert len(x) == 2000


def test_that_nothing_recorded_yet_gives_nothing() -> None:
    empty = ArrayRun()
    for name in (LOSS_MEAN, LOSS_GAP, "val_loss"):
        assert [len(part) for part in BaselineComparison(empty, training_run("a"), 10).series(name)] == [0, 0]


def test_that_the_gap_of_a_finished_run_grows_as_long_as_the_baseline_runs() -> None:
    done, going = training_run("done"), training_run("going", status="running")
    assert BaselineComparison(done, going, 1).status == "running"
    assert BaselineComparison(done, done, 1).status == "completed"
