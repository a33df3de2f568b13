"""The loss of the best constant answer beside that of outputs, told operation by operation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from precgui.engine.constant_answers import ConstantAnswers
from precgui.engine.torch_private import TorchDispatchMode, operation_name
from precgui.engine.watcher import OperationCall


class _Telling(TorchDispatchMode):
    def __init__(self, watcher: ConstantAnswers) -> None:
        super().__init__()
        self.watcher = watcher

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.watcher.observe(OperationCall(func, operation_name(func), args, kwargs or {}, out, None))
        return out


def _seen(loss: Callable[[], Tensor]) -> dict[str, Any]:
    watcher = ConstantAnswers()
    watcher.begin(2)
    with _Telling(watcher):
        loss()
    watcher.end()
    (row,) = watcher.facts()["constant_answers"]
    return row


def _outputs(*shape: int) -> Tensor:
    return torch.zeros(shape, requires_grad=True)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_that_a_constant_has_the_entropy_of_the_classes_that_count(reduction: str, weighted: bool) -> None:
    labels = torch.tensor([0] * 300 + [1] * 100 + [-100] * 50)
    weight = torch.tensor([1.0, 3.0]) if weighted else None
    row = _seen(lambda: F.cross_entropy(_outputs(450, 2), labels, weight, reduction=reduction))
    share = 0.5 if weighted else 0.25
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert row["constant"] == pytest.approx(entropy + 1 / 800, abs=1e-6)
    assert row["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert row["samples"] == 400 and not row["void"]


def test_that_few_samples_of_many_classes_count_as_equally_frequent() -> None:
    row = _seen(lambda: F.cross_entropy(_outputs(64, 9000), torch.randint(9000, (64,))))
    assert row["constant"] == pytest.approx(math.log(9000))


def test_that_a_squared_error_is_compared_with_the_variance_of_each_column() -> None:
    target = torch.randn(500, 3) * torch.tensor([1.0, 2.0, 3.0]) + 7
    variance = float(target.double().var(0).mean())
    for loss in (lambda: F.mse_loss(_outputs(500, 3), target), lambda: (_outputs(500, 3) - target).pow(2).mean()):
        row = _seen(loss)
        assert row["constant"] == pytest.approx(variance, rel=1e-6)
        assert row["loss"] == pytest.approx(float(target.square().mean()), rel=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_that_a_squared_error_is_a_mean_whatever_the_loop_takes(reduction: str) -> None:
    target = torch.randn(500, 3)
    row = _seen(lambda: F.mse_loss(_outputs(500, 3), target, reduction=reduction))
    assert row["loss"] == pytest.approx(float(target.square().mean()), rel=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_that_a_binary_cross_entropy_is_compared_with_the_share_of_each_column(reduction: str) -> None:
    target = torch.tensor([[1.0, 0.0]] * 50 + [[0.0, 0.0]] * 50)
    losses = (
        lambda: F.binary_cross_entropy_with_logits(_outputs(100, 2), target, reduction=reduction),
        lambda: F.binary_cross_entropy(_outputs(100, 2) + 0.5, target, reduction=reduction),
    )
    for loss in losses:
        row = _seen(loss)
        assert row["constant"] == pytest.approx(math.log(2) / 2)
        assert row["loss"] == pytest.approx(math.log(2), rel=1e-5)


def test_that_nothing_is_compared_where_a_constant_is_perfect_or_targets_move() -> None:
    teacher, x = nn.Linear(4, 2), torch.randn(64, 4)
    assert _seen(lambda: F.cross_entropy(_outputs(64, 5), torch.zeros(64, dtype=torch.long)))["void"]
    assert _seen(lambda: F.mse_loss(_outputs(64, 2), teacher(x).detach() * 2 + 1))["void"]
    assert _seen(lambda: F.mse_loss(_outputs(4, 2), torch.randn(4, 2)))["void"]
    assert not _seen(lambda: F.mse_loss(_outputs(64, 2), torch.sin(x @ torch.randn(4, 2))))["void"]
