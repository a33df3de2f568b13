"""Kernels whose derivative jumps: a sound step with them is healthy, and elements that jump count as decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precgui
from precgui.engine.shadow.decisions import apply_decision, decide
from precgui.engine.shadow.step import Shadow

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "selu": nn.SELU, "selu in place": lambda: nn.SELU(inplace=True), "elu of 2": lambda: nn.ELU(2.0),
    "prelu": nn.PReLU, "hardswish": nn.Hardswish, "softshrink": lambda: nn.Softshrink(0.125),
    "hardshrink": nn.Hardshrink, "threshold": lambda: nn.Threshold(0.125, 0.0),
}  # fmt: skip
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "hinge": F.multi_margin_loss,
    "squared hinge": lambda out, y: F.multi_margin_loss(out, y, p=2),
    "hinge of several labels": lambda out, y: F.multilabel_margin_loss(out, F.one_hot(y, 6) * 2 - 1),
    "distances in L1": lambda out, _: torch.cdist(out, out.roll(1, 0), p=1).mean(),
    "largest distances": lambda out, _: torch.pdist(out, p=float("inf")).mean(),
}


def shadow_of(net: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Shadow:
    def step() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = net(x)
        value = loss(outputs.float(), y)
        value.backward()
        return value

    result = precgui.shadow(step, net)
    assert isinstance(result, Shadow)
    return result


def assert_healthy(shadow: Shadow) -> None:
    assert shadow.verdict == "healthy", shadow.message
    assert shadow.explained == pytest.approx(1.0, abs=0.25)
    assert shadow.gradient_error < 0.02


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_that_an_activation_with_a_kink_is_healthy(name: str) -> None:
    layers = [nn.Linear(16, 48), ACTIVATIONS[name](), nn.Linear(48, 48), ACTIVATIONS[name](), nn.Linear(48, 6)]
    assert_healthy(shadow_of(nn.Sequential(*layers), F.cross_entropy, torch.randn(96, 16), torch.randint(6, (96,))))


@pytest.mark.parametrize("name", LOSSES)
def test_that_a_loss_with_a_kink_is_healthy(name: str) -> None:
    net = nn.Sequential(nn.Linear(16, 48), nn.ELU(), nn.Linear(48, 6))
    y = torch.randint(6, (96,))
    assert_healthy(shadow_of(net, LOSSES[name], torch.randn(96, 16) + y[:, None], y))


@pytest.mark.parametrize("pool", [torch.ops.aten.max_pool3d_with_indices, torch.ops.aten.adaptive_max_pool3d])
def test_that_a_pool_keeps_its_choice(pool: Any) -> None:
    """Also where another element is the largest one in FP64."""
    low = torch.randn(2, 3, 4, 4, 4).to(torch.bfloat16)
    values, indices = pool(low, [2, 2, 2])
    decision = decide(pool.default, (low, [2, 2, 2]), {}, (values, indices))
    wide = -low.double()
    kept = apply_decision(pool.default, (wide, [2, 2, 2]), decision)
    assert torch.equal(kept[0], -values.double())
