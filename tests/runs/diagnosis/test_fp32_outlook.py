"""A step that FP32 holds does not prove that the training goes on in FP32."""

from __future__ import annotations

import math
from typing import Any

import pytest

from precgui.events import Event
from precgui.runs.diagnosis import Finding, diagnose
from tests.runs.diagnosis.hand_made import FALLING, run_of, steps, tensors

NAN_AT_10 = [*steps([*FALLING[:9], math.nan]), tensors(10, "activation", {"a": {"amax": 2.5}, "b": {"nan": 3.0}})]
LOSS_AT_10 = [*steps([*FALLING[:9], math.inf]), tensors(10, "activation", {"a": {"amax": 2.5}, "b": {"amax": 2.5}})]


def first(events: list[Event], optimizer: str, precision: str = "fp16-amp", **facts: Any) -> Finding:
    return diagnose(run_of(events, precision, recorder={"optimizers": [{"name": optimizer}]}, **facts))[0]


@pytest.mark.parametrize(
    ("optimizer", "largest", "blame"),
    [("SGD", 9e3, True), ("SGD", 3e4, None), ("Adam", 3e4, True), ("Adam", 3e6, None)],
)
def test_that_outputs_too_large_for_any_training_leave_it_undecided(
    optimizer: str, largest: float, blame: bool | None
) -> None:
    row = {"step": 10, "finite": True, "module": "b", "part": "forward", "why": "", "largest": largest}
    found = first(NAN_AT_10, optimizer, fp32_repetition={**row, "all": [row]})
    assert found.precision_is_to_blame is blame
    assert any("may diverge in FP32, too" in each.text for each in found.evidence) is (blame is None)
    assert (found.needs == "the same run in fp32") is (blame is None)


@pytest.mark.parametrize(
    ("optimizer", "exact", "value", "blame"),
    [("SGD", 3.0, 1e8, True), ("SGD", 1e7, 1e8, None), ("SGD", None, 1e8, None), ("SGD", None, 1e5, True),
     ("Adam", 1e7, 1e8, True)],
)  # fmt: skip
def test_that_a_loss_too_large_for_steps_in_proportion_to_it_leaves_it_undecided(
    optimizer: str, exact: float | None, value: float, blame: bool | None
) -> None:
    lost = {"use": "loss", "kind": "overflow", "made_by": "exp", "made_in": None, "operation": "sum", "format": "fp16",
            "value": value, "module": None, "line": "", "step": 10}  # fmt: skip
    beside = {"step": 10, "finite": False, "finite_in_fp64": True, "loss_fp64": exact}
    rows = [beside] if exact is not None else []
    found = first(LOSS_AT_10, optimizer, finite_in_fp32={"all": [lost]}, exact_steps={"all": rows})
    assert (found.rule, found.precision_is_to_blame) == ("forward-overflow", blame)


@pytest.mark.parametrize(("norm", "told"), [(1e-7, True), (1e-3, False), (math.nan, False), (0.0, False)])
def test_that_steps_too_small_for_any_format_are_told_from_those_that_rounding_takes(norm: float, told: bool) -> None:
    events: list[Event] = [*steps([2.0] * 60)]
    for step in range(1, 60):
        events += [
            tensors(step, "update", {"a": {"changed": 0.0, "l2": 0.0, "amax": 0.0}}),
            tensors(step, "weight", {"a": {"l2": 10.0, "rms": 1.0, "amax": 2.0}}),
            tensors(step, "gradient", {"a": {"l2": 1.0, "rms": 0.1, "amax": 1.0}}),
        ]
    update = {"finite": True, "finite_in_fp64": True, "norm": norm}
    found = first(events, "SGD", "bf16-pure", exact_steps={"all": [{"step": 8, "updates": update}]})
    assert (found.rule, found.precision_is_to_blame) == ("stagnation", not told)
    assert found.title.startswith("The steps are too small to learn anything in any format") is told
