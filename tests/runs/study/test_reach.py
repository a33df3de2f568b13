"""Time until a loss: of all runs or of none."""

from dataclasses import replace

import numpy as np
import pytest

from precgui.config import RunConfig
from precgui.events import Evaluated, StepDone
from precgui.runs.study.figures import figures_of
from precgui.runs.study.groups import common_loss, loss_reached
from precgui.runs.study.run_figures import ValidationCurve
from tests.runs.study.sample_runs import figures
from tests.runs.synthetic import live_run


def _run(group: str, seed: int, losses: list[float], joules: float | None = None):
    step = np.arange(1.0, len(losses) + 1) * 10
    curve = ValidationCurve(step, np.array(losses), step / 10, step / 100)
    return replace(figures(group, seed), validation=curve, joules_per_sample=joules)


BASE = [_run("fp32", 1, [0.9, 0.5, 0.2]), _run("fp32", 2, [0.8, 0.3, 0.4])]


def test_that_the_loss_is_one_that_each_run_of_the_baseline_has_reached() -> None:
    assert common_loss(BASE, "fp32") == 0.3
    assert common_loss(BASE, "tf32") is None
    assert common_loss([_run("fp32", 1, [float("nan")])], "fp32") is None


def test_that_medians_are_of_the_first_time_and_of_all_runs() -> None:
    found = loss_reached(BASE, "fp32", 0.3)
    assert (found.reached, found.n, found.time_s) == (2, 2, 2.5)
    assert found.cpu_s == pytest.approx(0.25)
    assert found.energy_j is None


def test_that_one_run_that_did_not_reach_it_leaves_a_count_alone() -> None:
    runs = [*BASE, _run("int2-qat", 1, [0.2]), _run("int2-qat", 2, [0.9])]
    found = loss_reached(runs, "int2-qat", 0.3)
    assert (found.reached, found.n, found.time_s) == (1, 2, None)


def test_that_energy_counts_the_samples_until_then() -> None:
    found = loss_reached([_run("fp32", 1, [0.9, 0.1], joules=0.5)], "fp32", 0.3)
    assert found.energy_j == 0.5 * 64 * 20


def test_that_the_time_to_a_loss_begins_with_the_first_step() -> None:
    """The model took 30 s to build; the loss was reached two steps of half a second later."""
    steps = [StepDone(n, 30 + 0.5 * n, 1.0, 1.0, False, 0.1, 1.0, 0.4, 0.1, 10, 1.0) for n in (1, 2)]
    run = live_run([*steps, Evaluated(2, 1, 31.0, 0.2, 0.9)], RunConfig())
    made = figures_of(run, "a")
    assert made.validation.time_s.tolist() == pytest.approx([1.0])
