"""Domination: surely where intervals lie apart, perhaps by the means, never for emulated groups."""

from precgui.runs.study.groups import make_study
from precgui.runs.study.pareto import dominated
from tests.runs.study.sample_runs import arm

HIGH, LOW = [0.90, 0.91, 0.89, 0.92, 0.90], [0.70, 0.71, 0.69, 0.72, 0.70]


def test_that_a_group_that_is_worse_in_both_is_surely_dominated() -> None:
    runs = [*arm("fp32", HIGH), *arm("int2-qat", LOW, memory_bytes=2000.0), *arm("bf16-amp", LOW, memory_bytes=10.0)]
    assert dominated(make_study(runs), "memory_bytes") == {"fp32": "no", "int2-qat": "surely", "bf16-amp": "no"}


def test_that_overlapping_intervals_leave_it_at_perhaps() -> None:
    near = [value - 0.001 for value in HIGH]
    runs = [*arm("fp32", HIGH), *arm("bf16-amp", near, memory_bytes=2000.0)]
    assert dominated(make_study(runs), "memory_bytes") == {"fp32": "no", "bf16-amp": "perhaps"}


def test_that_emulated_groups_and_unknown_costs_are_left_out() -> None:
    runs = [*arm("fp32", HIGH), *arm("fp8", LOW, emulated="in FP32")]
    assert dominated(make_study(runs), "memory_bytes") == {"fp32": "no"}
    assert dominated(make_study(runs), "joules_per_sample") == {}
