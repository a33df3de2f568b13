"""What a recording notes of the batches that the model gets."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precgui
from precgui.runs.diagnosis import examine
from precgui.runs.recorded_facts import fact_rows


class _Summed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 1)

    def forward(self, batch: Any, *, labels: Tensor | None = None) -> Tensor:
        out: Tensor = self.layer(batch["pixels"] if isinstance(batch, dict) else batch).mean()
        return out if labels is None else out + labels.float().mean()


def _recorded(path: Path, batch: Callable[[int], Any], steps: int = 42, evaluated: int = 0, **more: Any) -> Path:
    model = _Summed()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with precgui.Recorder(path, model, optimizer) as recorder:
        for step in range(1, steps + 1):
            loss = model(batch(step), **more)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if evaluated:
                with torch.no_grad():
                    model(torch.randn(evaluated, 16))
            recorder.step(loss)
    return path


def _rows(path: Path, name: str) -> list[Any]:
    with precgui.open_run(path) as run:
        return fact_rows(run, name)


def _infos(path: Path) -> list[str]:
    with precgui.open_run(path) as run:
        return [each.rule for each in examine(run).findings]


def test_that_tensors_are_named_by_their_place(tmp_path: Path) -> None:
    def batch(step: int) -> Any:
        return {"pixels": torch.randn(8, 16), "more": [torch.arange(8), torch.ones(8, dtype=torch.bool)]}

    path = _recorded(tmp_path / "run.h5", batch, 2, labels=torch.zeros(8, dtype=torch.long))
    rows = _rows(path, "batches")
    assert [(row["step"], row["input"], row["samples"], row["numbers"], row["alike"]) for row in rows] == [
        (step, *each)
        for step in (1, 2)
        for each in [("0.pixels", 8, 16, False), ("0.more.0", 8, 1, False), ("labels", 8, 1, True)]
    ]


@pytest.mark.parametrize(("anew", "evaluated", "told"), [(True, 0, True), (False, 0, False), (False, 100, True)])
def test_that_one_batch_again_and_again_is_told(anew: bool, evaluated: int, told: bool, tmp_path: Path) -> None:
    """Unless it lies in the same memory and is all that the loop ever shows its model."""
    kept = [torch.randn(20, 16)]

    def batch(step: int) -> Tensor:
        if anew:
            kept.append(kept[0].clone())  # each in memory of its own: what is freed may be taken again
        return kept[-1]

    path = _recorded(tmp_path / "run.h5", batch, evaluated=evaluated)
    assert _rows(path, "repeated_batch")[0]["samples"] == 20
    assert ("one-batch" in _infos(path)) == told


def test_that_images_with_black_corners_are_no_repeated_batch(tmp_path: Path) -> None:
    def batch(step: int) -> Tensor:
        return torch.cat([torch.zeros(64, 1), torch.rand(64, 15)], 1)

    assert _rows(_recorded(tmp_path / "run.h5", batch), "repeated_batch") == []


def test_that_batches_with_infinity_are_not_taken_for_one(tmp_path: Path) -> None:
    def batch(step: int) -> Tensor:
        return torch.cat([torch.full((8, 1), math.inf), torch.randn(8, 15)], 1)

    assert _rows(_recorded(tmp_path / "run.h5", batch), "repeated_batch") == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_that_nan_in_a_batch_is_counted_in_its_step(value: float, tmp_path: Path) -> None:
    def batch(step: int) -> Tensor:
        x = torch.randn(8, 16)
        x[2, 3] = value if step == 5 else x[2, 3]
        return x

    rows = _rows(_recorded(tmp_path / "run.h5", batch, 5), "broken_batches")
    nan = int(math.isnan(value))
    assert rows == [{"step": 5, "input": "0", "numbers": 128, "nan": nan, "infinite": 1 - nan, "format": ""}]


def test_that_holes_that_a_model_fills_are_not_taken_for_the_cause(tmp_path: Path) -> None:
    """NaN stands for what is missing in each batch; the loss of step 9 breaks by a logarithm."""

    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x.nan_to_num())
            return out

    model = Filled()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with precgui.Recorder(tmp_path / "run.h5", model, optimizer) as recorder:
        for step in range(1, 10):
            x = torch.randn(8, 16)
            x[0, 0] = math.nan
            loss = (model(x).mean().square() * (step < 9)).log() if step == 9 else model(x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
    assert "data-not-finite" not in _infos(tmp_path / "run.h5")


def test_that_a_model_without_arguments_is_recorded(tmp_path: Path) -> None:
    class Free(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.level = nn.Parameter(torch.ones(3))

        def forward(self) -> Tensor:
            return self.level.sum()

    model = Free()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with precgui.Recorder(tmp_path / "run.h5", model, optimizer) as recorder:
        for _ in range(3):
            loss = model()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
    assert _rows(tmp_path / "run.h5", "batches") == []


def test_that_another_default_format_is_no_fault(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        path = _recorded(tmp_path / "run.h5", lambda step: torch.randn(8, 16))
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(_rows(path, "batches")) == 4


def test_that_a_batch_that_cannot_be_read_does_not_end_the_recording(tmp_path: Path) -> None:
    path = _recorded(tmp_path / "run.h5", lambda step: torch.randn(8, 16).to_sparse(), 3)
    with precgui.open_run(path) as run:
        assert len(run.series("loss")[1]) == 3
