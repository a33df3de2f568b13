"""Groups of runs judged: pairs, what is withheld, failures, twins, times, several baselines, the answer."""

import json
from dataclasses import asdict, replace

import pytest

from precgui.config import ModelConfig, RunConfig
from precgui.events import Metric
from precgui.gui.panels.compare.group_rows import group_row
from precgui.runs.figures import FIGURES, study_figures
from precgui.runs.report.content import report_content
from precgui.runs.report.group_table import speed_or_share
from precgui.runs.study.answer import answer
from precgui.runs.study.groups import make_study
from precgui.runs.study.result import Study
from precgui.runs.verdict.interim_analyses import InterimAnalyses
from precgui.runs.verdict.targets import Targets
from tests.runs.study.sample_runs import arm, figures

SEEDS = [0.90, 0.91, 0.89, 0.92, 0.90]
BASE = arm("fp32", SEEDS)


def _study(*runs: list, **options: object) -> Study:  # type: ignore[type-arg]
    return make_study([run for group in runs for run in group], **options)


def _verdict(study: Study, group: str, target: str) -> str:
    return next(g for g in study.groups if g.group == group).verdicts[target].verdict


def test_that_seed_noise_common_to_both_is_no_obstacle() -> None:
    near = [value + 0.0005 * way for value, way in zip(SEEDS, (1, -1, 0, 1, -1), strict=True)]
    study = _study(BASE, arm("bf16-amp", near))
    assert _verdict(study, "bf16-amp", "accuracy_lost") == "met"
    figure = study.groups[1].metrics["metric"]
    assert figure.n == 5
    assert figure.sd == pytest.approx(0.0114, abs=1e-3)
    low, high = figure.difference_ci95
    assert high - low < 0.003


def test_that_runs_are_paired_by_seed_whatever_their_order() -> None:
    other = arm("bf16-amp", [value - 0.02 for value in SEEDS])
    study = _study(BASE, other[::-1])
    figure = study.groups[1].metrics["metric"]
    assert figure.difference == pytest.approx(-0.02)
    assert _verdict(study, "bf16-amp", "accuracy_lost") == "missed"
    assert _study(BASE[:4], other).groups[1].verdicts["accuracy_lost"].n == 4


@pytest.mark.parametrize(
    ("work", "told"),
    [
        ({"config": RunConfig(task="mnist")}, "another task: mnist, not digits"),
        ({"config": RunConfig(model=ModelConfig(size="large"))}, "another model size: large, not small"),
        ({"data": {"validation_samples": 7}}, "other data: validation_samples"),
        ({"metric": Metric("f1", "F1", "f")}, "another metric: F1, not Accuracy"),
        ({"samples_per_step": 32}, "another batch: 32 samples a step, not 64"),
        ({"steps": 50}, "other steps: 50, not 100"),
        ({"weights_sha256": "deadbeef99"}, "other start weights: deadbeef, not 1"),
    ],
)
def test_that_nothing_is_compared_that_cannot_be(work: dict[str, object], told: str) -> None:
    other = [replace(run, work=replace(run.work, **work)) for run in arm("bf16-amp", SEEDS)]
    group = _study(BASE, other).groups[1]
    for name in ("metric", "step_s", "memory_bytes"):
        figure = group.metrics[name]
        assert (figure.withheld, figure.difference, figure.ratio) == (told, None, None)
    assert group.verdicts["accuracy_lost"].text == f"not measurable: {told}"
    assert group.metrics["metric"].mean is not None  # its own figures stay


def test_that_emulated_arms_have_no_speed_memory_or_energy() -> None:
    fast = {"step_s": 0.001, "memory_bytes": 10.0, "joules_per_sample": 0.1}
    study = _study(arm("fp32", SEEDS, joules_per_sample=1.0), arm("fp8", SEEDS, emulated="in FP32", **fast))
    for target in ("speedup", "memory_saved", "energy_saved"):
        assert study.groups[1].verdicts[target].text == "not measurable: emulated here"
    assert _verdict(study, "fp8", "accuracy_lost") == "met"
    assert "Stay with fp32" in answer(study).text


def test_that_another_machine_or_thread_count_withholds_times_only() -> None:
    for change, told in (({"host": "other"}, "another machine"), ({"threads": 4}, "another number of threads")):
        group = _study(BASE, arm("bf16-amp", SEEDS, **change)).groups[1]
        assert told in group.metrics["step_s"].withheld
        assert group.metrics["metric"].difference == 0


def test_that_failures_enter_no_mean_and_are_counted() -> None:
    failed = replace(figures("fp8", 5), status="failed", came_through=False, metric_value=None)
    group = _study(BASE, [*arm("fp8", SEEDS[:4]), failed]).groups[1]
    assert (group.n, group.failed, group.success) == (4, 1, "1 of 5 failed: 1 to 72 %")
    assert group.metrics["metric"].mean == pytest.approx(0.905)
    assert group.verdicts["failures"].verdict == "missed"
    assert "1 of 5 runs failed" in group.verdicts["accuracy_lost"].why


def test_that_a_stopped_run_is_no_failure() -> None:
    stopped = replace(figures("bf16-amp", 5), status="stopped", came_through=False)
    group = _study(BASE, [*arm("bf16-amp", SEEDS[:4]), stopped]).groups[1]
    assert (group.n, group.failed) == (4, 0)


def test_that_a_difference_inside_the_twins_is_called_rounding() -> None:
    twins = [replace(run, kind="twin", metric_value=run.metric_value + 0.004) for run in BASE[:3]]
    study = _study([*BASE, *twins], arm("bf16-amp", [value + 0.002 for value in SEEDS]), arm("e5m2", [0.8] * 5))
    assert (study.twin.n, study.twin.largest["metric"]) == (3, pytest.approx(0.004))
    assert [group.metrics["metric"].within_rounding for group in study.groups] == [None, True, False]
    assert study.groups[0].n == 5  # a twin is no run of its group


def test_that_times_are_of_the_cpu_where_it_is_busy_and_of_rounds_where_there_are_some() -> None:
    slow = {"pressure": 0.8, "step_s": 0.5}
    study = _study(arm("fp32", SEEDS, **slow), arm("bf16-amp", SEEDS, **{**slow, "step_s": 0.1}))
    assert "CPU times" in study.notes[0]
    assert study.groups[1].verdicts["speedup"].value == pytest.approx(1.0)
    rounds = [
        replace(run, kind="timing", order=number, step_s=run.step_s / speed)
        for number in range(1, 9)
        for run, speed in ((BASE[0], 1.0), (figures("bf16-amp", 1), 3.0 + number / 100))
    ]
    verdict = _study([*BASE, *rounds[::2]], [*arm("bf16-amp", SEEDS), *rounds[1::2]]).groups[1].verdicts["speedup"]
    assert (verdict.verdict, verdict.n) == ("met", 8)


def test_that_times_which_hold_the_measuring_of_tensors_say_so() -> None:
    study = _study(BASE, arm("bf16-amp", SEEDS, record_share=0.3))
    (note,) = [note for note in study.notes if "measuring of tensors" in note]
    assert "The steps of 5 runs hold the measuring of tensors, up to 30 % of their time" in note


def test_that_a_shorter_step_is_a_speed_up_above_one_wherever_it_stands() -> None:
    runs = [*BASE, *arm("bf16-amp", SEEDS, step_s=0.005, memory_bytes=500.0)]
    study = _study(runs)
    figure = study.groups[1].metrics
    assert speed_or_share(figure["step_s"], FIGURES["step_s"])[0] == pytest.approx(2.0)
    assert speed_or_share(figure["memory_bytes"], FIGURES["memory_bytes"])[0] == pytest.approx(0.5)
    assert study.groups[1].verdicts["speedup"].value == pytest.approx(2.0)
    rows = dict(report_content(study, runs, title="", command="").rows)
    assert rows["speed-up in step time (95 % interval)"][1].startswith("2.00x")


def test_that_each_variation_has_its_own_baseline() -> None:
    names = [f"{precision} lr={lr}" for lr in (1, 2) for precision in ("fp32", "tf32")]
    groups = [arm(name, [0.87 if name.endswith("2") else 0.9] * 5) for name in names]
    study = _study(*groups, baseline_of={name: name.replace("tf32", "fp32") for name in names})
    assert [group.metrics["metric"].difference for group in study.groups] == [None, 0, None, 0]


def test_that_an_unknown_baseline_is_told_with_the_groups() -> None:
    with pytest.raises(ValueError, match="no group is called fp64; the groups are fp32, tf32"):
        _study(BASE, arm("tf32", SEEDS), baseline="fp64")
    assert _study(BASE, arm("tf32", SEEDS), baseline="tf32").groups[0].baseline == "tf32"


def test_that_one_seed_is_no_measurement_of_accuracy_and_two_are_undecided() -> None:
    one = _study(BASE[:1], arm("bf16-amp", SEEDS[:1])).groups[1].verdicts
    assert one["accuracy_lost"].text == "not measurable: one seed: not a measurement of accuracy"
    assert one["memory_saved"].verdict == "missed"  # a peak does not depend on the seed
    two = _study(BASE[:2], arm("bf16-amp", SEEDS[:2])).groups[1].verdicts
    assert two["accuracy_lost"].text == "undecided: about 3 more seeds"


def test_that_a_study_is_plain_data() -> None:
    study = _study(BASE, arm("bf16-amp", SEEDS))
    tree = json.loads(json.dumps(asdict(study), allow_nan=False))
    assert tree["groups"][1]["verdicts"]["accuracy_lost"]["verdict"] == "met"


def test_that_the_answer_names_the_arm_its_cost_and_its_saving() -> None:
    small = arm("bf16-amp", [value - 0.001 for value in SEEDS], memory_bytes=600.0, step_s=0.004, cpu_s=0.004)
    answered = answer(_study(BASE, small, arm("int2-qat", [0.7] * 5)))
    text = answered.text
    assert text.startswith("Use bf16-amp here. Against fp32, accuracy changes by -0.100 points")
    assert "2.50x as fast" in text
    assert "40 % of the memory" in text
    assert any("bf16-amp: 0 of 5 failed: less than 45 %; fp32: 0 of 5" in line for line in answered.lines)
    worse = answer(_study(BASE, arm("int2-qat", [0.7] * 5))).text
    assert worse.startswith("Stay with fp32 here. int2-qat misses the target: accuracy changes by -20.40 points")


def test_that_a_saving_that_costs_time_is_no_reason_to_change() -> None:
    slow = arm("bf16-amp", SEEDS, memory_bytes=730.0, step_s=0.060, cpu_s=0.060)
    enough = Targets(memory_saved=0.2)
    text = answer(_study(BASE, slow, targets=enough)).text
    assert text.startswith(
        "Stay with fp32 here. bf16-amp saves 27 % of the memory, but takes 6.00x the time [6.00, 6.00]"
    )
    assert "no saving" not in text
    faster = arm("fp16-amp", SEEDS, memory_bytes=700.0)
    assert answer(_study(BASE, slow, faster, targets=enough)).text.startswith("Use fp16-amp here.")


def test_that_targets_and_looks_are_obeyed() -> None:
    tolerant = _study(BASE, arm("bf16-amp", [value - 0.02 for value in SEEDS]), targets=Targets(accuracy_lost=0.05))
    assert _verdict(tolerant, "bf16-amp", "accuracy_lost") == "met"
    late = _study(BASE, arm("bf16-amp", SEEDS), looks=InterimAnalyses((8,)))
    assert late.groups[1].verdicts["accuracy_lost"].text == "undecided: about 3 more seeds"
    off = _study(BASE, arm("bf16-amp", SEEDS), targets=Targets(speedup=None, failures=None))
    assert {"speedup", "failures"} & off.groups[1].verdicts.keys() == set()


def test_that_a_group_whose_baseline_has_no_ended_run_is_shown_without_a_verdict() -> None:
    study = _study(arm("bf16-amp", SEEDS), baseline_of={"bf16-amp": "fp32"})
    (group,) = study.groups
    assert group.baseline == "fp32"
    assert group.n == 5
    compared = {name: verdict.verdict for name, verdict in group.verdicts.items() if name != "failures"}
    assert set(compared.values()) == {"not measurable"}
    assert answer(study).text == "No run of the baseline fp32 has ended: nothing was compared yet."
    assert report_content(study, arm("bf16-amp", SEEDS), title="", command="").answer


def test_that_the_interval_of_a_share_is_cut_to_the_possible_range_and_says_so() -> None:
    study = _study(arm("fp32", [0.999, 0.97, 1.0, 0.999, 0.99]), arm("bf16-amp", SEEDS))
    high, usual = (group.metrics["metric"] for group in study.groups)
    assert high.ci95 is not None and high.ci95[1] == 1.0 and high.cut
    assert usual.ci95 is not None and usual.ci95[1] < 1.0 and not usual.cut
    loss = [replace(run, val_loss=run.seed - 3.0) for run in arm("fp32", SEEDS)]  # a loss may be below 0
    assert not _study(loss, arm("bf16-amp", SEEDS)).groups[0].metrics["val_loss"].cut
    metric = study_figures({"name": "a", "title": "Accuracy", "about": "a", "unit": "%"})[0]
    assert group_row(study.groups[0], metric, study)[3].endswith("to 100.00 (cut to the possible range)")
