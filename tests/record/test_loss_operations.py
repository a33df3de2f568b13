"""A loss that breaks in a step that nobody watches: the operations between outputs and loss that may have done it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import precgui
from precgui.runs.diagnosis import Finding, diagnose
from precgui.runs.recorded_facts import fact_rows

Loss = Callable[[Tensor, Tensor, bool], Tensor]


def of_chosen(outputs: Tensor, target: Tensor, breaks: bool) -> Tensor:
    """A mean over the samples of a class, of which a batch may have none."""
    mask = (target == (7 if breaks else 1)).float()
    return (F.cross_entropy(outputs, target, reduction="none") * mask).sum() / mask.sum()


def of_counted(outputs: Tensor, target: Tensor, breaks: bool) -> Tensor:
    mask = target == (7 if breaks else 1)
    return (F.cross_entropy(outputs, target, reduction="none") * mask).sum() / mask.sum()


def of_logarithm(outputs: Tensor, target: Tensor, breaks: bool) -> Tensor:
    return -(outputs.softmax(-1)[:, 0] * (0 if breaks else 1)).log().mean() + F.cross_entropy(outputs, target)


def of_distance(outputs: Tensor, target: Tensor, breaks: bool) -> Tensor:
    apart = outputs[:, 0] - (outputs[:, 0].clone() if breaks else outputs[:, 1])
    return F.cross_entropy(outputs, target) + 0.1 * apart.square().sqrt().mean()


def of_two(outputs: Tensor, target: Tensor, breaks: bool) -> Tensor:
    return of_logarithm(outputs, target, breaks) + (outputs.square() + 0.5).sqrt().mean()


def of_gains(outputs: Tensor, target: Tensor, breaks: bool) -> Tensor:
    """Gains that are scaled by their deviation, without a gradient: of one sample it is NaN."""
    kept = slice(0, 1 if breaks else 64)
    gains = target[kept].float()
    gains = (gains - gains.mean()) / (gains.std() + 1e-8)
    return F.cross_entropy(outputs, target) - 0.01 * (gains * outputs[kept].log_softmax(-1)[:, 0]).mean()


def of_sequences(outputs: Tensor, target: Tensor, breaks: bool) -> Tensor:
    """A CTC loss of 16 inputs of 4 places; two equal targets need one more."""
    targets = torch.tensor([[1, 1, 1] if breaks else [1, 2, 3]]).repeat(16, 1)
    places = outputs.view(4, 16, 5).log_softmax(-1)
    return F.ctc_loss(places, targets, torch.full((16,), 4), torch.full((16,), 3))


def recorded(path: Path, loss_of: Loss, breaking: int) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with precgui.Recorder(path, model, optimizer) as recorder:
        for step in range(1, 41):
            inputs, target = torch.randn(64, 20), torch.randint(0, 5, (64,))
            loss = loss_of(model(inputs), target, step == breaking)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
    return [each for each in diagnose(path) if each.is_problem]


@pytest.mark.parametrize(
    ("loss_of", "operation"),
    [
        (of_chosen, "div"),
        (of_counted, "div"),
        (of_logarithm, "log"),
        (of_distance, "sqrt"),
        (of_gains, "std"),
        (of_sequences, "ctc_loss"),
    ],
)
@pytest.mark.filterwarnings("ignore:std\\(\\)")  # of one number
@pytest.mark.parametrize(("breaking", "word"), [(21, ": suspect is {}"), (8, ": {}")])
def test_that_the_line_of_a_loss_that_breaks_once_is_named(
    loss_of: Loss, operation: str, breaking: int, word: str, tmp_path: Path
) -> None:
    found = recorded(tmp_path / "run.h5", loss_of, breaking)[0]
    assert (found.rule, found.first_step) == ("undefined-operation", breaking)
    if breaking == 8 and (loss_of in (of_distance, of_gains, of_sequences)):  # a watched step has other witnesses
        assert any(word in found.title for word in ("test_loss_operations.py:", "ctc_loss"))
        return
    assert word.format(f"{operation} at test_loss_operations.py:") in found.title
    assert ("is undefined there" in found.title) is (breaking == 8)
    assert found.fix.startswith(f"Look first at {operation} at test_loss_operations.py:")


def test_that_two_suspects_are_both_told_and_none_is_named_in_the_title(tmp_path: Path) -> None:
    found = recorded(tmp_path / "run.h5", of_two, 21)[0]
    assert "suspect" not in found.title
    assert all(f"{operation} at test_loss_operations.py:" in found.fix for operation in ("log", "sqrt"))


def test_that_only_operations_outside_of_the_model_that_a_gradient_passes_are_rows(tmp_path: Path) -> None:
    class Rooted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 5)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = (self.layer(x).square() + 1).sqrt()
            return outputs

    torch.manual_seed(0)
    model = Rooted()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with precgui.Recorder(tmp_path / "run.h5", model, optimizer) as recorder:
        for _ in range(10):
            inputs = torch.randn(64, 20)
            inputs = inputs / inputs.std(0)
            outputs = model(inputs)
            loss = (outputs / (outputs.detach().norm() / 3 + 1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
    with precgui.open_run(tmp_path / "run.h5") as run:
        rows = {row["operation"]: row for row in fact_rows(run, "loss_operations")}
    assert rows.keys() == {"div", "linalg_vector_norm"}  # not that of the inputs, nor that of the model
    row = rows["div"]
    assert (row["operation"], row["format"], row["count"]) == ("div", "fp32", 3)
    assert row["distance"] > 1
    assert row["nearest"] in (1, 2, 8)
    assert not any(each.is_problem for each in diagnose(tmp_path / "run.h5"))
