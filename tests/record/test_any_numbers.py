"""The recorder, the readers of its file and the rules take any number that a loop may have."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import precgui
from precgui.cli.main import main
from precgui.config import RecordConfig, RunConfig, build
from precgui.events import (
    EXPONENT_BINS,
    TENSOR_STATS,
    Evaluated,
    Event,
    Facts,
    HostRead,
    PowerRead,
    RunEnded,
    RunStarted,
    StepDone,
    TensorStats,
)
from precgui.record import Recorder
from precgui.runs.file.writer import RunWriter
from precgui.runs.live import LiveRun

NUMBERS = [0.0, -0.0, 5e-324, 2.0**-149, -1.0, 1e300, -1e300, math.inf, -math.inf, math.nan]
STEPS = 24
EVERYTHING = RecordConfig(budget=100, weights_every=1, activations_every=1, activation_gradients_every=1)


class AnyScaler:
    """A loss scaler of somebody's own, whose scale is what it is told."""

    def __init__(self, scale: float) -> None:
        self._scale, self._init_scale = torch.tensor(scale, dtype=torch.float64), scale

    def get_scale(self) -> float:
        return self._scale.item()

    def is_enabled(self) -> bool:
        return True


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
@pytest.mark.parametrize("what", ["scale", "loss", "lr", "gradient", "samples"])
def test_that_a_loop_may_have_any_number(tmp_path: Path, what: str, number: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if what == "lr":  # torch itself takes none beyond FP32
        optimizer.param_groups[0]["lr"] = number if abs(number) != 1e300 else math.copysign(3e38, number)
    scale = number if what == "scale" else 2.0**10
    recorder = Recorder(tmp_path / "run.h5", model, optimizer, AnyScaler(scale), record=EVERYTHING)
    for _ in range(3):
        loss = model(torch.randn(4, 4)).square().mean()
        optimizer.zero_grad()
        (loss * (number if what == "gradient" else scale)).backward()
        optimizer.step()
        recorder.step(number if what == "loss" else loss, samples=2**62 if what == "samples" else 4)
    recorder.evaluated(number, number)
    recorder.close()  # a fault would be a warning, and a warning is an error here
    run = precgui.open_run(tmp_path / "run.h5")
    assert run.status == "completed"
    assert len(run.series("loss")[0]) == 3
    precgui.diagnose(run)


def events(field: str, number: float) -> list[Event]:
    """A run in which this field of all steps, statistics or readings is this number from half of it on."""

    def at(step: int, own: str, usual: float) -> float:
        return number if own == field and step > STEPS // 2 else usual

    result: list[Event] = [RunStarted(0.0, STEPS, STEPS // 2, "cpu", {"device": "cpu"}, 2), Facts(0.0, {})]
    for step in range(1, STEPS + 1):
        done = StepDone(step, 0.1 * step, 1 / step, 2.0**16, False, 0.1, 1.0, 0.1, 0.01, 8, 1e6, 1.0, 1.0, 0.1)
        numbers = {name: at(step, name, getattr(done, name)) for name in StepDone.__dataclass_fields__}
        result.append(
            replace(done, **{name: numbers[name] for name in numbers if name not in ("step", "skipped", "samples")})
        )
        stats = np.array([[at(step, name, 0.5) for name in TENSOR_STATS]] * 2)
        bins = np.full((2, EXPONENT_BINS), 3, np.uint32)
        result += [
            TensorStats(step, 0.1 * step, kind, ("a", "b"), (1, 1), stats.tobytes(), bins.tobytes())
            for kind in ("gradient", "weight", "update", "activation")
        ]
        result.append(PowerRead("cpu", 0.1 * step, at(step, "power_w", 50.0), at(step, "energy_j", float(step))))
        result.append(HostRead(0.1 * step, at(step, "load", 1.0), 0.0, 0.0))
    result.append(Evaluated(STEPS, 1, 2.5, at(STEPS, "val_loss", 0.5), at(STEPS, "accuracy", 0.5)))
    result.append(RunEnded(3.0, "completed"))
    return result


FIELDS = [
    *(name for name in StepDone.__dataclass_fields__ if name not in ("step", "skipped", "samples")),
    *TENSOR_STATS, "power_w", "energy_j", "load", "val_loss", "accuracy",
]  # fmt: skip


def config() -> RunConfig:
    return build({"precision": "fp16-amp", "title": "any numbers"})


def write(path: Path, field: str, number: float) -> None:
    own = {"machine": {}, "environment": {}, "run_id": path.stem, "created": "2026-01-01T00:00:00"}
    with RunWriter(path, config(), **own) as writer:
        for event in events(field, number):
            writer(event)


@pytest.mark.parametrize("field", FIELDS)
def test_that_a_run_with_any_number_is_read_and_diagnosed(tmp_path: Path, field: str) -> None:
    write(tmp_path / "run.h5", field, NUMBERS[FIELDS.index(field) % len(NUMBERS)])
    precgui.diagnose(precgui.open_run(tmp_path / "run.h5"))
    for number in NUMBERS:
        live = LiveRun(config(), run_id="live", created="2026-01-01T00:00:00", machine={}, environment={})
        live.extend(events(field, number))
        precgui.diagnose(live)


@pytest.mark.parametrize("number", [0.0, -1.0, 1e300, math.inf, math.nan], ids=repr)
@pytest.mark.parametrize("field", ["scale", "loss", "step_s", "accuracy"])
def test_that_commands_take_a_run_with_any_number(
    tmp_path: Path, field: str, number: float, capsys: pytest.CaptureFixture[str]
) -> None:
    path, usual = tmp_path / "any.h5", tmp_path / "usual.h5"
    write(path, field, number)
    write(usual, "", 0.0)
    files = [str(usual), str(path)]
    for command in (
        ["diagnose", str(path)],
        ["compare", *files],
        ["whatif", str(path), "--format", "fp16,e5m2", "--scale", "1024"],
        ["export", str(path), "--html", str(tmp_path / "page.html")],
        ["export", str(path), "--csv", str(tmp_path / "csv")],
    ):
        assert main(command) in (0, 1), command
    capsys.readouterr()
    for command in (["diagnose", str(path), "--json"], ["compare", *files, "--json"], ["export", str(path), "--json"]):
        assert main(command) in (0, 1), command
        json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
