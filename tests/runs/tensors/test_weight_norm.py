"""The norm of all weights as a series: live, from the file, with parts left out, and of a real training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import precgui
from precgui import config, job
from precgui.events import EXPONENT_BINS, TENSOR_STATS, Event, StepDone, TensorStats
from precgui.runs.live import LiveRun
from precgui.runs.signals import SIGNALS
from precgui.runs.tensors import weight_norm
from tests.runs.synthetic import live_run, open_writer


def measured(step: int, names: tuple[str, ...], norms: tuple[float, ...], kind: str = "weight") -> TensorStats:
    stats = np.zeros((len(names), len(TENSOR_STATS)), "<f8")
    stats[:, TENSOR_STATS.index("l2")] = norms
    stats[:, TENSOR_STATS.index("count")] = 10
    counts = np.ones((len(names), EXPONENT_BINS), "<u4")
    return TensorStats(step, 0.1 * step, kind, names, (1,) * len(names), stats.tobytes(), counts.tobytes())


EVENTS: list[Event] = [
    *(StepDone(step, 0.1 * step, 1.0, 1.0, False, 0.1, 1.0, 0.09, 0.01, 8, float("nan")) for step in range(1, 31)),
    measured(10, ("a", "b"), (3.0, 4.0)),
    measured(10, ("a.out",), (99.0,), "activation"),
    measured(30, ("a", "b"), (6.0, 8.0)),
    measured(25, ("a",), (6.0,)),  # a part of them, late: as after a bad step
    measured(20, ("a", "b"), (5.0, 12.0)),
]


def test_that_the_norm_is_over_all_weights_and_in_the_order_of_the_steps(tmp_path: Path) -> None:
    with open_writer(tmp_path / "run.h5") as writer:
        for event in EVENTS:
            writer(event)
    live = live_run(EVENTS)
    with precgui.open_run(tmp_path / "run.h5") as saved:
        for run in (live, live.snapshot(), saved, saved):  # the second time nothing is read
            np.testing.assert_allclose(run.series("weight_norm"), ([10, 20, 30], [5.0, 13.0, 10.0]), rtol=1e-6)
            np.testing.assert_allclose(run.series("weight_norm", "time_s")[0], [1.0, 2.0, 3.0])


def test_that_a_long_record_is_read_in_even_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_norm, "_MOST_ROWS", 10)
    with open_writer(tmp_path / "run.h5") as writer:
        for step in range(1, 96):
            writer(measured(step, ("a",), (float(step),)))
    with precgui.open_run(tmp_path / "run.h5") as saved:
        steps, norms = saved.series("weight_norm")
    np.testing.assert_array_equal(steps, np.arange(1, 96, 10))
    np.testing.assert_array_equal(norms, steps)


def test_that_a_snapshot_does_not_grow() -> None:
    live = live_run(EVENTS)
    before = live.snapshot()
    live.extend([measured(40, ("a", "b"), (1.0, 0.0))])
    assert isinstance(before, LiveRun)
    assert len(before.series("weight_norm")[0]) == 3
    assert len(live.series("weight_norm")[0]) == 4


def test_that_a_run_without_a_record_has_none() -> None:
    assert "weight_norm" in SIGNALS
    assert len(live_run(EVENTS[:30]).series("weight_norm")[1]) == 0


def test_that_a_real_training_moves_the_norm_as_its_weights_do(tmp_path: Path) -> None:
    wanted = ["device=cpu", "threads=1", "train.max_steps=12", "record.weights_every=4", "record.budget=100"]
    job.Job(config.load("regression-precise", wanted), tmp_path / "a.h5").run()
    with precgui.open_run(tmp_path / "a.h5") as saved:
        steps, norms = saved.series("weight_norm")
        weights = saved.tensors()["weight"]
        by_hand = np.sqrt((weights.stat("l2") ** 2).sum(1))
    assert len(steps) >= 3
    assert len(np.unique(norms)) == len(norms)
    np.testing.assert_allclose(norms, by_hand, rtol=1e-6)
