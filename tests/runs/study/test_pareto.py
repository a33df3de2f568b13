"""Domination: surely where intervals lie apart, perhaps by the means, never for emulated groups."""

from precgui.runs.study.groups import make_study
from precgui.runs.study.pareto import dominated
from tests.runs.study.sample_runs import arm

HIGH, LOW = [0.90, 0.91, 0.89, 0.92, 0.90], [0.70, 0.71, 0.69, 0.72, 0.70]


def test_that_a_group_that_is_worse_in_both_is_surely_dominated() -> None:
    runs = [*arm("fp32", HIGH), *arm("int2-qat", LOW, memory_bytes=2000.0), *arm("bf16-amp", LOW, memory_bytes=10.0)]
    assert dominated(make_study(runs), "memory_bytes") == {"fp32": "no", "int2-qat": "surely", "bf16-amp": "no"}


def test_that_pairs_that_all_differ_are_surely_dominated_though_intervals_overlap() -> None:
    lower = [value - change for value, change in zip(HIGH, (0.009, 0.010, 0.011, 0.010, 0.009), strict=True)]
    runs = [*arm("fp32", HIGH), *arm("bf16-amp", lower, memory_bytes=2000.0)]
    study = make_study(runs)
    own, best = (next(g for g in study.groups if g.group == name).metrics["metric"] for name in ("bf16-amp", "fp32"))
    assert own.ci95 is not None and best.ci95 is not None and own.ci95[1] > best.ci95[0]
    assert dominated(study, "memory_bytes")["bf16-amp"] == "surely"


def test_that_differences_below_the_grain_or_of_both_signs_leave_it_at_perhaps() -> None:
    near = [value - change for value, change in zip(HIGH, (0.02, -0.01, 0.02, -0.01, 0.01), strict=True)]
    runs = [*arm("fp32", HIGH), *arm("bf16-amp", near, memory_bytes=2000.0)]
    assert dominated(make_study(runs), "memory_bytes") == {"fp32": "no", "bf16-amp": "perhaps"}


def test_that_emulated_groups_and_unknown_costs_are_left_out() -> None:
    runs = [*arm("fp32", HIGH), *arm("fp8", LOW, emulated="in FP32")]
    assert dominated(make_study(runs), "memory_bytes") == {"fp32": "no"}
    assert dominated(make_study(runs), "joules_per_sample") == {}
