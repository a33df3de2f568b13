"""Runs beside a baseline."""

from __future__ import annotations

import math
import uuid

import numpy as np
import pytest

from precgui.config import RunConfig
from precgui.events import Evaluated, Facts, HostRead, Incident, PowerRead, RunEnded, RunStarted, StepDone
from precgui.runs.baseline import LOSS_GAP, BaselineComparison
from precgui.runs.compare import KeptFigures, UnknownBaseline, compare, names
from precgui.runs.comparison_notes import ONE_SEED
from precgui.runs.live import LiveRun
from precgui.runs.ratio_interval import Variation, ratio_interval, ratio_text, variation
from precgui.runs.summary import energy_j
from tests.runs.synthetic import live_run


def run(precision: str, step_s: float, accuracy: float, memory: float, energy_j: float, title: str = "") -> LiveRun:
    steps = [StepDone(n, n * step_s, 1.0, 1.0, False, 0.1, 1.0, step_s, 0.0, 10, memory) for n in range(1, 11)]
    config = RunConfig.model_validate({"precision": precision, "title": title})
    counter = [PowerRead("a", 0.0, math.nan, 0.0), PowerRead("a", 1.0, math.nan, energy_j)]
    made = live_run([*steps, Evaluated(10, 1, 1.0, 0.5, accuracy), *counter, RunEnded(1.0, "completed")], config)
    made.run_id = uuid.uuid4().hex
    return made


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


def test_that_a_larger_batch_is_not_compared_but_told() -> None:
    large = live_run([StepDone(1, 0.2, 1.0, 1.0, False, 0.1, 1.0, 0.2, 0.0, 40, 1.0)])
    row = compare([run("fp32", 0.1, 0.9, 1.0, 1.0), large]).runs[1]
    assert (row.speedup, row.memory_ratio) == (None, None)
    assert row.withheld == "another batch: 40 samples a step, not 10"
    assert row.samples_per_s == pytest.approx(200)


@pytest.mark.parametrize(
    ("engine", "withheld", "accuracy_withheld"),
    [
        ({}, "", ""),
        ({"data": {"files": 3}}, "other data: files", ""),
        ({"initial_weights_sha256": "cafe"}, "", "other start weights: cafe, not f00d"),
    ],
)
def test_that_what_the_record_tells_of_other_work_withholds_figures(
    engine: dict[str, object], withheld: str, accuracy_withheld: str
) -> None:
    base = {"data": {"files": 1}, "initial_weights_sha256": "f00d"}
    steps = [StepDone(n, n * 0.1, 1.0, 1.0, False, 0.1, 1.0, 0.1, 0.0, 10, 1.0) for n in range(1, 11)]
    runs = [
        live_run([RunStarted(0.0, 10, 10, "cpu", facts), *steps, Evaluated(10, 1, 1.0, 0.5, 0.9)], RunConfig())
        for facts in (base, {**base, **engine})
    ]
    row = compare(runs).runs[1]
    assert (row.withheld, row.accuracy_withheld) == (withheld, accuracy_withheld)
    assert (row.accuracy_delta is None) == bool(withheld or accuracy_withheld)
    assert (row.speedup is None) == bool(withheld)


def test_that_emulated_arithmetic_has_no_ratio_of_time_memory_and_energy() -> None:
    emulated = run("fp16-amp", 0.2, 0.9, 1.0, 1.0)
    emulated.extend([Incident(0.0, 0, "emulated", "info", "FP16 is emulated in 4 layers")])
    base, row = compare([run("fp32", 0.1, 0.92, 1.0, 1.0), emulated]).runs
    assert (base.emulated, row.emulated) == (False, True)
    assert (row.speedup, row.memory_ratio, row.energy_ratio) == (None, None, None)
    assert row.why_no_ratio == "not measurable: emulated here"
    assert row.accuracy_delta == pytest.approx(-0.02)


def busy_run(precision: str, step_s: float, cpu_s: float, pressure: float, **changed: object) -> LiveRun:
    """A run on a CPU whose steps take `step_s` by the clock and `cpu_s` of the CPU."""
    facts = {"device": "cpu", "device_name": "CPU", "threads": 1, **changed}
    steps = [
        StepDone(n, n * step_s, 1.0, 1.0, False, 0.1, 1.0, step_s, 0.0, 10, 1.0, cpu_s=cpu_s) for n in range(1, 21)
    ]
    reads = [HostRead(n * step_s, 8.0, pressure, 0.0) for n in range(1, 21)]
    config = RunConfig.model_validate({"precision": precision})
    return live_run([RunStarted(0.0, 20, 20, "cpu", facts), *steps, *reads], config)


def test_that_runs_on_a_busy_cpu_are_compared_by_their_cpu_time() -> None:
    """By the clock the second one is slower, since others had the CPU; the CPU did twice as much in the same time."""
    busy = compare([busy_run("fp32", 0.1, 0.02, 0.9), busy_run("bf16-amp", 0.2, 0.01, 0.9)])
    assert busy.runs[1].speedup == pytest.approx(2)
    assert "Times are CPU times of the process" in busy.notes[0]
    assert "90 %" in busy.notes[0]
    quiet = compare([busy_run("fp32", 0.1, 0.02, 0.0), busy_run("bf16-amp", 0.2, 0.01, 0.0)])
    assert quiet.runs[1].speedup == pytest.approx(0.5)
    assert not any("CPU times" in note for note in quiet.notes)
    assert quiet.runs[1].cpu_s_median == 0.01


def test_that_another_machine_or_number_of_threads_withholds_ratios_and_says_so() -> None:
    base = busy_run("fp32", 0.1, 0.1, 0.0)
    for facts, why in (({"threads": 4}, "another number of threads (4"), ({"device_name": "H100"}, "another machine")):
        comparison = compare([base, busy_run("bf16-amp", 0.1, 0.1, 0.0, **facts)])
        row = comparison.runs[1]
        assert row.speedup is None
        assert row.costs_withheld.startswith(why)
        assert any(why in note for note in comparison.notes)


def test_that_another_learning_rate_is_named_beside_the_difference() -> None:
    base, other = run("fp32", 0.1, 0.92, 1.0, 1.0), run("bf16-amp", 0.1, 0.9, 1.0, 1.0)
    other.config = RunConfig.model_validate({"precision": "bf16-amp", "optimizer": {"lr": 0.2}, "title": "b"})
    comparison = compare([base, other])
    assert comparison.runs[1].with_remark("+1 points") == "+1 points (one seed; other optimizer.lr)"
    assert any("optimizer.lr (0.2, not 0.05)" in note for note in comparison.notes)
    assert compare([base, base]).runs[1].with_remark("0") == "0 (one seed)"


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
    assert comparison.notes == ("No ratios and no difference in 1 run: another task: text, not digits (gpt).",)
    assert len(BaselineComparison(other, base, 1).series(LOSS_GAP)[1]) == 0
    assert len(BaselineComparison(base, base, 1).series(LOSS_GAP)[1]) == 10


def timed(step_s: np.ndarray, title: str) -> LiveRun:
    """A run of these step times."""
    ends = np.cumsum(step_s)
    steps = [
        StepDone(n, float(end), 1.0, 1.0, False, 0.1, 1.0, float(lasted), 0.0, 10, 1.0)
        for n, (end, lasted) in enumerate(zip(ends, step_s, strict=True), start=1)
    ]
    return live_run(steps, RunConfig.model_validate({"precision": "fp32", "title": title}))


def test_that_a_difference_within_the_noise_of_the_runs_is_said_to_be_noise() -> None:
    """Steps of 10 ms on a machine whose load comes and goes by a quarter: speed-ups of 1.12x and 0.84x mean nothing."""
    draw = np.random.default_rng(3)
    load = 1 + 0.25 * np.sin(np.arange(90) / 9)
    runs = [timed(0.01 * load * draw.lognormal(sigma=0.05, size=90) * level, f"{level}") for level in (1, 0.89, 1.19)]
    comparison = compare(runs)
    assert any("share no noise" in note for note in comparison.notes)
    base, faster, slower = comparison.runs
    assert base.speedup_interval is None
    for row, expected in ((faster, 1 / 0.89), (slower, 1 / 1.19)):
        assert row.speedup == pytest.approx(expected, rel=0.05)
        assert row.speedup_interval is not None
        low, high = row.speedup_interval
        assert low < 1 < high
        assert ratio_text(row.speedup, row.speedup_interval, "?").endswith("within noise)")


def test_that_a_real_speed_up_lies_outside_of_the_noise() -> None:
    draw = np.random.default_rng(4)
    runs = [timed(level * draw.lognormal(sigma=0.02, size=90), f"{level}") for level in (0.02, 0.01)]
    row = compare(runs).runs[1]
    assert row.speedup_interval is not None
    assert 1.8 < row.speedup_interval[0] < 2 < row.speedup_interval[1] < 2.2
    assert "noise" not in ratio_text(row.speedup, row.speedup_interval, "?")


def test_that_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Runs whose level drifts between stretches as it does from run to run: 95 % of intervals contain 1."""
    draw = np.random.default_rng(5)

    def one() -> tuple[float, Variation]:
        stretches = draw.lognormal(sigma=0.1, size=(10, 1)) * draw.lognormal(sigma=0.05, size=(10, 9))
        spread = variation(stretches.ravel())
        assert spread is not None
        return float(draw.lognormal(sigma=0.1)), spread

    inside = 0
    for _ in range(1000):
        (own, own_spread), (base, base_spread) = one(), one()
        interval = ratio_interval(base / own, own_spread, base_spread)
        assert interval is not None
        inside += interval[0] <= 1 <= interval[1]
    assert 0.93 < inside / 1000 < 0.985


def test_that_runs_of_few_steps_have_no_interval() -> None:
    runs = [timed(np.full(12, level), f"{level}") for level in (0.02, 0.01)]
    row = compare(runs).runs[1]
    assert (row.speedup, row.speedup_interval) == (pytest.approx(2), None)
    assert ratio_text(row.speedup, row.speedup_interval, "?") == "2.00x (too few steps for an interval)"


def test_that_waiting_for_other_programs_is_no_speed_up() -> None:
    """Three times 4 ms of work, on a machine that gave them 20, 15 and 13 ms: 1.59x lies within noise."""
    step = 0.004 * np.random.default_rng(6).lognormal(sigma=0.03, size=90)
    base, own = (variation(wait * step, step) for wait in (5.0, 3.15))
    interval = ratio_interval(5.0 / 3.15, own, base)
    assert interval is not None
    assert interval[0] < 1 < 5.0 / 3.15 < interval[1]
    alone = ratio_interval(5.0 / 3.15, variation(3.15 * step), variation(5.0 * step))
    assert alone is not None
    assert alone[0] > 1


def test_that_a_difference_of_single_runs_names_one_seed_and_one_sample() -> None:
    begun = RunStarted(0.0, 10, 10, "cpu", {"data": {"validation_samples": 359}})
    step = StepDone(1, 0.1, 1.0, 1.0, False, 0.1, 1.0, 0.1, 0.0, 10, 1.0)
    pair = [live_run([begun, step, Evaluated(1, 1, 1.0, 0.5, share)], RunConfig()) for share in (0.92, 0.9228)]
    comparison = compare(pair)
    assert ONE_SEED in comparison.notes
    assert "One sample of the 359 for validation is 0.28 points of the metric." in comparison.notes
    assert comparison.runs[1].accuracy_grain == pytest.approx(1 / 359)
    assert ONE_SEED not in compare(pair[:1]).notes


def test_that_ratios_of_runs_whose_tensors_took_long_to_measure_say_so() -> None:
    runs = [run("fp32", 0.4, 0.9, 1.0, 1.0, "first"), run("bf16-amp", 0.39, 0.9, 1.0, 1.0, "second")]
    for each, share in zip(runs, (1.27, 0.03), strict=True):
        each.extend([Facts(1.0, {"record": {"cost_share": share}})])
    (note,) = [note for note in compare(runs).notes if "measuring of tensors" in note]
    assert note == (
        "The steps of 1 run hold the measuring of tensors, up to 127 % of their time, so that ratios of time and "
        "energy are not those of the training alone: set record.tensors = false where they matter (first)."
    )
    assert not any("measuring of tensors" in note for note in compare(runs[:1]).notes), "one run has no ratio"


def test_that_energy_is_that_of_the_time_of_the_run_alone() -> None:
    """A run of 9 s had the energy of 15 s: sensors are read on while precgui measures what ran."""
    trained = [StepDone(n, n * 0.1, 1.0, 1.0, False, 0.1, 1.0, 0.1, 0.0, 10, math.nan) for n in range(1, 31)]
    read = [PowerRead("a", n * 0.5, 100.0, 50.0 * n) for n in range(13)]
    recorded = live_run([*trained, *read, RunEnded(6.0, "completed")])
    assert energy_j(recorded) == pytest.approx(300)


def test_that_figures_of_ended_runs_are_worked_out_once_and_those_that_go_on_each_time() -> None:
    ended, running = live_run([]), live_run([])
    ended.extend([RunEnded(2.0, "completed", "")])
    kept = KeptFigures()
    first = kept.of([ended, running])
    second = kept.of([running, ended])
    assert second[1] is first[0]
    assert second[0] is not first[1]
    assert kept.of([running])[0] is not second[0]  # and the ended one is let go
    assert kept.of([ended])[0] is not first[0]


def loaded(title: str, pressure: float, level: float, precision: str = "fp32", run_id: str = "") -> LiveRun:
    """A run of 60 even steps on a CPU that other programs kept busy for this share of the time."""
    draw = np.random.default_rng(len(title))
    facts = {"device": "cpu", "device_name": "CPU", "threads": 1}
    steps = [
        StepDone(n, n * 0.01, 1.0, 1.0, False, 0.1, 1.0, step_s, 0.0, 10, 1.0, cpu_s=step_s)
        for n, step_s in enumerate(0.01 * level * draw.lognormal(sigma=0.01, size=60), start=1)
    ]
    reads = [HostRead(n * 0.01, 8.0, pressure, 0.0) for n in range(1, 61)]
    config = RunConfig.model_validate({"precision": precision, "title": title})
    made = live_run([RunStarted(0.0, 60, 60, "cpu", facts), *steps, *reads, RunEnded(1.0, "completed")], config)
    made.run_id = run_id or title
    return made


def test_that_runs_at_other_loads_have_no_certain_ratio() -> None:
    """By the steps within the runs 1.7x is sure; runs of the same work at several loads differ as much."""
    alone = compare([loaded("base", 0.0, 1.7), loaded("low", 0.8, 1.0, "bf16-amp")])
    row = alone.runs[1]
    assert row.speedup == pytest.approx(1.7, rel=0.01)
    assert (row.speedup_interval, row.why_no_interval) == (None, "the loads differed")
    assert any("how much that moved the times is not known" in note for note in alone.notes)
    repeated = compare([loaded("base", 0.0, 1.7), loaded("low", 0.8, 1.0, "bf16-amp"), loaded("base 2", 0.8, 1.0)])
    low, high = repeated.runs[1].speedup_interval
    assert low < 1 < high
    same = compare([loaded("base", 0.8, 1.7), loaded("low", 0.8, 1.0, "bf16-amp")]).runs[1]
    assert same.speedup_interval is not None and same.speedup_interval[0] > 1.5


def test_that_a_rounding_twin_is_not_the_default_baseline() -> None:
    twin, plain = run("fp32", 0.1, 0.9, 1.0, 1.0, "twin"), run("fp32", 0.1, 0.9, 1.0, 1.0, "plain")
    twin.config = RunConfig.model_validate({"title": "twin", "train": {"rounding_twin": True}})
    assert compare([twin, plain]).baseline == "plain"
    assert compare([twin, run("bf16-amp", 0.1, 0.9, 1.0, 1.0)]).baseline == "twin"  # there is no other


def test_that_one_reason_is_one_sentence_with_the_names_as_they_are() -> None:
    base = run("fp32", 0.1, 0.92, 1.0, 1.0)
    others = [run("bf16-amp", 0.1, 0.9, 1.0, 1.0, f"s0{n}-mine") for n in range(4)]
    for n, other in enumerate(others):
        changed = {"precision": "bf16-amp", "optimizer": {"lr": 30.0}, "title": f"s0{n}-mine"}
        other.config = RunConfig.model_validate(changed)
    notes = [note for note in compare([base, *others]).notes if "optimizer.lr" in note]
    assert len(notes) == 1
    assert notes[0].endswith("optimizer.lr (30.0, not 0.05) (s00-mine, s01-mine, s02-mine, s03-mine).")


def test_that_copies_of_a_run_are_named() -> None:
    runs = [
        loaded("base", 0.0, 1.0),
        loaded("low", 0.0, 1.0, "bf16-amp"),
        loaded("low again", 0.0, 1.0, "bf16-amp", "low"),
    ]
    assert "Copies of a run that is there, by the run id: 1 run (low again)." in compare(runs).notes


def test_that_another_open_run_changes_the_clock_of_no_pair() -> None:
    pair = [busy_run("fp32", 0.1, 0.02, 0.9), busy_run("bf16-amp", 0.2, 0.01, 0.9)]
    third = run("fp32", 0.1, 0.9, 1.0, 1.0, "no CPU time")
    assert compare([*pair, third]).runs[1].speedup == compare(pair).runs[1].speedup == pytest.approx(2)


def test_that_the_settings_of_each_run_are_read_once_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr(
        "precgui.runs.compare.training_settings", lambda run: read.append(run) or {}
    )  # reading a config costs a millisecond, and the window waits
    runs = [run("fp32", 0.1, 0.9, 100.0, 40.0) for _ in range(6)]
    kept = KeptFigures()
    compare(runs, kept=kept)
    assert len(read) == 6
    compare(runs, kept=kept)
    assert len(read) == 6


def test_that_figures_of_runs_that_were_closed_are_let_go_while_others_are_read() -> None:
    kept = KeptFigures()
    for _ in range(5):
        assert kept.read_ahead([run("fp32", 0.1, 0.9, 100.0, 40.0)], 4) == 0
    assert len(kept._sides) == 1
