"""The shadow of a step of one's own loop: the lines that Inspect offers, run as they are, fill its tabs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import precgui
from precgui.runs.anatomy import ANATOMIES
from precgui.runs.errors import RunFileError
from precgui.runs.loop_lines import shadow_lines
from precgui.runs.replays import REPLAYS

STEPS, KEPT = 4, 3


class Loop:
    """Three lines of training, in FP16 autocast with a scaler."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.inputs, self.targets = torch.randn(32, 8), torch.randint(2, (32,))

    def passes(self) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(self.model(self.inputs), self.targets)
        self.scaler.scale(loss).backward()
        return loss

    def train(self, path: Path, lines: str = "") -> list[float]:
        losses = []
        with precgui.Recorder(path, self.model, self.optimizer, self.scaler) as recorder:
            for number in range(1, STEPS + 1):
                self.optimizer.zero_grad()
                names = {"precgui": precgui, "model": self.model, "scaler": self.scaler, "passes": self.passes}
                if lines and number == KEPT:
                    exec(lines.replace("...", "loss = passes()"), names)
                loss = names["loss"] if "loss" in names else self.passes().detach()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                recorder.step(loss, samples=32)
                losses.append(float(loss))
        return losses


def test_that_the_offered_lines_keep_the_step_and_change_no_loss(tmp_path: Path) -> None:
    first, second = tmp_path / "first.h5", tmp_path / "second.h5"
    losses = Loop().train(first)
    with precgui.open_run(first) as run:
        lines = shadow_lines(run, KEPT)
    assert Loop().train(second, lines) == losses
    [replay], [anatomy] = REPLAYS.all(first), ANATOMIES.all(first)
    assert (replay.step, anatomy.step) == (KEPT, KEPT) and anatomy.precision == "fp16-amp"
    assert anatomy.moments.scale == 1024.0 and anatomy.operations
    assert replay.lines and replay.lines[0].left_measured is not None
    with precgui.open_run(second) as run:
        assert [finding for finding in precgui.diagnose(run) if finding.severity != "info"] == []


def test_that_a_loop_without_a_scaler_is_offered_no_scale(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with precgui.Recorder(tmp_path / "run.h5", model, torch.optim.SGD(model.parameters(), lr=0.1)) as recorder:
        loss = model(torch.ones(3, 2)).mean()
        loss.backward()
        recorder.step(loss)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert "scale" not in shadow_lines(run, 1)
    shadow = precgui.shadow(lambda: _passes(model), model)
    with pytest.raises(RunFileError, match="no step 7; its last recorded step is 1"):
        precgui.keep_shadow(shadow, tmp_path / "run.h5", 7)
    with pytest.raises(RunFileError):
        precgui.keep_shadow(shadow, tmp_path / "absent.h5", 1)


def _passes(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(torch.ones(3, 2)).mean()
    loss.backward()
    return loss
