"""Runs beside a baseline."""

from __future__ import annotations

import math

import pytest

from precgui.config import RunConfig
from precgui.events import Evaluated, Incident, PowerRead, RunEnded, StepDone
from precgui.runs.baseline import LOSS_GAP, BaselineComparison
from precgui.runs.compare import UnknownBaseline, compare, names
from precgui.runs.live import LiveRun
from tests.runs.synthetic import live_run


def run(precision: str, step_s: float, accuracy: float, memory: float, energy_j: float, title: str = "") -> LiveRun:
    steps = [StepDone(n, n * step_s, 1.0, 1.0, False, 0.1, 1.0, step_s, 0.0, 10, memory) for n in range(1, 11)]
    config = RunConfig.model_validate({"precision": precision, "title": title})
    counter = [PowerRead("a", 0.0, math.nan, 0.0), PowerRead("a", 1.0, math.nan, energy_j)]
    return live_run([*steps, Evaluated(10, 1, 1.0, 0.5, accuracy), *counter, RunEnded(1.0, "completed")], config)


def test_that_ratios_are_to_the_first_fp32_run() -> None:
    fast = run("bf16-amp", 0.05, 0.90, 60.0, 30.0)
    comparison = compare([fast, run("fp32", 0.1, 0.92, 100.0, 40.0)])
    assert comparison.baseline == "digits cnn fp32"
    bf16, fp32 = comparison.runs
    assert (bf16.speedup, bf16.memory_ratio, bf16.energy_ratio) == (pytest.approx(2), pytest.approx(0.6), 0.75)
    assert bf16.accuracy_delta == pytest.approx(-0.02)
    assert (fp32.speedup, fp32.memory_ratio, fp32.energy_ratio, fp32.accuracy_delta) == (1, 1, 1, 0)
    assert (bf16.time_s, bf16.step_s_median, bf16.samples_per_s) == (1.0, 0.05, pytest.approx(200))


def test_that_what_was_not_measured_has_no_ratio() -> None:
    nan = float("nan")
    row = compare([run("fp32", 0.1, nan, nan, nan), run("bf16-amp", 0.1, 0.9, 100.0, 3.0)]).runs[1]
    assert (row.memory_ratio, row.energy_ratio, row.accuracy_delta) == (None, None, None)
    assert row.memory_peak_bytes == 100
    empty = compare([live_run([]), run("fp32", 0.1, 0.9, 1.0, 1.0)]).runs[0]
    assert (empty.train_loss, empty.speedup, empty.time_s, empty.steps) == (None, None, None, 0)


@pytest.mark.parametrize(("baseline", "expected"), [("mine", "mine"), ("bf16-amp", "other"), (None, "mine")])
def test_that_the_baseline_is_found_by_title_or_precision(baseline: str | None, expected: str) -> None:
    runs = [run("bf16-amp", 0.1, 0.9, 1.0, 1.0, "other"), run("fp32", 0.1, 0.9, 1.0, 1.0, "mine")]
    assert compare(runs, baseline).baseline == expected


def test_that_an_unknown_baseline_is_told_with_the_names() -> None:
    with pytest.raises(UnknownBaseline, match="no run is called fp8; the names are digits cnn fp32"):
        compare([run("fp32", 0.1, 0.9, 1.0, 1.0)], "fp8")
    with pytest.raises(ValueError, match="no run to compare"):
        compare([])


def test_that_equal_titles_get_different_names() -> None:
    assert names([live_run([])] * 3) == ["digits cnn fp16-amp", "digits cnn fp16-amp (2)", "digits cnn fp16-amp (3)"]


def test_that_a_larger_batch_is_not_mistaken_for_a_slower_run() -> None:
    large = live_run([StepDone(1, 0.2, 1.0, 1.0, False, 0.1, 1.0, 0.2, 0.0, 40, 1.0)])
    assert compare([run("fp32", 0.1, 0.9, 1.0, 1.0), large]).runs[1].speedup == pytest.approx(2)


def test_that_emulated_arithmetic_is_marked() -> None:
    emulated = run("fp16-amp", 0.2, 0.9, 1.0, 1.0)
    emulated.extend([Incident(0.0, 0, "emulated", "info", "FP16 is emulated in 4 layers")])
    assert [row.emulated for row in compare([run("fp32", 0.1, 0.9, 1.0, 1.0), emulated]).runs] == [False, True]


def test_that_emulated_and_slow_runs_say_so_beside_their_speed() -> None:
    slow = run("bf16-amp", 2.0, 0.9, 1.0, 1.0)
    told = "this CPU has no fast BF16: a product takes 50 times its FP32 time; the speed is not"
    slow.environment = {**slow.environment, "notes": [told]}
    _, row = compare([run("fp32", 0.1, 0.9, 1.0, 1.0), slow]).runs
    assert (row.arithmetic, row.emulated, row.speedup) == ("slow", False, pytest.approx(0.05))
    assert row.caveat.startswith("This CPU has no fast BF16")


def test_that_other_work_has_no_ratio_and_no_difference() -> None:
    base, other = run("fp32", 0.1, 0.9, 1.0, 1.0), run("fp32", 0.1, 0.9, 1.0, 1.0, "gpt")
    other.config = RunConfig.model_validate({"task": "text", "title": "gpt"})
    comparison = compare([base, other])
    row = comparison.runs[1]
    assert (row.speedup, row.memory_ratio, row.energy_ratio, row.accuracy_delta) == (None,) * 4
    assert row.step_s_median == pytest.approx(0.1)
    assert row.withheld == "another task: text, not digits"
    assert comparison.notes == ("gpt has no ratios and no difference: it is of another task: text, not digits",)
    assert len(BaselineComparison(other, base, 1).series(LOSS_GAP)[1]) == 0
    assert len(BaselineComparison(base, base, 1).series(LOSS_GAP)[1]) == 10
