"""Gradients that are accumulated under a loss scaler: divided by the scale once, or again in each micro-step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import precgui
from precgui.runs.diagnosis import Finding, diagnose


def trained(path: Path, *, again: bool, keeps_gradients: bool = False, clip: bool = True) -> list[Finding]:
    """80 steps of four micro-steps each. `again`: each of these unscales; `keeps_gradients`: zeros, not None."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with precgui.Recorder(path, model, optimizer, scaler) as recorder:
        for _ in range(80):
            optimizer.zero_grad(set_to_none=not keeps_gradients)
            total = 0.0
            for micro in range(4):
                inputs = torch.randn(16, 20)
                with torch.autocast("cpu", torch.float16):
                    loss = F.cross_entropy(model(inputs).float(), inputs[:, :5].argmax(1)) / 4
                scaler.scale(loss).backward()
                total += loss.item()
                if again:
                    scaler.unscale_(optimizer)
                    if micro < 3:
                        scaler.update()
            if clip:
                if not again:
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
            recorder.step(total)
    return [each for each in diagnose(path) if each.is_problem]


def test_that_gradients_that_are_unscaled_in_each_micro_step_are_told(tmp_path: Path) -> None:
    [found] = trained(tmp_path / "run.h5", again=True)
    assert (found.rule, found.precision_is_to_blame) == ("unscaled-twice", False)
    assert "again in each micro-step" in found.title
    assert "behind the last backward pass" in found.fix


@pytest.mark.parametrize("keeps_gradients", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_that_gradients_that_are_unscaled_once_are_left_alone(
    keeps_gradients: bool, clip: bool, tmp_path: Path
) -> None:
    assert trained(tmp_path / "run.h5", again=False, keeps_gradients=keeps_gradients, clip=clip) == []


def test_that_two_steps_of_optimizers_in_one_recorded_step_are_left_alone(tmp_path: Path) -> None:
    """As of a critic that steps twice for each step of its actor, with gradients that are zeros in between."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.05), torch.amp.GradScaler("cpu", init_scale=1024.0)
    with precgui.Recorder(tmp_path / "run.h5", model, optimizer, scaler) as recorder:
        for _ in range(40):
            for _ in range(2):
                inputs = torch.randn(64, 20)
                optimizer.zero_grad(set_to_none=False)
                with torch.autocast("cpu", torch.float16):
                    loss = F.cross_entropy(model(inputs).float(), inputs[:, :5].argmax(1))
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            recorder.step(loss)
    assert [each for each in diagnose(tmp_path / "run.h5") if each.rule == "unscaled-twice"] == []


class Wrapping:
    """An optimizer around another one, as of a schedule."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups


@pytest.mark.parametrize("wraps", [True, False])
def test_that_a_scaler_that_is_given_a_wrapper_once_divides_twice(wraps: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    inner = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    outer: Any = Wrapping(inner) if wraps else inner
    scaler = torch.amp.GradScaler("cpu")
    with precgui.Recorder(tmp_path / "run.h5", model, inner, scaler) as recorder:
        for _ in range(80):
            inputs = torch.randn(64, 20)
            inner.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(inputs).float(), inputs[:, :5].argmax(1))
            scaler.scale(loss).backward()
            scaler.unscale_(outer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(inner)
            scaler.update()
            recorder.step(loss)
    found = [each for each in diagnose(tmp_path / "run.h5") if each.is_problem]
    assert [each.rule for each in found] == (["unscaled-twice"] if wraps else [])
    assert not wraps or found[0].fix.startswith("Give scaler.unscale_ and scaler.step the same optimizer")
