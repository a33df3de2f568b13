"""Rates at which the first steps of an optimizer like Adam throw the loss up, and nothing is learnt since."""

from __future__ import annotations

from typing import Any

import pytest

from precgui.events import Event
from precgui.runs.diagnosis.examine import examine
from tests.runs.diagnosis.hand_made import run_of, steps, tensors

THROWN = [2.14, 3.67, 2.27, 3.47, 2.49, 2.45, 2.34, 2.2]


def rules(losses: list[float], rate: float, update: float, optimizer: str = "AdamW") -> list[str]:
    n = len(losses)
    events: list[Event] = [*steps(losses, lr=[rate] * n)]
    for step in (0, *range(1, 11), *range(20, n, 20)):
        events.append(tensors(step, "weight", {"a": {"l2": 10.0, "rms": 1.0, "amax": 2.0}}))
        if step:
            events.append(tensors(step, "update", {"a": {"changed": 1.0, "l2": 10 * update, "amax": 0.1}}))
            events.append(tensors(step, "gradient", {"a": {"l2": 1.0, "rms": 0.1, "amax": 1.0}}))
    answers = [
        {"step": step, "loss": losses[step - 1], "constant": 2.08, "kind": "cross entropy", "samples": 32,
         "best": losses[step - 1] / 2.08, "void": False}
        for step in (2, 8, 32, 128)
    ]  # fmt: skip
    facts: dict[str, Any] = {
        "recorder": {"optimizers": [{"name": optimizer, "lr": rate}]}, "constant_answers": {"all": answers}
    }  # fmt: skip
    return [each.rule for each in examine(run_of(events, "bf16-amp", **facts)).problems]


def test_that_a_loss_that_was_thrown_up_and_stays_above_that_of_a_constant_names_the_rate() -> None:
    assert rules([*THROWN, *[2.15] * 120, *[2.09] * 72], 1e-2, 0.05) == ["rate-too-high"]


@pytest.mark.parametrize(
    ("losses", "rate", "update"),
    [
        ([*THROWN, *[2.15] * 120, *[2.09] * 72], 1e-3, 0.05),  # a usual rate
        ([*THROWN, *[2.15] * 120, *[2.09] * 72], 1e-2, 0.01),  # that moves the weights little
        ([2.14] * 8 + [2.15] * 120 + [2.09] * 72, 1e-2, 0.05),  # a loss that was never thrown up
        ([*THROWN, *[1.9 - 0.01 * i for i in range(192)]], 1e-2, 0.05),  # one that has learnt since
    ],
)
def test_that_other_losses_do_not_name_it(losses: list[float], rate: float, update: float) -> None:
    assert "rate-too-high" not in rules(losses, rate, update)
