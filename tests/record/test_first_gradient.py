"""One answer to which gradient broke first, for the event of a run and for its recorded tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import precgui
from precgui.config import RecordConfig
from precgui.events import TENSOR_STATS
from precgui.runs.tensors.first_broken import first_broken


class Affine(nn.Module):
    """x @ weight + bias: its bias is the first of the two in the backward pass."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.1)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Spoilt(torch.autograd.Function):
    """A finite value with an infinite gradient."""

    @staticmethod
    def forward(context: Any, values: Tensor, bad: bool) -> Tensor:
        context.bad = bad
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return (gradient * torch.inf if context.bad else gradient), None


@pytest.mark.parametrize("every", [1, 0])
@pytest.mark.parametrize("bad_step", [1, 3])
@pytest.mark.parametrize("layer", [Affine, nn.Linear])
def test_that_event_and_tensors_name_the_same_gradient(
    tmp_path: Path, layer: type[nn.Module], bad_step: int, every: int
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(layer(8, 8), nn.ReLU(), layer(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recorder = precgui.Recorder(
        tmp_path / "run.h5", model, optimizer, record=RecordConfig(budget=100, gradients_every=every)
    )
    for step in range(1, 5):
        optimizer.zero_grad()
        loss = Spoilt.apply(model(torch.randn(16, 8)), step == bad_step).square().mean()
        loss.backward()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.step()
        if step == bad_step:
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), before, strict=True):
                    parameter.copy_(value)
        recorder.step(loss)
    recorder.close()
    run = precgui.open_run(tmp_path / "run.h5")
    (event,) = [each for each in run.events("nonfinite_gradient") if each.step == bad_step]
    expected = next(name for name in run.model().backward_order())
    assert event.module == expected
    if every:
        history = run.tensors()["gradient"]
        row = int(np.flatnonzero(history.steps() == bad_step)[0])
        places = [TENSOR_STATS.index(name) for name in ("nan", "pos_inf", "neg_inf")]
        counts = np.nansum(history.stats(row, row + 1)[0][:, places], 1)
        bad = [name for name, count in zip(history.names, counts, strict=True) if count]
        assert first_broken(run, "gradient", bad_step, bad) == expected
