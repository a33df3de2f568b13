"""Losses that 16 bits alone break are computed beside them in FP32, which changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precgui
from precgui.record import Recorder
from precgui.runs.recorded_facts import fact_rows


def _train(path: Path | None, low: torch.dtype, bad: int = 12) -> list[Tensor]:
    """A loop with dropout, batch norm and operations in place, whose loss is Inf from step `bad` on."""
    torch.manual_seed(0)
    relu = nn.ReLU(inplace=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), relu, nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    recorder: Any = Recorder(path, model, optimizer, scaler) if path is not None else None
    for step in range(1, 20):
        x, y = torch.randn(32, 8), torch.randint(3, (32,))
        with torch.autocast("cpu", low):
            outputs = model(x)
        p = F.dropout(outputs, 0.1).softmax(1)
        p = p.clone().mul_(0.0 if step >= bad else 1.0).add_(1e-8)
        loss = (F.one_hot(y, 3) * p.clamp(min=1e-8).log()).sum(1).neg().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if recorder is not None:
            recorder.step(loss)
    if recorder is not None:
        recorder.close()
    return [*(each.clone() for each in model.state_dict().values()), torch.rand(3)]


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_that_a_watched_step_after_a_bad_one_changes_no_bit(low: torch.dtype, tmp_path: Path) -> None:
    plain, watched = _train(None, low), _train(tmp_path / "run.h5", low)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_that_the_step_after_a_bad_one_tells_what_16_bits_made_of_its_loss(tmp_path: Path) -> None:
    _train(tmp_path / "run.h5", torch.float16)
    with precgui.open_run(tmp_path / "run.h5") as run:
        rows = [each for each in fact_rows(run, "finite_in_fp32") if each["use"] == "loss"]
    assert [each["step"] for each in rows][:1] == [13]
    assert (rows[0]["kind"], rows[0]["format"]) == ("zero", "fp16")
    assert rows[0]["value"] == pytest.approx(18.4, abs=0.5)


def test_that_a_finite_loop_has_no_such_row(tmp_path: Path) -> None:
    _train(tmp_path / "run.h5", torch.float16, bad=99)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert [each for each in fact_rows(run, "finite_in_fp32") if each["use"] == "loss"] == []
