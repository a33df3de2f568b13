"""What is held of a step while the next one is queued."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from precgui.engine.hooks.non_finite import is_bad_later
from precgui.engine.telemetry.left_step import LeftStep


class _Counter:
    OF_STEP: ClassVar[tuple[str, ...]] = ("step", "rows")

    def __init__(self) -> None:
        self.step, self.rows, self.total = 1, ["a"], 0


def test_that_a_step_is_there_again_and_what_it_changes_stays_with_it() -> None:
    counter = _Counter()
    left = LeftStep([counter])
    counter.step, counter.rows = 2, ["b"]
    for total in (1, 2):
        with left.again():
            assert counter.step == 1
            assert counter.rows == ["a"] * total
            counter.rows = [*counter.rows, "a"]
            counter.total += 1
        assert (counter.step, counter.rows, counter.total) == (2, ["b"], total)


def test_that_a_gradient_that_is_gone_is_known_by_the_weight_that_it_left() -> None:
    weights = {value: nn.Parameter(torch.zeros(3)) for value in (torch.inf, torch.nan, 1e30)}
    for value, weight in weights.items():
        weight.grad = torch.full((3,), value)
        torch.optim.SGD([weight], lr=0.1).step()
    assert is_bad_later(weights[torch.inf], torch.inf)
    assert is_bad_later(weights[torch.nan], torch.nan)
    assert not is_bad_later(weights[1e30], torch.inf)  # the norm of a finite gradient that overflowed
    assert not is_bad_later(weights[torch.inf], 1.0)
