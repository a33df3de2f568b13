"""The tensor that broke first, by the order in which it was computed."""

from __future__ import annotations

from precgui.events import Incident, ModelDescribed, ModuleInfo, ParameterInfo
from precgui.runs.tensors.first_broken import first_broken
from tests.runs.synthetic import live_run

NAMES = ["a.weight", "a.bias", "b.weight", "b.bias"]


def described() -> ModelDescribed:
    modules = (ModuleInfo("b", "Linear", 0), ModuleInfo("a", "Linear", 1))
    orders = {"a.weight": 1, "a.bias": 0, "b.weight": 3, "b.bias": 2}
    parameters = tuple(ParameterInfo(name, "parameter", "fp32", (2,), True, True, orders[name]) for name in NAMES)
    return ModelDescribed(0.0, modules, parameters)


def test_that_gradients_break_in_the_order_of_the_backward_pass() -> None:
    run = live_run([described()])
    assert first_broken(run, "gradient", 1, NAMES) == "a.bias"
    assert first_broken(run, "gradient", 1, NAMES[2:]) == "b.bias"


def test_that_outputs_break_in_the_order_of_the_forward_pass_and_their_gradients_in_its_reverse() -> None:
    run = live_run([described()])
    assert first_broken(run, "activation", 1, ["a", "b"]) == "b"
    assert first_broken(run, "activation_gradient", 1, ["b", "a"]) == "a"
    assert first_broken(run, "activation", 1, ["new", "other"]) == "new"


def test_that_the_event_counts_where_no_order_is_recorded() -> None:
    run = live_run([Incident(0.1, 3, "nonfinite_gradient", "error", "", "a.bias")])
    assert first_broken(run, "gradient", 3, NAMES) == "a.bias"
    assert first_broken(run, "gradient", 4, NAMES) == "b.weight"
    assert first_broken(run, "weight", 4, NAMES) == "a.weight"
    assert first_broken(run, "weight", 4, []) == ""
