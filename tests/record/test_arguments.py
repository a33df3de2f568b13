"""What a recorder is given that is of no use: one sentence, and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import precgui
from precgui.record import Recorder
from tests.record.test_recorder import network


def test_that_an_unknown_precision_is_one_sentence(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(ValueError, match=r"^'fp17' is not one of") as raised:
        Recorder(tmp_path / "run.h5", model, torch.optim.SGD(model.parameters()), precision="fp17")
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"model": len}, "model must be a torch.nn.Module, not builtin_function_or_method"),
        ({"optimizer": "adam"}, "or None where the loop updates its weights by itself, not 'adam'"),
        ({"scaler": 1024}, "scaler must be a torch.amp.GradScaler or None, not int"),
    ],
)
def test_that_what_is_no_part_of_a_loop_is_named(tmp_path: Path, parts: dict[str, Any], told: str) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=told):
        Recorder(tmp_path / "run.h5", **{"model": model, "optimizer": optimizer, **parts})
    assert not list(tmp_path.iterdir())


def test_that_a_loss_that_is_no_number_is_named_and_is_no_step(tmp_path: Path) -> None:
    model = network()
    with Recorder(tmp_path / "run.h5", model, torch.optim.SGD(model.parameters(), lr=0.1)) as recorder:
        for loss in (torch.ones(3), torch.ones(1, dtype=torch.complex64), None, "0.5"):
            with pytest.raises(TypeError, match="loss must be"):
                recorder.step(loss)
        recorder.step(np.float32(0.5))
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.series("loss")[1].tolist() == [0.5]


def test_that_a_whole_number_beyond_every_float_is_an_infinite_loss(tmp_path: Path) -> None:
    """It was an OverflowError in the loop of the user."""
    model = network()
    with Recorder(tmp_path / "run.h5", model, torch.optim.SGD(model.parameters(), lr=0.1)) as recorder:
        recorder.step(10**400)
        recorder.step(-(10**400))
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.series("loss")[1].tolist() == [float("inf"), float("-inf")]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"optimizer": []}, r"by itself, not \[\]"),
        ({"scaler": torch.amp.GradScaler}, "not the class GradScaler"),
        ({"model": nn.LazyLinear(3)}, "call it once before recording"),
        ({"path": ""}, "no name for a file"),
        ({"path": 3}, "path must be a str or a Path, not int"),
        ({"title": "x" * 300}, "300 characters are too many"),
        ({"record": "all"}, "record: 'all': input should be"),
        ({"metric": None}, "metric must be a name or a precgui.Metric"),
        ({"precision": 16}, "precision must be a name, not int"),
        ({"total_steps": 2.5}, "total_steps must be a whole number, not 2.5"),
        ({"steps_per_epoch": -1}, "steps_per_epoch must be 0 or more, not -1"),
    ],
)
def test_that_what_is_of_no_use_is_told_in_one_sentence(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    model = network()
    wanted: dict[str, Any] = {"path": tmp_path / "run.h5", "model": model}
    wanted["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises((TypeError, ValueError), match=told) as raised:
        Recorder(**{**wanted, **given})
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())
    assert not any(module._forward_hooks for module in model.modules())


def test_that_numbers_of_no_use_cost_no_record(tmp_path: Path) -> None:
    model = network()
    recorder = Recorder(tmp_path / "run.h5", model, torch.optim.SGD(model.parameters(), lr=0.1))
    for samples in ("x", 2.5, None, -1):
        with pytest.raises((TypeError, ValueError), match="samples must be"):
            recorder.step(1.0, samples=samples)
    with pytest.raises(TypeError, match="accuracy must be a number"):
        recorder.evaluated(1.0, "good")
    recorder.step(1.0, samples=3)
    recorder.close()
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.steps) == ("completed", 1)
