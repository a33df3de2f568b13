"""Plans within a budget of bits, against trying all of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precgui.engine.assignment import knapsack
from precgui.engine.assignment.knapsack import best_plan, mean_bits

BITS = {"int2": 2.0, "mxfp4": 4.25, "e4m3fn": 8.0}


@given(
    st.lists(st.tuples(st.integers(1, 9), *[st.floats(0, 1)] * 3), min_size=1, max_size=6),
    st.sampled_from([2.0, 2.5, 4.25, 5.0, 8.0]),
)
def test_that_no_plan_within_the_budget_has_a_lower_sum(
    rows: list[tuple[int, float, float, float]], budget: float
) -> None:
    weights = {f"layer{i}": row[0] for i, row in enumerate(rows)}
    scores = {f"layer{i}": dict(zip(BITS, row[1:], strict=True)) for i, row in enumerate(rows)}
    plans = [dict(zip(weights, choice, strict=True)) for choice in itertools.product(BITS, repeat=len(rows))]
    total = lambda plan: sum(scores[layer][name] for layer, name in plan.items())  # noqa: E731
    best = min(total(plan) for plan in plans if mean_bits(plan, weights, BITS) <= budget * (1 + 1e-12))
    found = best_plan(scores, weights, BITS, budget)
    assert mean_bits(found, weights, BITS) <= budget * (1 + 1e-12)
    assert total(found) == pytest.approx(best)


def test_that_a_budget_below_the_narrowest_format_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.5 bits a weight are too few; the narrowest format has 2"):
        best_plan({"a": dict.fromkeys(BITS, 0.0)}, {"a": 3}, BITS, 1.5)


def test_that_many_layers_stay_within_the_budget_when_states_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knapsack, "_MOST_STATES", 50)
    weights = {f"layer{i}": 1009 + 31 * i * i for i in range(60)}
    scores = {layer: {"int2": (i * 37 % 61) / 61, "e4m3fn": 0.01 * (i % 3)} for i, layer in enumerate(weights)}
    bits = {"int2": 2.0, "e4m3fn": 8.0}
    plan = best_plan(scores, weights, bits, 5.0)
    assert 4.8 < mean_bits(plan, weights, bits) <= 5.0 + 1e-9
