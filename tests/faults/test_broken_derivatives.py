"""Gradients that are not finite at a finite loss: the operation, its line and the cure are named."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from precgui.config import RecordConfig
from precgui.runs.diagnosis import Diagnosis
from tests.faults.odd_loops import judged
from tests.faults.published_faults import Open

_STEPS, _RAGGED_FROM = 12, 4


class _Attention(nn.Module):
    """`masking`: how the scores of padding are hidden; `clean`: whether NaN of rows of padding is replaced."""

    def __init__(self, masking: str, *, clean: bool) -> None:
        super().__init__()
        self.embed, self.qkv, self.head = nn.Linear(5, 16), nn.Linear(16, 48), nn.Linear(16, 3)
        self.masking, self.clean = masking, clean

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(x)).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 4
        if self.masking == "filled":
            scores = scores.masked_fill(hidden, -math.inf)
        elif self.masking == "added":
            scores = scores + torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)
        else:
            scores = scores.masked_fill(hidden, -1e9)
        weights = scores.softmax(-1)
        if self.clean:
            weights = weights.masked_fill(hidden, 0.0)
        out: Tensor = self.head(weights @ v)
        return out


def _train_padded(opened: Open, masking: str, *, clean: bool, bad_target: bool = False) -> None:
    model = _Attention(masking, clean=clean)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    recorder = opened(model, optimizer)
    for step in range(_STEPS):
        x, targets = torch.randn(8, 6, 5), torch.randint(3, (8, 6))
        padding = torch.arange(6) < torch.randint(0, 4, (8, 1)) * (step >= _RAGGED_FROM)
        hidden = torch.ones(6, 6, dtype=torch.bool).triu(1) | padding[:, None]
        outputs = model(x, hidden)
        loss = F.cross_entropy(outputs.flatten(0, 1), targets.masked_fill(padding, -100).flatten())
        if bad_target and step >= _RAGGED_FROM:
            loss = loss + (outputs[~padding] * 0).abs().sum().sqrt()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


def _judged_padded(path: Path, masking: str, *, clean: bool, bad_target: bool = False) -> Diagnosis:
    return judged(
        lambda opened: _train_padded(opened, masking, clean=clean, bad_target=bad_target), path, RecordConfig()
    )


@pytest.mark.parametrize("masking", ["filled", "added"])
def test_that_a_softmax_over_rows_that_are_masked_throughout_is_named(masking: str, tmp_path: Path) -> None:
    [found] = _judged_padded(tmp_path / "run.h5", masking, clean=False).problems
    assert (found.rule, found.precision_is_to_blame) == ("undefined-operation", False)
    assert "masked throughout" in found.title and "test_broken_derivatives.py:" in found.title
    assert "finite" in found.fix and "-Inf" in found.fix


def test_that_rows_masked_by_a_finite_number_and_rows_that_are_replaced_are_left_alone(tmp_path: Path) -> None:
    for place, (masking, clean) in enumerate([("finite", False), ("filled", True)]):
        assert _judged_padded(tmp_path / f"{place}.h5", masking, clean=clean).problems == ()


def test_that_masked_rows_which_are_replaced_are_not_blamed_for_the_derivative_of_another_operation(
    tmp_path: Path,
) -> None:
    [found] = _judged_padded(tmp_path / "run.h5", "filled", clean=True, bad_target=True).problems
    assert found.rule == "undefined-operation"
    assert "masked throughout" not in found.title


def _root(x: Tensor) -> Tensor:
    return torch.where(x > 0, x.sqrt(), 0.0)


def _distances(x: Tensor) -> Tensor:
    """Of each pair: of a sample and itself it is 0, where the root has no finite derivative."""
    squares = (x[:, None] - x).square().sum(-1)
    return torch.where(squares > 0, squares.sqrt(), 0.0)


def _bounded_distances(x: Tensor) -> Tensor:
    squares = (x[:, None] - x).square().sum(-1)
    return squares.clamp(min=1e-12).sqrt()


def _guarded_root(x: Tensor) -> Tensor:
    return torch.where(x > 0, torch.where(x > 0, x, 1.0).sqrt(), 0.0)


def _train_root(opened: Open, root: object) -> None:
    assert callable(root)
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    recorder = opened(model, optimizer)
    for _ in range(_STEPS):
        loss = (root(model(torch.randn(32, 5))) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


@pytest.mark.parametrize("root", [_root, _distances])
def test_that_the_branch_which_where_does_not_take_is_named(root: object, tmp_path: Path) -> None:
    [found] = judged(lambda opened: _train_root(opened, root), tmp_path / "run.h5", RecordConfig()).problems
    assert (found.rule, found.precision_is_to_blame) == ("undefined-operation", False)
    assert "test_broken_derivatives.py:" in found.title
    assert "both branches" in found.fix


@pytest.mark.parametrize("root", [_guarded_root, _bounded_distances])
def test_that_a_harmless_argument_before_the_root_is_left_alone(root: object, tmp_path: Path) -> None:
    found = judged(lambda opened: _train_root(opened, root), tmp_path / "run.h5", RecordConfig())
    assert found.problems == ()
