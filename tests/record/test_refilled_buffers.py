"""A batch whose memory NumPy fills again is compared with the numbers that the step has read, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import precgui
from precgui.engine.shadow import numbering

Buffer = NDArray[np.float32]


class _Refilled:
    """Batches in one buffer of NumPy, filled in place."""

    def __init__(self, width: int = 6) -> None:
        self.random = np.random.default_rng(0)
        self.buffer: Buffer = np.empty((64, width), np.float32)
        self.x = torch.from_numpy(self.buffer)
        self.fill()

    def fill(self) -> None:
        self.buffer[:] = self.random.standard_normal(self.buffer.shape)


def _rows(path: Path, step: Callable[[_Refilled, nn.Module, torch.optim.Optimizer], Tensor],
          after: Callable[[_Refilled], None] = lambda _: None, steps: int = 9) -> list[dict[str, Any]]:  # fmt: skip
    torch.manual_seed(0)
    data, model = _Refilled(), nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    recorder = precgui.Recorder(path, model, optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = step(data, model, optimizer)
        optimizer.step()
        after(data)
        recorder.step(loss)
    recorder.close()
    with precgui.open_run(path) as run:
        return list(run.environment["exact_steps"]["all"])


def _loss(model: nn.Module, x: Tensor) -> Tensor:
    return F.mse_loss(model(x)[:, 0], x[:, 0].tanh())


def _once(data: _Refilled, model: nn.Module, _: torch.optim.Optimizer) -> Tensor:
    loss = _loss(model, data.x)
    loss.backward()
    return loss


def test_that_a_buffer_that_is_filled_for_the_next_step_is_compared_as_it_was(tmp_path: Path) -> None:
    rows = _rows(tmp_path / "run.h5", _once, after=_Refilled.fill)
    assert [row["step"] for row in rows] == [1, 2, 8]
    assert all(row["gradient_error"] < 1e-4 for row in rows), rows


def test_that_a_buffer_that_is_filled_between_two_passes_is_compared_as_each_has_read_it(tmp_path: Path) -> None:
    def twice(data: _Refilled, model: nn.Module, _: torch.optim.Optimizer) -> Tensor:
        first = _once(data, model, _).detach()
        data.fill()
        return first + _once(data, model, _)

    rows = _rows(tmp_path / "run.h5", twice)
    assert all(row["gradient_error"] < 1e-4 for row in rows), rows


def test_that_a_shuffle_in_place_is_seen(tmp_path: Path) -> None:
    """The same numbers in another order."""
    rows = _rows(tmp_path / "run.h5", _once, after=lambda data: data.random.shuffle(data.buffer))
    assert all(row["gradient_error"] < 1e-4 for row in rows), rows


def test_that_a_buffer_that_is_filled_before_the_backward_pass_is_not_compared(tmp_path: Path) -> None:
    def too_early(data: _Refilled, model: nn.Module, _: torch.optim.Optimizer) -> Tensor:
        loss = _loss(model, data.x)
        data.fill()
        loss.backward()
        return loss

    rows = _rows(tmp_path / "run.h5", too_early)
    assert rows and all("NumPy" in row["unavailable"] for row in rows), rows
    assert "inexact-step" not in {each.rule for each in precgui.diagnose(tmp_path / "run.h5")}


def test_that_a_large_buffer_is_not_copied_and_not_compared_once_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbering, "_MOST_COPIED", 100)
    rows = _rows(tmp_path / "run.h5", _once, after=_Refilled.fill)
    assert rows and all("NumPy" in row["unavailable"] for row in rows), rows
    rows = _rows(tmp_path / "kept.h5", _once)
    assert all(row["gradient_error"] < 1e-4 for row in rows), rows


def test_that_torch_may_write_to_such_a_buffer(tmp_path: Path) -> None:
    def scaled(data: _Refilled, model: nn.Module, _: torch.optim.Optimizer) -> Tensor:
        data.fill()
        data.x.mul_(0.5)
        loss = _once(data, model, _)
        data.x.zero_()
        return loss

    rows = _rows(tmp_path / "run.h5", scaled)
    assert all(row["gradient_error"] < 1e-4 for row in rows), rows
