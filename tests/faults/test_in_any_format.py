"""Trainings that fail in FP32 as they do in 16 bits: what broke first in 16 bits is named, and not held responsible."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precgui
from precgui.runs.diagnosis import Finding, diagnose

HALF, BFLOAT16, SINGLE = torch.float16, torch.bfloat16, torch.float32
Lossy = Callable[[Tensor, Tensor], Tensor]


def perceptron(depth: int = 2, classes: int = 5, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs in [20] + [64] * (depth - 1):
        layers += [nn.Linear(inputs, 64), activation()]
    return nn.Sequential(*layers, nn.Linear(64, classes))


def begun_large() -> nn.Sequential:
    model = perceptron(depth=6)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, 2.0)
    return model


def begun_at_zero() -> nn.Sequential:
    model = perceptron()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def cross_entropy(outputs: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(outputs.float(), target)


def of_raw_targets(outputs: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(outputs[:, 0], (target * 1e4).to(outputs.dtype))


def of_rates(outputs: Tensor, target: Tensor) -> Tensor:
    return (outputs[:, 0].exp() - target * 1000).square().mean()


def recorded(
    path: Path, dtype: torch.dtype, *, model: nn.Module, rate: float = 0.1, amp: bool = False, times: float = 1.0,
    loss_of: Lossy = cross_entropy,
) -> list[Finding]:  # fmt: skip
    """What is found on 150 steps of SGD, as a model in this format or in its autocast."""
    narrow = dtype is not SINGLE
    model = model if amp else model.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    scaler = torch.amp.GradScaler("cpu", enabled=amp and narrow)
    numbers = torch.Generator().manual_seed(1)
    rule = torch.randn(20, 5, generator=torch.Generator().manual_seed(7))
    with precgui.Recorder(path, model, optimizer, scaler) as recorder:
        for _ in range(150):
            inputs = torch.randn(64, 20, generator=numbers)
            target = (inputs @ rule).argmax(1)
            inputs = inputs * times
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype if narrow else BFLOAT16, enabled=amp and narrow):
                loss = loss_of(model(inputs if amp else inputs.to(dtype)), target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            recorder.step(loss)
    return [each for each in diagnose(path) if each.is_problem]


CASES: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "weights that begin large": (HALF, {"model": begun_large, "rate": 0.01}),
    "weights that begin large, with autocast": (HALF, {"model": begun_large, "rate": 0.01, "amp": True}),
    "inputs of millions": (HALF, {"model": perceptron, "amp": True, "times": 1e6}),
    "targets of ten thousands": (HALF, {"model": lambda: perceptron(classes=1), "loss_of": of_raw_targets}),
    "an exponential": (HALF, {"model": lambda: perceptron(classes=1), "amp": True, "loss_of": of_rates}),
    "a rate of 1e-9 in BF16": (BFLOAT16, {"model": perceptron, "rate": 1e-9}),
    "a rate of 1e-8 in FP16": (HALF, {"model": perceptron, "rate": 1e-8}),
    "a rate of 0 in BF16": (BFLOAT16, {"model": perceptron, "rate": 0.0}),
    "14 sigmoids": (HALF, {"model": lambda: perceptron(14, activation=nn.Sigmoid), "rate": 0.05}),
    "14 sigmoids, with autocast": (
        HALF, {"model": lambda: perceptron(14, activation=nn.Sigmoid), "rate": 0.05, "amp": True},
    ),
    "weights of zero": (HALF, {"model": begun_at_zero}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_that_16_bits_are_not_blamed_for_what_fails_in_fp32_as_well(name: str, tmp_path: Path) -> None:
    dtype, settings = CASES[name]
    low, wide = (
        recorded(tmp_path / f"{kind}.h5", kind_dtype, **{**settings, "model": seeded(settings["model"])})
        for kind, kind_dtype in (("low", dtype), ("wide", SINGLE))
    )
    assert low
    assert wide, "this training is sound in FP32"
    assert [each.rule for each in low if each.precision_is_to_blame is True] == []


def test_that_gradients_of_a_small_loss_are_lost_by_fp16_and_not_by_the_depth(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    with precgui.Recorder(tmp_path / "run.h5", model, optimizer) as recorder:
        for _ in range(100):
            inputs = torch.randn(64, 20)
            optimizer.zero_grad()
            with torch.autocast("cpu", HALF):
                loss = 1e-5 * F.cross_entropy(model(inputs), inputs[:, :5].argmax(1))
            loss.backward()
            optimizer.step()
            recorder.step(loss)
    found = diagnose(tmp_path / "run.h5")[0]
    assert (found.rule, found.precision_is_to_blame) == ("gradient-underflow", True)
    assert "vanish" not in found.title


class OwnNorm(nn.Module):
    """Squares in the format of its inputs; its offsets are zeros of two axes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.offset = nn.Parameter(torch.ones(64, 1)), nn.Parameter(torch.zeros(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        apart = x - x.mean(1, keepdim=True)
        return apart / (apart * apart).mean(1, keepdim=True).sqrt() * self.weight[:, 0] + self.offset[:, 0]


def test_that_offsets_of_zero_behind_an_overflow_are_no_weights_that_begin_at_zero(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = (nn.Linear(20, 64), OwnNorm(), nn.ReLU(), nn.Linear(64, 64), OwnNorm(), nn.ReLU(), nn.Linear(64, 5))
    low = recorded(tmp_path / "low.h5", HALF, model=nn.Sequential(*layers), amp=True, times=3000.0)
    assert "zero-weights" not in [each.rule for each in low]
    assert (low[0].rule, low[0].precision_is_to_blame) == ("hidden-overflow", True)


class Compensated(torch.optim.Optimizer):
    """SGD of weights in BF16 that keeps what rounding takes, in a state of any name."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        super().__init__(parameters, {"lr": rate})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                left = state["later"].float() if state else torch.zeros_like(weight, dtype=SINGLE)
                wanted = left - group["lr"] * weight.grad.float()
                old = weight.float()
                weight.copy_(old + wanted)
                state["later"] = (wanted - (weight.float() - old)).to(weight.dtype)


@pytest.mark.parametrize("kept", [True, False])
def test_that_updates_whose_rounding_is_kept_under_any_name_are_not_lost(kept: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = perceptron().to(BFLOAT16)
    optimizer = Compensated(model.parameters(), 1e-3) if kept else torch.optim.SGD(model.parameters(), 1e-3)
    numbers = torch.Generator().manual_seed(1)
    with precgui.Recorder(tmp_path / "run.h5", model, optimizer) as recorder:
        for _ in range(150):
            inputs = torch.randn(64, 20, generator=numbers)
            loss = F.cross_entropy(model(inputs.to(BFLOAT16)).float(), (inputs[:, :5]).argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
    rules = [each.rule for each in diagnose(tmp_path / "run.h5") if each.is_problem]
    assert ("stagnation" in rules) is not kept


class Summing(nn.Module):
    """Adds up what it reads, by weights that are applied again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.keeps, self.tells = nn.Linear(1, 32), nn.Linear(32, 32), nn.Linear(32, 5)
        nn.init.eye_(self.keeps.weight)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 32)
        for place in range(x.shape[1]):
            state = torch.relu(self.reads(x[:, place : place + 1].abs()) + self.keeps(state))
        tells: Tensor = self.tells(state)
        return tells


def test_that_gradients_that_explode_in_the_first_step_are_to_be_clipped(tmp_path: Path) -> None:
    torch.manual_seed(0)
    low = recorded(
        tmp_path / "low.h5", SINGLE, model=Summing(), loss_of=lambda a, b: F.mse_loss(a[:, 0], b.float() * 50)
    )
    assert low[0].rule == "divergence"
    assert "at this learning rate its gradients are too large from the first step on" in low[0].title
    assert low[0].fix.startswith("Clip gradients")


def seeded(model: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return model()


def test_that_fp16_is_blamed_for_an_overflow_that_fp32_is_spared(tmp_path: Path) -> None:
    def loss_of(outputs: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(outputs.float(), target) + 1e-5 * (outputs * 1000).square().mean()

    torch.manual_seed(0)
    low = recorded(tmp_path / "low.h5", HALF, model=perceptron(), amp=True, loss_of=loss_of, rate=0.01)
    assert [each.precision_is_to_blame for each in low] == [True]
