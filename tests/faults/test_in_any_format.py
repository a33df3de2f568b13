"""Trainings that fail in FP32 as they do in 16 bits: what broke first in 16 bits is named, and not held responsible."""

from __future__ import annotations

from collections.abc import Callable
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


def seeded(model: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return model()


def test_that_fp16_is_blamed_for_an_overflow_that_fp32_is_spared(tmp_path: Path) -> None:
    def loss_of(outputs: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(outputs.float(), target) + 1e-5 * (outputs * 1000).square().mean()

    torch.manual_seed(0)
    low = recorded(tmp_path / "low.h5", HALF, model=perceptron(), amp=True, loss_of=loss_of, rate=0.01)
    assert [each.precision_is_to_blame for each in low] == [True]
