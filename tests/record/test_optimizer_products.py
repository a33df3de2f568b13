"""Operations inside an optimizer are none of the model: they name no precision and have figures of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import precgui
from precgui.engine.lost_digits import LostDigits
from precgui.record import Recorder


class Iterating(Optimizer):
    """An optimizer that multiplies FP16 matrices far more than the model multiplies."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            if weight.ndim == 2:
                x = weight.grad.half()
                for _ in range(20):
                    x = (x @ x.mT @ x).clamp(-1, 1)
                weight.sub_(1e-3 * x.float())


def test_that_the_products_of_an_optimizer_do_not_name_the_precision(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    with Recorder(tmp_path / "run.h5", model, optimizer := Iterating(model.parameters())) as recorder:
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(torch.randn(8, 32))
            loss = outputs.float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.config.precision == "bf16-amp"
        census = run.environment["census"]
        assert list(census["formats"]) == ["bf16"]
        assert list(census["optimizer"]) == ["fp16"]
        assert census["optimizer"]["fp16"] > census["flops"]
        assert "autocast-not-seen" not in [each.rule for each in precgui.diagnose(run)]


@pytest.mark.parametrize(("small", "share"), [(1e-5, 1.0), (1.0, 0.0)])
def test_that_results_below_the_range_of_fp16_are_counted(small: float, share: float) -> None:
    lost, mul = LostDigits(), torch.ops.aten.mul.Tensor
    factor = torch.full((8,), 0.001, dtype=torch.float16)
    args = (factor, small * torch.ones(8, dtype=torch.float16))
    after = lost.before(mul, args, {}, None, in_optimizer=True)
    assert after is not None
    after(mul(*args))
    assert lost.facts()["optimizer_loss"]["share"] == share


def test_that_terms_that_vanish_in_a_sum_are_counted_also_in_place() -> None:
    for operation in (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor):
        lost = LostDigits()
        state = torch.full((4,), 256.0, dtype=torch.bfloat16)
        args = (state, torch.tensor([0.5, 0.0, 4.0, 0.25], dtype=torch.bfloat16))
        after = lost.before(operation, args, {}, "part", in_optimizer=False)
        assert after is not None
        after(operation(*args))
        row = lost.facts()["additions"]["part"]
        assert (row["format"], row["elements"]) == ("bf16", 3)
        assert row["swallowed"] == pytest.approx(2 / 3)
