"""Copies of weights in FP32 that an optimizer updates, one each or in one flat tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import precgui
from precgui.engine.telemetry.recorder import Weight
from precgui.record.later_numbers import LaterNumbers
from precgui.record.master_weights import MasterCopies


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).half()


def _flat(model: nn.Module, chosen: slice = slice(None)) -> Tensor:
    return torch.cat([each.detach().float().flatten() for each in list(model.parameters())[chosen]])


def _count(model: nn.Module, *tensors: Tensor) -> int | None:
    weights = [Weight(str(place), each, each) for place, each in enumerate(tensors)]
    return MasterCopies(model, weights, LaterNumbers()).count


def test_that_flat_copies_are_counted() -> None:
    model = _model()
    assert _count(model, _flat(model)) == 1
    assert _count(model, torch.cat([_flat(model), torch.zeros(5)])) == 1  # filled up
    assert _count(model, _flat(model, slice(2)), _flat(model, slice(2, 4))) == 2  # one for each group
    matrices, biases = _flat(model, slice(0, 4, 2)), _flat(model, slice(1, 4, 2))
    assert _count(model, matrices, biases) == 2
    assert _count(model, *(each.detach().float() for each in model.parameters())) == 4


def test_that_other_tensors_are_no_copies() -> None:
    model, other = _model(), nn.Linear(6, 4)
    assert _count(model, _flat(other)) is None
    assert _count(model, torch.cat([_flat(model), torch.ones(5)])) is None
    assert _count(model, _flat(model) + 1e-2) is None
    assert _count(model, _flat(model).double()) is None
    assert _count(model, torch.zeros(39)) is None
    assert _count(model.float(), _flat(model)) is None  # nothing was rounded


@pytest.mark.parametrize("flat", [True, False])
def test_that_flat_masters_that_no_step_has_changed_are_not_foreign(flat: bool, tmp_path: Path) -> None:
    """The gradients overflow FP16 in each step, and the loop skips them."""
    model = _model()
    masters = [nn.Parameter(_flat(model))] if flat else [nn.Parameter(torch.randn(39))]
    optimizer = torch.optim.SGD(masters, 0.1)
    recorder = precgui.Recorder(tmp_path / "run.h5", model, optimizer)
    for _ in range(12):
        model.zero_grad()
        loss = model(torch.randn(16, 6).half()).float().square().mean()
        (loss * 1e8).backward()
        gradient = torch.cat([each.grad.float().flatten() for each in model.parameters() if each.grad is not None])
        assert not gradient.isfinite().all()
        recorder.step(loss)
    recorder.close()
    named = {each.rule for each in precgui.diagnose(tmp_path / "run.h5")}
    assert ("foreign-parameters" in named) is not flat


def _trained(tmp_path: Path, *, flat: bool = False, copied: bool = True, loss_of: float = 1.0) -> set[str]:
    """The rules that judge a training of masters, whose loss is multiplied by a factor, NaN too."""
    model = _model()
    wide = [_flat(model)] if flat else [each.detach().float().clone() for each in model.parameters()]
    masters = [nn.Parameter(each) for each in wide]
    optimizer = torch.optim.SGD(masters, 0.1)
    with precgui.Recorder(tmp_path / "run.h5", model, optimizer) as recorder:
        for _ in range(12):
            model.zero_grad()
            loss = loss_of * model(torch.randn(16, 6).half()).float().square().mean()
            loss.backward()
            gradients = [each.grad.float() for each in model.parameters() if each.grad is not None]
            wanted = [torch.cat([each.flatten() for each in gradients])] if flat else gradients
            for master, gradient in zip(masters, wanted, strict=True):
                master.grad = gradient
            optimizer.step()
            parts = masters[0].split([each.numel() for each in model.parameters()]) if flat else masters
            with torch.no_grad():
                for each, master in zip(model.parameters(), parts, strict=True):
                    if copied:
                        each.copy_(master.view(each.shape))
            recorder.step(loss)
    return {each.rule for each in precgui.diagnose(tmp_path / "run.h5")}


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("loss_of", [float("nan"), 1e-6])  # not finite from the first step on; it hardly falls
def test_that_masters_that_are_copied_back_are_not_foreign(flat: bool, loss_of: float, tmp_path: Path) -> None:
    assert "foreign-parameters" not in _trained(tmp_path, flat=flat, loss_of=loss_of)


@pytest.mark.parametrize("loss_of", [float("nan"), 1.0])
def test_that_masters_that_are_not_copied_back_are_foreign(loss_of: float, tmp_path: Path) -> None:
    assert "foreign-parameters" in _trained(tmp_path, copied=False, loss_of=loss_of)
