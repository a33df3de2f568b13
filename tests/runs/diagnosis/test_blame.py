"""NaN in 16 bits is no proof: precision is to blame, or not, only where something decides it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from precgui.events import Event, Incident, ModelDescribed, ModuleInfo, ParameterInfo
from precgui.runs.diagnosis import Blame, Finding, as_json, diagnose
from tests.runs.diagnosis.hand_made import FALLING, run_of, steps, tensors

NAN_AT_10 = [*FALLING[:9], math.nan]


def first(events: list[Event], precision: str = "fp32", **facts: Any) -> Finding:
    return diagnose(run_of(events, precision, **facts))[0]


def repetition(finite: bool | None) -> dict[str, Any]:
    own = {"step": 10, "finite": finite, "module": "b", "part": "forward", "why": "", "largest": 9e3}
    return {"fp32_repetition": {**own, "all": [own]}}


@pytest.mark.parametrize(
    ("precision", "finite", "blame", "certainty"),
    [
        ("fp32", None, False, "exact"), ("bf16-amp", None, None, "estimate"), ("fp16-amp", None, None, "estimate"),
        ("bf16-amp", True, True, "exact"), ("fp16-amp", True, True, "exact"), ("bf16-amp", False, False, "exact"),
    ],
)  # fmt: skip
def test_that_nan_in_16_bits_is_decided_only_by_a_repetition_in_fp32(
    precision: str, finite: bool | None, blame: bool | None, certainty: str
) -> None:
    events = [
        *steps(NAN_AT_10),
        tensors(10, "activation", {"a": {"amax": 2.5}, "b": {"nan": 3.0, "amax": 1.5}, "c": {"nan": 9.0}}),
    ]
    found = first(events, precision, **repetition(finite))
    assert (found.rule, found.module) == ("undefined-operation", "b")
    assert (found.precision_is_to_blame, found.certainty) == (blame, certainty)
    assert bool(found.needs) is (blame is None)


@pytest.mark.parametrize("finite", [True, False])
def test_that_inputs_are_not_blamed_for_what_is_finite_in_fp32(finite: bool) -> None:
    """The model may compute in 16 bits before its first module."""
    kind = "torch.nn.modules.linear.Linear"
    modules = ModelDescribed(0.0, (ModuleInfo("a", kind, 0), ModuleInfo("b", kind, 1)), ())
    events = [modules, *steps(NAN_AT_10), tensors(10, "activation", {"a": {"nan": 3.0}, "b": {"nan": 3.0}})]
    found = first(events, "bf16-amp", **repetition(finite))
    assert (found.rule, found.precision_is_to_blame) == (
        ("undefined-operation", True) if finite else ("data-not-finite", False)
    )
    assert ("before a make NaN or Inf" in found.title) is finite


@pytest.mark.parametrize(("operation", "blame"), [({"fp16": 1}, None), ({"fp32": 1}, False)])
def test_that_a_loss_of_nan_is_undecided_where_operations_ran_in_16_bits(
    operation: dict[str, int], blame: bool | None
) -> None:
    events = [*steps(NAN_AT_10), tensors(10, "activation", {"a": {"amax": 2.5}})]
    found = first(events, census={"operations": {"log": operation, "mm": {"fp32": 1}}})
    assert (found.rule, found.precision_is_to_blame) == ("undefined-operation", blame)
    assert ("outputs.float()" in found.fix) is (blame is None)


@pytest.mark.parametrize("infinite", [True, False])
def test_that_operations_of_the_model_itself_are_named_as_the_events_do(infinite: bool) -> None:
    bad = {"pos_inf": 3.0, "neg_inf": 3.0, "amax": 60_000.0} if infinite else {"nan": 3.0, "amax": 2.0}
    report = "the loss is not finite; the first output that is not finite is that of (model)"
    events = [
        *steps(NAN_AT_10),
        Incident(2.0, 10, "nonfinite_loss", "error", report, "(model)"),
        tensors(10, "activation", {"fc": {"amax": 2.5}, "norm": {"amax": 1.5}, "(model)": bad}),
    ]
    found = first(events, "fp16-amp")
    assert "the model" in found.title.lower()
    assert "finite outputs" not in found.title
    assert (found.rule, found.precision_is_to_blame) == (
        ("forward-overflow", True) if infinite else ("undefined-operation", None)
    )


def test_that_a_report_without_a_module_says_that_the_loss_is_at_fault() -> None:
    events = [
        *steps([*FALLING[:9], math.inf, math.nan, math.nan]),
        Incident(2.0, 10, "nonfinite_loss", "error", "the loss is not finite", ""),
        tensors(4, "activation", {"fc": {"amax": 2.5}}),
    ]
    found = first(events)
    assert found.title.startswith("The loss function returns inf in step 10")


@pytest.mark.parametrize(("kind", "rule"), [("own.WeightNorm", "undefined-operation"),
                                            ("torch.nn.modules.linear.Linear", "data-not-finite")])  # fmt: skip
def test_that_the_first_module_of_a_class_of_ones_own_may_itself_be_at_fault(kind: str, rule: str) -> None:
    weight = ParameterInfo("fc.v", "parameter", "fp32", (4, 4), True, True)
    events = [
        *steps(NAN_AT_10),
        tensors(10, "activation", {"fc": {"nan": 2.0, "amax": 2.5}, "head": {"nan": 9.0}}),
        ModelDescribed(0.0, (ModuleInfo("fc", kind, 0), ModuleInfo("head", kind, 1)), (weight,)),
    ]
    found = first(events, "fp16-amp")
    assert (found.rule, found.module, found.precision_is_to_blame) == (rule, "fc", None)


@pytest.mark.parametrize(("signs", "rule"), [(("pos_inf", "neg_inf"), "forward-overflow"),
                                             (("pos_inf",), "undefined-operation")])  # fmt: skip
def test_that_inf_of_one_sign_may_be_a_division_by_zero_in_fp16_too(signs: tuple[str, ...], rule: str) -> None:
    modules = (ModuleInfo("a", "torch.nn.modules.linear.Linear", 0), ModuleInfo("b", "own.Ratio", 1))
    events = [
        *steps(NAN_AT_10),
        tensors(10, "activation", {"a": {"amax": 2.5}, "b": {**dict.fromkeys(signs, 3.0), "amax": 1.5}}),
        ModelDescribed(0.0, modules, ()),
    ]
    found = first(events, "fp16-amp")
    assert (found.rule, found.certainty) == (rule, "estimate")
    assert found.precision_is_to_blame is (True if rule == "forward-overflow" else None)


@pytest.mark.parametrize(("seen", "hint"), [("log", "logarithm"), ("div", "division"), ("acos", "cosine")])
def test_that_the_fix_names_the_operations_that_ran_in_16_bits_and_no_others(seen: str, hint: str) -> None:
    events = [*steps(NAN_AT_10), tensors(10, "activation", {"a": {"amax": 2.5}, "b": {"nan": 3.0, "amax": 1.5}})]
    fix = first(events, census={"operations": {seen: {"bf16": 1}, "sqrt": {"fp32": 3}, "mm": {"bf16": 1}}}).fix
    assert hint in fix
    assert not any(other in fix for other in ("logarithm", "division", "cosine", "root") if other != hint)


def test_that_blame_begins_undecided_and_needs_a_proof() -> None:
    found = Finding("x", "error", "x", 1, 2, (), "", 1.0, "")
    assert found.precision_is_to_blame is None and as_json(found)["blame_proof"] == ""
    for answer in (True, False):
        with pytest.raises(ValueError, match="proof"):
            Blame(answer)
    with pytest.raises(ValueError, match="proof"):
        Blame(None, "a proof of nothing")


@pytest.mark.parametrize("precision", ["fp32", "bf16-amp", "fp16-amp"])
def test_that_a_symptom_is_no_matter_of_formats_only_in_fp32(precision: str) -> None:
    dead = {"a": {"amax": 1.0, "zeros": 0.0}, "b": {"amax": 0.0, "zeros": 1e9}}
    events = [*steps(FALLING[:1] * 40), *(tensors(n, "activation", dead) for n in (10, 20, 30, 40))]
    found = next(each for each in diagnose(run_of(events, precision)) if each.rule == "dead-units")
    assert found.precision_is_to_blame is (False if precision == "fp32" else None)
    assert bool(found.blame.proof) is (precision == "fp32") and bool(found.needs) is (precision != "fp32")


@pytest.mark.parametrize("blame", [True, None])
def test_that_the_line_whose_derivative_only_16_bits_break_is_named(blame: bool | None) -> None:
    n = 20
    scales = [2.0 ** (16 - place) for place in range(n)]
    events = [
        *steps([2.0] * n, scale=scales, skipped=[1.0] * n, grad_norm=[math.nan] * n),
        *(Incident(0.1, step, "nonfinite_gradient", "warning", "gradients", "a.weight") for step in range(1, n + 1)),
    ]
    place = {"operation": "mul.Tensor", "module": "a", "line": "a.py:3", "backward": True}
    cause = {"blame": blame, "message": "mul at a.py:3 (backward) gave NaN or Inf", "first_nonfinite": place}
    row = {"step": 1, "finite": False, "finite_in_fp64": True, "cause": cause}
    found = first(events, "fp16-amp", exact_steps={"all": [row]})
    assert ("the derivative of the operation at a.py:3 is not finite in step 1" in found.title) is (blame is True)
    assert found.precision_is_to_blame is blame
    assert found.fix.startswith("Compute this line in FP32") is (blame is True)
