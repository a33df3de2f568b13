"""A forward pass in 16 bits that is not finite is repeated in FP32, in the very step and without a trace."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precgui
from precgui.engine.telemetry.fp32_repetition import Fp32Arithmetic
from precgui.record import Recorder
from precgui.runs.recorded_facts import fp32_repetition

BAD = 4  # the step whose inputs are large


class Scores(nn.Module):
    """Scores of attention: large inputs overflow FP16 in their product."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.last = nn.BatchNorm1d(8), nn.Linear(8, 16), nn.Linear(16, 4)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.first(self.norm(x) * x.abs().amax(1, keepdim=True)))
        scores = (h @ h.mT) / 1000
        return self.last(scores.softmax(-1) @ h)


class Casts(Scores):
    """Casts to FP16 by itself, and asks for its type."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.norm(x) * x.abs().amax(1, keepdim=True))
        low = h.to(torch.float16)
        room = torch.empty(2, *low.shape, dtype=torch.float16)
        room[0].copy_(low * low)
        return self.last((low * low).float().sqrt() + 0 * h)


class HalfConvolutions(Scores):
    """Two convolutions in FP16, between which numbers overflow."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(1, 4, 3, padding=1).half(), nn.Conv1d(4, 1, 3, padding=1).half()
        self.register_buffer("shift", torch.zeros(1, dtype=torch.float16))

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x.half()[:, None]) * x.half()[:, None] + self.shift
        return self.last(self.first(self.two(h).float()[:, 0] / 1e6))


class Cancels(Scores):
    """The variance as E[x^2] - E[x]^2, whose root is NaN in BF16."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.norm(x)) + x.abs().max().clamp(max=100)
        variance = (h * h).mean(1, keepdim=True) - h.mean(1, keepdim=True).square()
        return self.last(h / variance.sqrt())


class DividesByZero(Scores):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.norm(x))
        divisor = (x.abs().max() < 1000).to(h.dtype)
        return self.last(h * divisor / divisor)


class Masks(Scores):
    """Outputs with -Inf, as a mask puts it, in each step."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros(4)
        mask[3] = -math.inf
        return super().forward(x) + mask


class Delayed(Scores):
    """Casts to E5M2 with the scale of the pass before, which it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0.0

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        peak = float(h.detach().abs().max())
        scale = 50000 / (self.peak or peak)
        self.peak = peak
        return self.last((h * scale).to(torch.float8_e5m2).float() / scale)


def train(
    path: Path | None, make: Callable[[], nn.Module], low: torch.dtype | None, *, bad: int = BAD, large: float = 1e4
) -> tuple[list[float], list[Tensor], list[float]]:
    """A loop whose inputs are large in one step: losses, state of the model, the next random numbers."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=low is not None)
    recorder = Recorder(path, model, optimizer, scaler if low is not None else None) if path else None
    losses = []
    for step in range(1, 8):
        x, y = torch.randn(16, 8) * (large if step == bad else 1), torch.randint(3, (16,))
        optimizer.zero_grad()
        with torch.autocast("cpu", low or torch.bfloat16, enabled=low is not None):
            outputs = model(x)
        loss = F.cross_entropy(outputs.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
        if recorder is not None:
            recorder.step(loss)
    if recorder is not None:
        recorder.close()
    state = [tensor.clone() for tensor in model.state_dict().values()]
    return losses, state, [float(torch.rand(())), random.random(), float(np.random.random())]  # noqa: NPY002


def recorded(path: Path, step: int = BAD) -> Mapping[str, Any]:
    with precgui.open_run(path) as run:
        return fp32_repetition(run, step)


@pytest.mark.parametrize(
    ("make", "low", "finite"),
    [
        (Scores, torch.float16, True),
        (Casts, None, True),
        (HalfConvolutions, None, True),
        (Casts, torch.bfloat16, True),
        (Cancels, torch.bfloat16, True),
        (DividesByZero, torch.float16, False),
        (DividesByZero, torch.bfloat16, False),
    ],
)
def test_that_a_pass_that_only_16_bits_break_is_told_from_one_that_fp32_breaks(
    tmp_path: Path, make: Callable[[], nn.Module], low: torch.dtype | None, finite: bool
) -> None:
    losses, *_ = train(tmp_path / "run.h5", make, low)
    assert not math.isfinite(losses[BAD - 1])
    told = recorded(tmp_path / "run.h5")
    assert (told["finite"], told["part"], told["why"]) == (finite, "forward", "")
    assert told["module"]
    assert recorded(tmp_path / "run.h5", BAD - 1) == {}


def test_that_a_pass_is_repeated_with_the_state_that_it_began_with(tmp_path: Path) -> None:
    losses, *_ = train(tmp_path / "run.h5", Delayed, None, large=4.0)
    assert not math.isfinite(losses[BAD - 1])
    told = recorded(tmp_path / "run.h5")
    assert (told["finite"], told["why"]) == (True, "")
    assert told["cast"]["format"] == "e5m2"
    assert told["cast"]["value"] > 57344
    assert 0 < told["cast"]["share"] < 1
    assert told["cast"]["scale"] > 0


def test_that_a_mask_of_minus_infinity_is_no_fault(tmp_path: Path) -> None:
    train(tmp_path / "first.h5", Masks, torch.float16, bad=1)
    assert recorded(tmp_path / "first.h5", 1)["finite"] is True
    train(tmp_path / "none.h5", Masks, torch.float16, bad=0)
    with precgui.open_run(tmp_path / "none.h5") as run:
        assert "fp32_repetition" not in run.environment


@pytest.mark.parametrize("make", [Scores, Casts, Cancels, Masks, Delayed])
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_that_the_repetition_changes_no_bit(tmp_path: Path, make: Callable[[], nn.Module], low: torch.dtype) -> None:
    plain, watched = train(None, make, low), train(tmp_path / "run.h5", make, low)
    assert np.array_equal(plain[0], watched[0], equal_nan=True)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(plain[1], watched[1], strict=True))
    assert plain[2] == watched[2]


def test_that_a_run_in_fp32_says_nothing_of_it(tmp_path: Path) -> None:
    losses, *_ = train(tmp_path / "run.h5", DividesByZero, None)
    assert not math.isfinite(losses[BAD - 1])
    assert recorded(tmp_path / "run.h5") == {}


def test_that_weights_and_inputs_that_are_not_finite_decide_nothing(tmp_path: Path) -> None:
    train(tmp_path / "inputs.h5", Scores, torch.float16, large=math.inf)
    told = recorded(tmp_path / "inputs.h5")
    assert (told["finite"], told["why"]) == (None, "the inputs of the model were not finite")

    def spoilt() -> nn.Module:
        model = Scores()
        nn.init.constant_(model.last.bias, math.nan)
        return model

    train(tmp_path / "weights.h5", spoilt, torch.float16)
    told = recorded(tmp_path / "weights.h5", 1)
    assert (told["finite"], told["why"]) == (None, "the weights were not finite before the pass")


def test_that_a_model_with_weights_in_16_bits_is_repeated_with_the_same_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)).half()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with Recorder(tmp_path / "run.h5", model, optimizer) as recorder:
        for step in range(1, 6):
            x = torch.randn(16, 8).half() * (6e4 if step == BAD else 1)
            loss = F.cross_entropy(model(x.clamp(-6e4, 6e4)).float(), torch.randint(4, (16,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
    assert not math.isfinite(float(loss.detach())) or recorded(tmp_path / "run.h5")["finite"] is True
    assert recorded(tmp_path / "run.h5")["finite"] is True


def test_that_a_result_that_is_rounded_on_its_way_decides_nothing() -> None:
    x, mode = torch.full((4,), 300.0), Fp32Arithmetic()
    room = torch.zeros(4, dtype=torch.float16)
    with mode:
        square = x.half() * x.half()
        room[:2].copy_(square[:2])
    assert square.tolist() == [9e4] * 4
    assert room.tolist() == [math.inf, math.inf, 0, 0]
    assert mode.widened
    assert mode.rounds
