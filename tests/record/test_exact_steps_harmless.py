"""Loops that a tape of their step could harm: their memory, their random numbers, their operations."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precgui
from precgui.engine.shadow import loop_step
from precgui.engine.shadow.numbering import ValueNumbering

_calls: list[int] = []


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def _rows(path: Path) -> list[dict[str, Any]]:
    with precgui.open_run(path) as run:
        return list(run.environment["exact_steps"]["all"])


def test_that_memory_that_is_given_back_in_the_step_is_not_read(tmp_path: Path) -> None:
    model = _model()
    weights, kept = list(model.parameters()), [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(weights, 0.1)
    recorder = precgui.Recorder(tmp_path / "run.h5", model, optimizer)
    for _ in range(3):
        for weight, own in zip(weights, kept, strict=True):
            weight.data.untyped_storage().resize_(own.nbytes)
            weight.data.copy_(own)
        loss = model(torch.randn(32, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for weight, own in zip(weights, kept, strict=True):
            own.copy_(weight.data)
            weight.data.untyped_storage().resize_(0)
        recorder.step(loss)
    recorder.close()
    with precgui.open_run(tmp_path / "run.h5") as run:
        rows = run.environment.get("exact_steps", {}).get("all", [])
    assert [row["step"] for row in rows] == [1, 2], rows
    assert "resizes" in rows[0]["unavailable"] and "cannot be read" in rows[1]["unavailable"], rows


@torch.library.custom_op("precgui_tests::noisy", mutates_args=())
def _noisy(x: Tensor) -> Tensor:
    _calls.append(1)
    return x + 0.1 * torch.randn_like(x)


_noisy.register_autograd(lambda _, gradient: gradient)


def _train(path: Path | None) -> list[Tensor]:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = precgui.Recorder(path, model, optimizer) if path is not None else None
    for _ in range(10):
        loss = _noisy(model(torch.randn(32, 8))).mul_(2).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if recorder is not None:
            recorder.step(loss)
    if recorder is not None:
        recorder.close()
    calls = torch.tensor(len(_calls))
    _calls.clear()
    return [*(p.detach() for p in model.parameters()), torch.rand(2), calls]


def test_that_an_operation_of_the_users_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    assert all(torch.equal(a, b) for a, b in zip(_train(path), _train(None), strict=True))
    assert all(row["gradient_error"] < 1e-5 for row in _rows(path)), _rows(path)
    assert not [each for each in precgui.diagnose(path) if each.rule.startswith("inexact")]


def test_that_the_tape_is_let_go_without_the_garbage_collector(tmp_path: Path) -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    recorder = precgui.Recorder(tmp_path / "run.h5", model, optimizer)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            loss = model(torch.randn(4099, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
            kept = [each for each in gc.get_objects() if type(each) is Tensor and 4099 in each.shape]
            assert not kept, [each.shape for each in kept]
        assert not [each for each in gc.get_objects() if type(each) is ValueNumbering]
    finally:
        gc.enable()
    recorder.close()
    assert len(_rows(tmp_path / "run.h5")) == 2


def test_that_a_fault_of_a_replay_leaves_the_record_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise IndexError("no such dimension")

    monkeypatch.setattr(loop_step, "replay_exact", fails)
    _train(tmp_path / "run.h5")
    assert all("no such dimension" in row["unavailable"] for row in _rows(tmp_path / "run.h5"))
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.steps == 10


def test_that_an_operation_that_cannot_be_followed_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no such storage")

    monkeypatch.setattr(ValueNumbering, "id_of", fails)
    _train(tmp_path / "run.h5")
    reasons = {row["unavailable"] for row in _rows(tmp_path / "run.h5")}
    assert reasons and all("cannot be followed: no such storage" in reason for reason in reasons)
