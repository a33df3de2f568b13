"""A live run: batches in, views out, little memory."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np

from precgui.config import RunConfig
from precgui.events import PowerRead, RunEnded, RunStarted, StepDone
from precgui.runs.live import LiveRun
from tests.runs.synthetic import live_run, synthetic_events


def steps(first: int, count: int) -> list[StepDone]:
    return [
        StepDone(step, step * 0.001, 1 / step, 1.0, False, 0.1, 1.0, 0.001, 0.0, 8, math.nan)
        for step in range(first, first + count)
    ]


def test_that_batches_of_any_size_give_the_same_run() -> None:
    events = synthetic_events(400)
    whole = live_run(events)
    pieces = live_run([])
    for at in range(0, len(events), 7):
        pieces.extend(events[at : at + 7])
    for name in ("loss", "val_accuracy", "power_w", "samples_per_s"):
        np.testing.assert_array_equal(np.array(whole.series(name)), np.array(pieces.series(name)))
    assert whole.events() == pieces.events()
    assert (pieces.status, pieces.message) == ("completed", "all steps done")


def test_that_a_series_is_a_view_that_later_steps_do_not_change() -> None:
    run = live_run(steps(1, 10))
    before = run.series("loss")[1]
    assert np.shares_memory(before, run.series("loss")[1])
    run.extend(steps(11, 100_000))
    assert len(before) == 10
    np.testing.assert_array_equal(before, run.series("loss")[1][:10])
    assert not before.flags.writeable


def test_that_power_is_placed_between_the_steps_of_its_time() -> None:
    run = live_run([*steps(1, 4), PowerRead("a", 0.0025, 50.0, math.nan), PowerRead("a", 9.0, 60.0, math.nan)])
    x, power_w = run.series("power_w")
    np.testing.assert_allclose(x, [2.5, 4.0])
    np.testing.assert_array_equal(power_w, [50.0, 60.0])
    np.testing.assert_array_equal(run.series("power_w", "time_s")[0], [0.0025, 9.0])


def test_that_a_run_without_any_event_has_empty_series() -> None:
    run = LiveRun(RunConfig(), run_id="a", created="", machine={}, environment={})
    for name in ("loss", "val_loss", "power_w", "samples_per_s"):
        x, values = run.series(name)
        assert len(x) == len(values) == 0
    assert (run.total_steps, run.status, run.power_devices()) == (0, "running", [])


def test_that_power_before_the_first_step_lies_at_zero() -> None:
    assert live_run([PowerRead("a", 1.0, 50.0, math.nan)]).series("power_w")[0].tolist() == [0.0]


def test_that_a_step_costs_at_most_100_bytes() -> None:
    batch = steps(1, 1000)
    run = live_run([RunStarted(0.0, 200_000, 100, "cpu")])
    tracemalloc.start()
    for _ in range(200):
        run.extend(batch)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    reserved = sum(run.column("steps", name).base.nbytes for name in ("step", "time_s", "loss"))  # type: ignore[union-attr]
    assert reserved == 3 * 8 * 200_000
    assert used < 100 * 200_000


def test_that_the_end_is_kept() -> None:
    run = live_run([RunEnded(1.0, "failed", "out of memory", "Traceback")])
    assert (run.status, run.message, run.details) == ("failed", "out of memory", "Traceback")
