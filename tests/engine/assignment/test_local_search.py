"""The local search over plans, with costs that single layers do not tell."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from precgui.engine.assignment.knapsack import best_plan, fits
from precgui.engine.assignment.local_search import LocalSearch, Plan

WEIGHTS = {"a": 4, "b": 3, "c": 2, "d": 1}
BITS = {"low": 2.0, "high": 8.0}
HARM = {"a": 1.0, "b": 3.0, "c": 2.0, "d": 4.0}
WRONG = {layer: {"low": 1 / HARM[layer], "high": 0.0} for layer in WEIGHTS}  # scores in the wrong order
BUDGET = 5.0


def cost(plan: Plan) -> float:
    """The harm of each layer in the low format; a and b together do four times as much."""
    single = sum(HARM[layer] for layer, name in plan.items() if name == "low")
    return single + 12 * (plan["a"] == plan["b"] == "low")


def search(evaluations: int) -> LocalSearch:
    def pack(table: Mapping[str, Mapping[str, float]]) -> Plan:
        return best_plan(table, WEIGHTS, BITS, BUDGET)

    return LocalSearch(cost, lambda plan: fits(plan, WEIGHTS, BITS, BUDGET), pack, WRONG, list(BITS), evaluations)


def test_that_the_best_plan_is_reached_from_scores_in_the_wrong_order() -> None:
    begin = best_plan(WRONG, WEIGHTS, BITS, BUDGET)
    every = (dict(zip(WEIGHTS, names, strict=True)) for names in itertools.product(BITS, repeat=len(WEIGHTS)))
    best = min(cost(plan) for plan in every if fits(plan, WEIGHTS, BITS, BUDGET))
    result = search(100).improve([begin])
    assert cost(begin) > cost(result) == best and fits(result, WEIGHTS, BITS, BUDGET)


def test_that_a_search_without_evaluations_left_keeps_the_cheapest_plan_it_was_given() -> None:
    plans = [{"a": "low", "b": "high", "c": "low", "d": "high"}, {"a": "low", "b": "low", "c": "high", "d": "high"}]
    limited = search(2)
    assert limited.improve(plans) == plans[0] and limited.evaluations == 2


def test_that_where_single_changes_are_too_many_the_scores_order_the_neighbours() -> None:
    limited = search(6)  # one round of single changes would take more than half
    result = limited.improve([dict.fromkeys(WEIGHTS, "low")])
    assert cost(result) < cost(dict.fromkeys(WEIGHTS, "low")) and limited.evaluations <= 6
