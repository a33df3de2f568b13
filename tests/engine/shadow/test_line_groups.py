"""Lines that mend an error together, and none of them alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precgui
from precgui.engine.shadow.line_groups import LARGEST_GROUP, fewest
from precgui.engine.shadow.tape import SourceLine

LINES = [SourceLine("model.py", number) for number in range(1, 41)]


@pytest.mark.parametrize("needed", [(1,), (1, 2), (3, 30), (5, 17, 40), (2, 3, 4, 5, 6, 38)])
def test_that_the_fewest_lines_are_found_in_few_runs(needed: tuple[int, ...]) -> None:
    runs = []

    def left(lines: Sequence[SourceLine]) -> float:
        runs.append(lines)
        return 0.1 if {line.number for line in lines} >= set(needed) else 0.9

    found = fewest(LINES, left, 0.7)
    assert [line.number for line in found] == list(needed)
    assert len(runs) <= 36


def test_that_many_lines_are_no_answer() -> None:
    assert fewest(LINES, lambda lines: 1 - len(lines) / 40, 0.7 * (1 - LARGEST_GROUP / 40)) == []
    assert fewest(LINES, lambda lines: 1.0, 0.7) == []
    assert fewest([], lambda lines: 0.0, 0.7) == []


class Raised(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.bfloat16() + 40


class Tripled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 3


class Lowered(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - 120).float()


def test_that_modules_that_share_an_error_are_named_together() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8), Raised(), Tripled(), Lowered())
    x, y = torch.randn(64, 16), torch.randn(64, 8)

    def step() -> Tensor:
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss

    shadow = precgui.shadow(step, net)
    assert shadow.verdict == "problems" and shadow.precision_is_to_blame
    first = Raised.forward.__code__.co_firstlineno + 1
    assert {int(label.rpartition(":")[2]) for label in shadow.blamed} >= {first}
    assert 2 <= len(shadow.blamed) <= 3
    assert all(label in shadow.message for label in shadow.blamed)
    assert shadow.with_fp64(shadow.blamed) < 0.7 < 0.9 < shadow.with_fp64(shadow.blamed[:1])
