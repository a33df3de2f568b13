"""Loss bands: the mean and the range over the seeds of a group, over steps and over costs."""

import numpy as np
import pytest

from precgui.runs.study.bands import loss_bands
from precgui.runs.study.groups import make_study
from precgui.runs.study.run_figures import RunFigures
from tests.runs.study.sample_runs import figures


def _runs(**changes: object) -> list[RunFigures]:
    step = np.array([1.0, 2.0, 3.0])
    return [
        figures("fp32", seed, curve=(step, np.array([4.0, 2.0, 1.0]) * factor), **changes)
        for seed, factor in enumerate((1.0, 4.0))
    ]


def test_that_a_band_is_the_geometric_mean_and_the_range() -> None:
    runs = _runs()
    (band,) = loss_bands(make_study(runs), runs)
    assert band.x.tolist() == [1, 2, 3]
    assert band.mean == pytest.approx([8, 4, 2])
    assert (band.low.tolist(), band.high.tolist()) == ([4, 2, 1], [16, 8, 4])
    assert band.runs.shape == (2, 3)


def test_that_steps_become_seconds_by_the_mean_step_of_the_group() -> None:
    runs = _runs(cpu_s=0.5)
    (band,) = loss_bands(make_study(runs), runs, over="cpu_s")
    assert band.x.tolist() == [0.5, 1.0, 1.5]


def test_that_an_emulated_group_and_one_without_the_cost_have_none() -> None:
    for runs in (_runs(emulated="emulated here"), _runs(step_s=None)):
        assert loss_bands(make_study(runs), runs, over="time_s") == []
        assert len(loss_bands(make_study(runs), runs)) == 1


def test_that_losses_that_are_not_finite_leave_gaps_and_no_fault() -> None:
    step = np.array([1.0, 2.0])
    runs = [figures("fp32", 0, curve=(step, np.array([1.0, np.nan]))), figures("fp32", 1, curve=(step, np.ones(2)))]
    (band,) = loss_bands(make_study(runs), runs)
    assert band.x.tolist() == [1]
