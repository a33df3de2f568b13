"""The answer of a study: one recommendation that its lines bear out, and no figure that reads as nothing."""

from dataclasses import replace

import pytest

from precgui.runs.report.content import report_content
from precgui.runs.study.answer import StudyAnswer, answer
from precgui.runs.study.groups import make_study
from precgui.runs.study.run_figures import RunFigures
from precgui.runs.verdict.targets import Targets
from tests.runs.study.sample_runs import arm, figures

SEEDS = [0.90, 0.91, 0.89, 0.92, 0.90]
BASE = arm("fp32", SEEDS)


def _answer(*groups: list[RunFigures], targets: Targets | None = None) -> StudyAnswer:
    runs = [run for group in groups for run in group]
    return answer(make_study(runs, targets=targets or Targets()))


def _line(answered: StudyAnswer, begin: str) -> str:
    return next(line for line in answered.lines if line.startswith(begin))


def _failed(run: RunFigures) -> RunFigures:
    return replace(run, came_through=False, why_failed="its last validation loss is not finite", metric_value=None)


def test_that_a_baseline_that_fails_is_not_recommended() -> None:
    base = [*map(_failed, BASE[:2]), *BASE[2:]]
    answered = _answer(base, arm("bf16-amp", SEEDS))
    assert answered.text == (
        "Not decided: the baseline fp32 itself failed in 2 of 5 runs, so that staying with it is no safe choice. "
        "bf16-amp came through in all runs."
    )
    assert "bf16-amp: 0 of 5 failed: less than 45 %; fp32: 2 of 5 failed" in _line(answered, "Failures")


def test_that_a_mean_over_the_runs_of_a_baseline_that_came_through_flatters_it_and_is_withheld() -> None:
    study = make_study([_failed(BASE[0]), *BASE[1:], *arm("bf16-amp", SEEDS)])
    assert study.groups[1].metrics["metric"].withheld.startswith("1 of 5 runs of the baseline failed")


def test_that_an_open_speed_is_told_beside_a_saving() -> None:
    noisy = arm("bf16-amp", SEEDS, memory_bytes=580.0)
    noisy = [replace(run, step_s=0.010 * f) for run, f in zip(noisy, (0.7, 1.4, 0.9, 1.2, 0.8), strict=True)]
    answered = _answer(BASE, noisy)
    assert answered.text.startswith("Use bf16-amp here.")
    assert answered.text.endswith("it saves 42 % of the memory. Whether it is faster or slower was not shown.")
    assert "(94.12 %), 5 pairs; target 2x" in _line(answered, "Time")


def test_that_a_saving_below_its_target_is_no_recommendation() -> None:
    answered = _answer(BASE, arm("bf16-amp", SEEDS, memory_bytes=900.0))
    assert answered.text.startswith("Stay with fp32 here.")
    assert "saves 10 % of the memory, less than the target" in answered.text
    assert "target 70 %: missed" in _line(answered, "Memory")


def test_that_the_memory_of_one_step_is_one_measurement() -> None:
    once = {"memory_of_one_step": True}
    runs = [*arm("fp32", SEEDS, **once), *arm("bf16-amp", SEEDS, memory_bytes=580.0, **once)]
    study = make_study(runs)
    verdict, figure = study.groups[1].verdicts["memory_saved"], study.groups[1].metrics["memory_bytes"]
    assert (verdict.verdict, verdict.n, verdict.ci) == ("met", 1, None)
    assert (figure.n, figure.sd, figure.ci95, figure.ratio_ci95) == (1, None, None, None)
    rows = dict(report_content(study, runs, title="", command="").rows)
    assert rows["peak memory"][1].endswith("(of one measured step)")
    assert "58 % of the baseline's, of one measured step" in _line(answer(study), "Memory")


@pytest.mark.parametrize(("change", "text"), [(-0.00000123, "-0.000123"), (0.0, "0.00")])
def test_that_no_difference_reads_as_zero_unless_it_is_zero(change: float, text: str) -> None:
    shifts = (0.9, 1.0, 1.1, 1.05, 0.95)
    other = arm("bf16-amp", [value + change * s for value, s in zip(SEEDS, shifts, strict=True)])
    exact = [replace(r, work=replace(r.work, data={})) for r in (*BASE, *other)]  # no grain
    study = make_study(exact)
    assert f"changes by {text} points [" in _line(answer(study), "Accuracy")
    rows = dict(report_content(study, exact, title="", command="").rows)
    assert rows["Accuracy against it (95 % interval)"][1].startswith(f"{text} points [")


def test_that_both_intervals_of_a_difference_carry_their_levels() -> None:
    runs = [*BASE, *arm("bf16-amp", [value - 0.001 for value in SEEDS])]
    content = report_content(make_study(runs), runs, title="", command="")
    assert "(94.12 %)" in content.answer_lines[1]
    assert any("(95 % interval)" in label for label, _ in content.rows)
    detail = next(line.detail for line in content.verdicts if line.target == "Loss of the metric")
    assert "(94.12 %)" in detail


def test_that_one_seed_of_each_decides_nothing() -> None:
    answered = _answer(BASE[:1], arm("bf16-amp", SEEDS[:1], memory_bytes=100.0))
    assert answered.text.startswith("Not decided: one seed of each")
    assert "target" not in _line(answered, "Failures")


def test_that_a_baseline_of_which_only_a_twin_ended_is_said_to_be_missing() -> None:
    twin = replace(BASE[0], kind="twin", name="twin")
    assert _answer([twin], arm("bf16-amp", SEEDS)).text == (
        "No run of the baseline fp32 has ended: nothing was compared yet."
    )


def test_that_a_skew_that_is_seen_stands_in_the_line_of_the_figure() -> None:
    skewed = [value + change for value, change in zip(SEEDS, (0.0, -0.004, -0.003, 0.05, -0.001), strict=True)]
    answered = _answer(BASE, arm("bf16-amp", skewed))
    assert "the differences are skewed" in _line(answered, "Accuracy")


def test_that_a_metric_that_one_side_of_a_pair_lacks_is_withheld_with_its_run() -> None:
    other = arm("bf16-amp", SEEDS)
    other[1] = replace(other[1], metric_value=None)
    group = make_study([*BASE, *other]).groups[1]
    assert group.metrics["metric"].withheld == "no value was measured in s02-bf16-amp"
    assert figures("a", 1).why_failed == ""


def test_that_an_arm_stands_beside_its_own_baseline_where_a_field_was_varied() -> None:
    failing = [*map(_failed, arm("fp32 lr=9", SEEDS)[:2]), *arm("fp32 lr=9", SEEDS)[2:]]
    groups = [failing, arm("bf16 lr=9", SEEDS), arm("fp32 lr=1", SEEDS), arm("bf16 lr=1", SEEDS, memory_bytes=500.0)]
    runs = [run for group in groups for run in group]
    answered = answer(make_study(runs, baseline_of={run.group: run.group.replace("bf16", "fp32") for run in runs}))
    assert answered.text.startswith("Use bf16 lr=1 here. Against fp32 lr=1,")
    assert answered.lines[0] == "bf16 lr=1 beside fp32 lr=1:"
    assert "fp32 lr=1: 0 of 5 failed" in _line(answered, "Failures")


def test_that_one_failed_run_is_no_reason_to_stay_with_the_baseline() -> None:
    one, three = (
        _answer(BASE[:n], arm("bf16-amp", SEEDS[:n]), [_failed(run) for run in arm("fp16-amp", SEEDS[:n])])
        for n in (1, 3)
    )
    assert one.text.startswith("Not decided.") and three.text.startswith("Stay with fp32 here.")
