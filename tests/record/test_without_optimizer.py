"""Loops that update their weights by themselves, recorded without an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import precgui
from precgui.runs.diagnosis import examine
from precgui.runs.file.reader import SavedRun, open_run

Step = Callable[[nn.Module, Callable[[], Tensor]], Tensor]
RATE = 0.05


def by_gradients(model: nn.Module, loss_of: Callable[[], Tensor]) -> Tensor:
    model.zero_grad()
    loss = loss_of()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= RATE * parameter.grad
    return loss


def by_two_losses(model: nn.Module, loss_of: Callable[[], Tensor]) -> Tensor:
    """Malladi et al. 2023: the difference of two losses along a random direction, and no backward pass."""
    seed = int(torch.randint(1 << 30, (1,)))

    def move(far: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=far)

    with torch.no_grad():
        move(1e-3)
        above = loss_of()
        move(-2e-3)
        below = loss_of()
        move(1e-3)
        move(-0.02 * float(above - below) / 2e-3)
    return above


def recorded(path: Path, step: Step, dtype: torch.dtype = torch.float32) -> SavedRun:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(dtype)
    inputs = torch.randn(64, 8, dtype=dtype)
    targets = 2 * inputs[:, :1]
    with precgui.Recorder(path, model, None) as recorder:
        for _ in range(60):
            recorder.step(step(model, lambda: (model(inputs) - targets).square().mean()))
    return open_run(path)


@pytest.mark.parametrize("step", [by_gradients, by_two_losses])
def test_that_a_sound_loop_without_an_optimizer_has_no_problem(tmp_path: Path, step: Step) -> None:
    with recorded(tmp_path / "run.h5", step) as run:
        assert not run.series("skipped")[1].any()
        assert run.series("loss")[1][-1] < 0.7 * run.series("loss")[1][0]
        assert examine(run).verdict == "healthy"


def test_that_gradients_and_weights_are_measured_without_an_optimizer(tmp_path: Path) -> None:
    with recorded(tmp_path / "run.h5", by_gradients) as run:
        norms = run.series("grad_norm")[1]
        assert (norms > 0).all() and norms[-1] < norms[0]
        assert {"weight", "gradient"} <= set(run.tensors())


def test_that_updates_lost_in_16_bits_are_found_without_an_optimizer(tmp_path: Path) -> None:
    with recorded(tmp_path / "run.h5", by_gradients, torch.bfloat16) as run:
        assert run.config.precision == "bf16-pure"
        assert "lost-updates" in {finding.rule for finding in examine(run).findings}


def test_that_an_empty_list_of_optimizers_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="or None where the loop updates its weights by itself"):
        precgui.Recorder(tmp_path / "run.h5", nn.Linear(1, 1), [])
