"""Gradients that FP16 loses without loss scaling, and gradients that vanish with the depth whatever the format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precgui.runs.diagnosis import Finding
from tests.faults.odd_loops import judged
from tests.faults.published_faults import Open, batches

_RULE = "gradient-underflow"


def _small_errors(opened: Open, *, scaled: bool, size: float) -> None:
    """A mean over many outputs near zero: its gradients end FP16 in the last layer, and nothing reaches the first."""
    model = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 512))
    with torch.no_grad():
        model[2].weight.mul_(size)
        model[2].bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), 10.0, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, enabled=scaled)
    recorder = opened(model, optimizer, scaler if scaled else None)
    truth = 0.04 * torch.randn(24, 512)
    for x, _ in batches(60):
        with torch.autocast("cpu", torch.float16):
            outputs = model(x)
        loss = F.mse_loss(outputs.float(), 5e-4 * torch.tanh(x @ truth))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)


def _sigmoids(opened: Open, layers: int, deviation: float) -> None:
    parts: list[nn.Module] = [nn.Linear(24, 32)]
    for _ in range(layers - 2):
        parts += [nn.Sigmoid(), nn.Linear(32, 32)]
    model = nn.Sequential(*parts, nn.Sigmoid(), nn.Linear(32, 6))
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, deviation)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=1000)
    recorder = opened(model, optimizer, scaler)
    for x, y in batches(40):
        with torch.autocast("cpu", torch.float16):
            outputs = model(x)
        loss = F.cross_entropy(outputs.float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss)


def _named(problems: tuple[Finding, ...]) -> list[Finding]:
    return [each for each in problems if each.rule == _RULE]


@pytest.mark.parametrize("seed", [0, 1])
def test_that_missing_loss_scaling_is_named_and_scaling_is_not(seed: int, tmp_path: Path) -> None:
    def loop(opened: Open) -> None:
        _small_errors(opened, scaled=False, size=0.02)

    def twin(opened: Open) -> None:
        _small_errors(opened, scaled=True, size=0.02)

    (finding,) = _named(judged(loop, tmp_path / "run.h5", seed=seed).problems)
    assert "GradScaler" in finding.fix
    assert finding.precision_is_to_blame is not False
    assert judged(twin, tmp_path / "twin.h5", seed=seed).problems == ()


def test_that_vanishing_with_three_layers_is_not_blamed_on_precision(tmp_path: Path) -> None:
    def loop(opened: Open) -> None:
        _sigmoids(opened, 3, 2e-4)

    findings = _named(judged(loop, tmp_path / "run.h5").problems)
    assert findings
    assert [each.precision_is_to_blame for each in findings] == [None] * len(findings)
