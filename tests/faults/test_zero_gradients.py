"""Gradients that are zero at the step although they reach the modules, and outputs that 16 bits may have made zero."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precgui
from precgui.runs.diagnosis import Finding, examine
from precgui.runs.file.reader import open_run

STEPS = 40


def trained(path: Path, model: nn.Module, between: Any = lambda parameters: None, factor: float = 1.0) -> list[Finding]:
    """The problems of a loop that does something `between` the backward pass and the step."""
    torch.manual_seed(0)
    x = torch.randn(256, 16)
    y, optimizer = (x @ torch.randn(16, 10)).argmax(1), torch.optim.SGD(model.parameters(), 0.02)
    with precgui.Recorder(path, model, optimizer) as recorder:
        for _ in range(STEPS):
            loss = F.cross_entropy(model(x), y, reduction="sum") * factor
            optimizer.zero_grad()
            loss.backward()
            between(list(model.parameters()))
            optimizer.step()
            recorder.step(loss)
    with open_run(path) as run:
        return [each for each in examine(run).findings if each.is_problem]


@torch.no_grad()
def clip(parameters: list[nn.Parameter], dtype: torch.dtype) -> None:
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = sum((g.to(dtype).pow(2).sum() for g in gradients), torch.zeros((), dtype=dtype)).sqrt()
    for gradient in gradients:
        gradient.mul_((1.0 / (norm.float() + 1e-6)).clamp(max=1.0))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))


def test_that_a_norm_that_overflows_fp16_is_named_where_it_clips_all_gradients_to_zero(tmp_path: Path) -> None:
    [finding] = trained(tmp_path / "run.h5", net(), lambda p: clip(p, torch.float16), factor=10.0)
    assert finding.rule == "hidden-overflow" and finding.precision_is_to_blame is True
    assert "in the loop overflows FP16" in finding.title and "factor of clipping" in finding.fix


def test_that_the_same_norm_in_fp32_clips_without_a_finding(tmp_path: Path) -> None:
    assert trained(tmp_path / "run.h5", net(), lambda p: clip(p, torch.float32), factor=10.0) == []


class Rounded(torch.autograd.Function):
    """A product whose output gradients are rounded to whole multiples of `unit`, as a format without a scale does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        rounded = (gradients[0] / 1e3).round() * 1e3
        return rounded @ weight, rounded.t() @ x


class RoundedLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return torch.Tensor(Rounded.apply(input, self.weight)) + self.bias


def test_that_a_weight_without_a_gradient_beside_its_bias_is_not_told_from_dead_units(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(RoundedLinear(16, 32), nn.GELU(), RoundedLinear(32, 10))
    findings = {each.rule: each for each in trained(tmp_path / "run.h5", model, factor=1e-3)}
    finding = findings["no-gradients"]
    assert finding.precision_is_to_blame is None
    assert "rounding without a scale" in finding.fix


class SquareNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_that_outputs_that_an_overflow_in_fp16_made_zero_are_put_down_to_it(tmp_path: Path, dtype: torch.dtype) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm, self.head = nn.Linear(16, 32), SquareNorm(), nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype):
                return self.head(self.norm(self.embed(x) * 4e3)).float()

    torch.manual_seed(0)
    findings = {each.rule: each for each in trained(tmp_path / "run.h5", Net(), factor=1e-3)}
    if dtype == torch.bfloat16:
        assert "dead-units" not in findings and "hidden-overflow" not in findings
    else:
        assert "dead-units" not in findings
        assert (
            findings["hidden-overflow"].precision_is_to_blame is True and findings["hidden-overflow"].module == "norm"
        )
