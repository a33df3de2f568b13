"""Recordings without shapes and module markers, read by a template with both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import profile

from precgui.config import load
from precgui.engine.precisions.base import Precision
from precgui.engine.profile import paired
from precgui.engine.profile.operations import Profiled, ProfilerPhases, profile_of_steps, record_steps, row_key
from precgui.engine.profile.step_template import template_of, times_of_steps

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 2)
        self.squares = False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = self.head(self.conv(values).mean((2, 3)))
        return outputs.square() if self.squares else outputs


def _work(model: nn.Module) -> Callable[[ProfilerPhases], None]:
    values, batches = torch.randn(2, 1, 8, 8), iter(range(1000))

    def work(phases: ProfilerPhases) -> None:
        phases.begin("data")
        for _ in range(next(batches) % 3):  # a loader does not do the same each time
            values.clone()
        phases.begin("forward")
        loss = model(values).float().sum()
        phases.begin("backward")
        loss.backward()

    return work


def _recorded(model: nn.Module, steps: int, *, detailed: bool) -> profile:
    return record_steps(model, CPU, _work(model), steps, detailed=detailed)


def _read(model: nn.Module, steps: int) -> Profiled | None:
    template = template_of(_recorded(model, 1, detailed=True), CPU)
    return times_of_steps(_recorded(model, steps, detailed=False), steps, template)


def test_that_times_without_shapes_belong_to_the_operations_of_the_detailed_recording() -> None:
    model = Net()
    plain = _read(model, 2)
    detailed = profile_of_steps(_recorded(model, 2, detailed=True), 2, CPU)
    assert plain is not None
    assert {row_key(row): (row.calls, row.events) for row in plain.rows} == {
        row_key(row): (row.calls, row.events) for row in detailed.rows
    }
    assert ("conv", "backward", "convolution", "bf16") in {
        (row.module, row.phase, row.kind, row.format) for row in plain.rows
    }
    assert all(row.cpu_s > 0 for row in plain.rows)


def test_that_own_times_add_up_to_the_steps() -> None:
    plain = _read(Net(), 3)
    assert plain is not None
    total = sum(row.cpu_s for row in plain.rows) + plain.gap_s + plain.data_s
    assert total == pytest.approx(plain.wall_s, rel=1e-6)
    assert plain.data_s > 0


def test_that_a_step_with_other_events_is_not_read() -> None:
    model = Net()
    template = template_of(_recorded(model, 1, detailed=True), CPU)
    model.squares = True
    assert times_of_steps(_recorded(model, 1, detailed=False), 1, template) is None


def test_that_a_step_that_never_repeats_is_recorded_in_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "times_of_steps", lambda *_: None)
    monkeypatch.setattr(paired, "_PAIRS_S", 0.0)
    config = load("digits-quick", ["record.tensors=false", "data.batch_size=16", "threads=1", "device=cpu"])
    side, _ = paired.paired(config, rounds=1, seconds=1.0)
    assert side.template is None
    assert {row.module for row in side.profiles[0].rows} >= {"features.0", "head"}


def test_that_each_side_is_recorded_with_its_own_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[Precision] = []
    recorded: list[tuple[nn.Module, Precision]] = []
    own_prepare, own_record = Precision.prepare, paired.record_steps  # type: ignore[attr-defined]

    def prepare(self: Precision) -> None:
        prepared.append(self)
        own_prepare(self)

    def record(model: nn.Module, *arguments: Any, **settings: Any) -> profile:
        recorded.append((model, prepared[-1]))
        return own_record(model, *arguments, **settings)

    monkeypatch.setattr(Precision, "prepare", prepare)
    monkeypatch.setattr(paired, "record_steps", record)
    config = load("digits-quick", ["record.tensors=false", "data.batch_size=4", "device=cpu", "precision=bf16-amp"])
    sides = paired.paired(config, stopped=lambda: True, seconds=1.0)
    assert {id(model) for model, _ in recorded[-2:]} == {id(side.parts.model) for side in sides}
    own = {id(side.parts.model): side.parts.precision for side in sides}
    assert all(precision is own[id(model)] for model, precision in recorded)
