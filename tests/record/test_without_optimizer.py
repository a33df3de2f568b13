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


def by_chance(model: nn.Module, loss_of: Callable[[], Tensor]) -> Tensor:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.5)
        return loss_of()


def by_nothing(model: nn.Module, loss_of: Callable[[], Tensor]) -> Tensor:
    with torch.no_grad():
        return loss_of()


def test_that_a_walk_by_chance_is_told_without_a_rate_and_a_norm(tmp_path: Path) -> None:
    with recorded(tmp_path / "run.h5", by_chance) as run:
        [finding] = [each for each in examine(run).findings if each.rule == "divergence"]
        assert finding.title == "The training diverged: the updates are too large"
        assert "no learning rate is recorded" in finding.fix
        assert "no gradient was recorded" in finding.evidence[0].text


def test_that_weights_that_need_no_gradient_are_seen_to_change(tmp_path: Path) -> None:
    def frozen(model: nn.Module, loss_of: Callable[[], Tensor]) -> Tensor:
        return by_two_losses(model.requires_grad_(False), loss_of)

    torch.manual_seed(0)
    model = nn.Linear(8, 1).requires_grad_(False)
    inputs = torch.randn(64, 8)
    with precgui.Recorder(tmp_path / "run.h5", model, None) as recorder:
        for _ in range(20):
            recorder.step(frozen(model, lambda: (model(inputs) - inputs[:, :1]).square().mean()))
    with open_run(tmp_path / "run.h5") as run:
        assert not run.series("skipped")[1].any()
        assert examine(run).verdict == "healthy"


def test_that_weights_that_never_change_are_named_without_an_optimizer(tmp_path: Path) -> None:
    with recorded(tmp_path / "run.h5", by_nothing) as run:
        [finding] = [each for each in examine(run).findings if each.rule == "no-step-taken"]
        assert "optimizer" not in finding.title + finding.fix


def test_that_an_empty_list_of_optimizers_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="or None where the loop updates its weights by itself"):
        precgui.Recorder(tmp_path / "run.h5", nn.Linear(1, 1), [])
