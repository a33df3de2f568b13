"""A search whose best plan does not keep the loss says so, with the formats that would."""

from __future__ import annotations

from precgui.engine.assignment.search import Assignment, MeasuredPlan
from precgui.engine.assignment.serving import budget_sentence


def _assignment(rise: float) -> Assignment:
    best = MeasuredPlan({"1": "e2m1"}, 4.0, rise, 0.01)
    uniform = {
        "e2m1": MeasuredPlan({"1": "e2m1"}, 4.0, 3.0, 0.01),
        "e4m3fn": MeasuredPlan({"1": "e4m3fn"}, 8.0, 0.01, 0.01),
        "bf16": MeasuredPlan({"1": "bf16"}, 16.0, 0.0, 0.01),
    }
    return Assignment(best, [best], uniform, 0.06, 100, {}, {"1": 10})


def test_that_a_budget_within_which_nothing_keeps_the_loss_is_told_with_what_would() -> None:
    text = budget_sentence(_assignment(3.0), 6.0)
    assert text.startswith(
        "No plan within 6 bits a weight keeps the held-out loss of FP32, 0.06: the best one raises it by 3. "
        "e4m3fn in all layers keeps it, with 8 bits."
    )
    assert "e2m1 has no scale of its own; mxfp4 and nvfp4 hold the same elements with one." in text


def test_that_a_plan_within_the_noise_or_within_a_rise_that_was_allowed_needs_no_word() -> None:
    assert budget_sentence(_assignment(0.015), 6.0) == ""
    assert budget_sentence(_assignment(3.0), None) == ""
