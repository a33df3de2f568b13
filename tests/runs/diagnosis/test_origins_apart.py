"""Causes told apart: the depth from the range, one batch from the rate, operations between modules from the modules."""

from __future__ import annotations

import math

import pytest

from precgui.events import Event, Incident, ModelDescribed, ModuleInfo, ParameterInfo
from precgui.runs.diagnosis import examine
from precgui.runs.diagnosis.findings import Finding
from tests.runs.diagnosis.hand_made import FALLING, run_of, steps, tensors

LINEAR = "torch.nn.modules.linear.Linear"
FLAT = [2.0] * 60


def described(*modules: tuple[str, str]) -> ModelDescribed:
    weights = tuple(ParameterInfo(f"{name}.weight", "parameter", "fp32", (8, 8), True, True, 1)
                    for name, kind in modules if kind == LINEAR)  # fmt: skip
    return ModelDescribed(0.0, tuple(ModuleInfo(name, kind, i) for i, (name, kind) in enumerate(modules)), weights)


def problems(events: list[Event], precision: str = "fp32", **environment: object) -> dict[str, Finding]:
    return {each.rule: each for each in examine(run_of(events, precision, **environment)).problems}


@pytest.mark.parametrize(("fall", "blame"), [(64.0, None), (1.0, True)])
def test_that_gradients_that_vanish_with_the_depth_are_not_put_down_to_fp16(fall: float, blame: bool | None) -> None:
    events: list[Event] = [described(*((str(i), LINEAR) for i in range(10))), *steps(FLAT)]
    for step in range(1, 60, 3):
        sizes = [0.0] * 5 + [2.0**-24 * fall**i for i in range(5)]
        rows = {f"{i}.weight": {"rms": x, "l2": 10 * x, "amax": 2 * x, "amin_nonzero": x or math.inf}
                for i, x in enumerate(sizes)}  # fmt: skip
        events.append(tensors(step, "gradient", rows))
    found = problems(events, "fp16-amp")["gradient-underflow"]
    assert found.precision_is_to_blame is blame
    if blame is None:
        assert found.certainty == "estimate"
        assert found.config_change == {}


@pytest.mark.parametrize(("amax", "between"), [(9.5, True), (60_001.0, False)])
def test_that_an_overflow_before_a_product_is_placed_between_the_modules(amax: float, between: bool) -> None:
    modules = (("a.l", LINEAR), ("a", "own.Sum"), ("b", LINEAR), ("", "own.Net"))
    events = [
        *steps([*FALLING[:9], math.nan]),
        tensors(10, "activation", {"a.l": {"amax": 30.5}, "b": {"pos_inf": 3.0, "neg_inf": 3.0, "amax": amax}}),
        described(*modules),
    ]
    title = problems(events, "fp16-amp")["forward-overflow"].title
    assert ("between the outputs of a.l and b" in title) is between


def test_that_a_report_on_a_product_places_nan_behind_the_module_before_it() -> None:
    events = [
        *steps([*FALLING[:9], math.nan]),
        tensors(5, "activation", {"h": {"amax": 3.5}, "o": {"amax": 2.5}}),
        tensors(12, "activation", {"h": {"nan": 3.0, "amax": 1.0}, "o": {"nan": 2.0, "amax": 2.5}}),
        Incident(1.0, 10, "nonfinite_loss", "error", "the first output that is not finite is that of o", "o"),
        described(("h", LINEAR), ("o", LINEAR), ("", "own.Net")),
    ]
    title = problems(events)["undefined-operation"].title
    assert title.startswith("NaN appears between the outputs of h and o in step 10")


@pytest.mark.parametrize("one_batch", [True, False])
def test_that_a_jump_in_one_step_is_put_down_to_its_batch_and_growth_to_the_rate(one_batch: bool) -> None:
    tail = [1e8, 1e9, 1e11, math.nan, math.nan] if one_batch else [4.0 * 3.0**i for i in range(40)] + [math.nan] * 3
    losses = [*FALLING[:40], *tail]
    norms = [1.0] * 40 + [1e5] * len(tail)
    events: list[Event] = [*steps(losses, grad_norm=norms), tensors(0, "weight", {"w": {"l2": 10.0, "amax": 1.0}})]
    events += [tensors(step, "update", {"w": {"l2": 0.1 if step < 41 else 2.0}}) for step in range(1, 44, 3)]
    found = problems(events)["divergence"]
    assert ("the batch of step 41" in found.title) is one_batch
    assert ("learning rate is too high" in found.title) is not one_batch


@pytest.mark.parametrize(("precision", "rule"), [("bf16-amp", "undefined-operation"), ("fp32", "divergence")])
def test_that_a_loss_of_nan_for_finite_outputs_in_16_bits_is_no_matter_of_the_rate(precision: str, rule: str) -> None:
    losses = [1.5 + 0.2 * i for i in range(50)] + [math.nan]
    events: list[Event] = [*steps(losses, grad_norm=[1.0 + i for i in range(51)])]
    events.append(tensors(51, "activation", {"a": {"amax": 2.5}}))
    assert list(problems(events, precision)) == [rule]


@pytest.mark.parametrize(("zeros", "told"), [(3, True), (1, False)])
def test_that_gradients_of_zero_in_all_steps_are_told_where_they_are_most(zeros: int, told: bool) -> None:
    names = [f"{i}.weight" for i in range(4)]
    events: list[Event] = [*steps(FLAT)]
    for step in range(1, 60, 3):
        values = {name: {"amax": float(i >= zeros), "l2": 1.0} for i, name in enumerate(names)}
        events += [tensors(step, "weight", {name: {"l2": 1.0, "amax": 1.0} for name in names})]
        events += [tensors(step, "gradient", values)]
    found = problems(events).get("no-gradients")
    assert (found is not None) is told
    assert found is None or found.tensors == tuple(names[:zeros])


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_that_a_rate_of_zero_is_named_where_no_weight_changes(rate: float) -> None:
    events: list[Event] = [*steps(FLAT, lr=[rate] * 60), *(tensors(i, "update", {"w": {"changed": 0.0}})
                                                         for i in range(1, 9))]  # fmt: skip
    assert ("learning rate is 0" in problems(events)["weights-unchanged"].title) is (rate == 0)


@pytest.mark.parametrize("eps", [1e-8, 1e-16])
def test_that_an_epsilon_above_the_gradients_is_named_for_steps_too_small(eps: float) -> None:
    events: list[Event] = [*steps(FLAT), tensors(0, "weight", {"w": {"l2": 1.0, "amax": 1.0}})]
    for step in range(1, 60, 3):
        events.append(tensors(step, "update", {"w": {"l2": 1e-6, "changed": 1.0}}))
        events.append(tensors(step, "gradient", {"w": {"rms": 1e-12, "amax": 1e-11, "l2": 1e-11}}))
    recorder = {"optimizers": [{"name": "Adam", "lr": 0.1, "eps": eps}]}
    assert ("epsilon 1e-08" in problems(events, recorder=recorder)["no-progress"].title) is (eps == 1e-8)
