"""A run made of arrays, for the tests of the plots: it grows, breaks and reports what a test tells it to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from precgui.config import RunConfig
from precgui.events import EVALUATION_SIGNALS, STATE_SIGNALS, STEP_SIGNALS, Incident, Status
from precgui.gui.open_run import DrawnRun
from precgui.runs.recorded_model import RecordedModel
from precgui.runs.signals import SIGNALS, Axis, Series

if TYPE_CHECKING:
    from precgui.gui.plots.linked import LinkedPlots
    from precgui.gui.plots.marks import MarkGroup
    from precgui.runs.tensors.record import TensorHistory


@dataclass(eq=False)
class ArrayRun:
    """Implements `Run`. `values` holds whole columns by signal; time goes by 0.01 s a step."""

    run_id: str = "run"
    title: str = "a run"
    status: Status = "completed"
    values: dict[str, np.ndarray] = field(default_factory=dict)
    incidents: list[Incident] = field(default_factory=list)
    power: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    state: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    total_steps: int = 1000
    config: RunConfig = field(default_factory=RunConfig)
    path: Path | None = None
    created: str = "2026-01-01T00:00:00+00:00"
    epoch_steps: int = 50
    device: str = "cpu"

    @property
    def steps_per_epoch(self) -> int:
        return self.epoch_steps

    @property
    def steps(self) -> np.ndarray:
        return np.arange(1.0, len(self.values.get("loss", ())) + 1)

    def series(self, name: str, over: Axis = "step") -> Series:
        signal, _, device = name.partition(":")
        if signal not in SIGNALS:
            raise KeyError(name)
        if signal == "power_w":
            if not self.power:
                return np.empty(0), np.empty(0)
            time_s, watts = self.power[device] if device else next(iter(self.power.values()))
            return (time_s if over == "time_s" else np.minimum(time_s / 0.01, len(self.steps))), watts
        if signal in (*STATE_SIGNALS, "clock_held"):
            own = self.state[device] if device else {}
            time_s, values = own.get(signal, (np.empty(0), np.empty(0)))
            return (time_s if over == "time_s" else np.minimum(time_s / 0.01, len(self.steps))), values
        y = self.values.get(signal, np.full(len(self.steps) if signal in STEP_SIGNALS else 0, np.nan))
        x = self.steps if signal not in EVALUATION_SIGNALS else np.arange(1.0, len(y) + 1) * self.epoch_steps
        return (x if over == "step" else x * 0.01), y

    def power_devices(self) -> list[str]:
        return list(self.power)

    def state_devices(self) -> list[str]:
        return list(self.state)

    def events(self, kind: str | None = None, since: int = 0) -> list[Incident]:
        return [incident for incident in self.incidents if kind in (None, incident.kind)][since:]

    def model(self) -> RecordedModel:
        return RecordedModel(unavailable="a run made of arrays has no model")

    def tensors(self) -> Mapping[str, TensorHistory]:
        return {}


Show = Callable[..., "LinkedPlots"]  # the fixture `show`: runs in linked plots, all drawn


@dataclass
class Opened(DrawnRun):
    """A run of arrays in a plot."""

    run: ArrayRun


def items(chart: Any, kind: str, run: str = "run") -> list[Any]:
    """Graphics items that a chart draws of a run, by their object names: `line`, `dots`, `edge`, `skips`, `end` ..."""
    names = [(item, str(item.objectName())) for item in chart.plotItem.items]
    lines = [item for item, name in names if f"{name} ".startswith(f"{kind} ") and name.endswith(f" of {run}")]
    groups = [group for group in chart.marks.groups if f"{group.name} ".startswith(f"{kind} ") and group.key == run]
    return lines + [
        SimpleNamespace(getData=partial(_places, group), data={"symbol": group.symbols}) for group in groups
    ]


def _places(group: MarkGroup) -> tuple[np.ndarray, np.ndarray]:
    return group.x, group.y


def opened(run: ArrayRun, index: int = 0, name: str = "") -> Opened:
    return Opened(run.run_id, run, name or run.title, index % 7, index % 4)


def training_run(run_id: str, count: int = 1000, seed: int = 0, scaled: bool = True, **more: Any) -> ArrayRun:
    """A run with the shape of a real one: falling noisy loss, a loss scale that grows and backs off."""
    rng = np.random.default_rng(seed)
    step = np.arange(count)
    loss = 2.3 * np.exp(-step / (count / 5)) + 0.05 + np.abs(rng.normal(0, 0.06, count))
    scale = 2.0 ** (16 + step // 300 % 3) if scaled else np.ones(count)
    values = {
        "loss": loss,
        "scale": scale,
        "lr": 0.05 * np.cos(np.pi * step / count / 2),
        "grad_norm": np.exp(rng.normal(0, 0.6, count)) * loss,
        "step_s": 0.009 + np.abs(rng.normal(0, 0.0005, count)),
        "samples_per_s": 64 / (0.009 + np.abs(rng.normal(0, 0.0005, count))),
        "val_loss": 2.3 * np.exp(-np.arange(1, count // 50 + 1) / 4) + 0.1,
        "val_accuracy": 1 - np.exp(-np.arange(1, count // 50 + 1) / 3),
    }
    return ArrayRun(run_id=run_id, values=values, total_steps=count, **more)


def first_steps(values: dict[str, np.ndarray], count: int, epoch_steps: int = 50) -> dict[str, np.ndarray]:
    """The columns of a run as they were after `count` steps."""
    return {
        name: column[: count // epoch_steps if name in EVALUATION_SIGNALS else count] for name, column in values.items()
    }
