"""The figures of one run that a study needs, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from precgui.events import Metric
from precgui.runs.identity import TrainingIdentity
from precgui.sentences import L_

RunKind = Literal["run", "twin", "timing"]
KIND_WORDS = (L_("run"), L_("twin"), L_("timing"))
ENDED = ("completed", "failed")  # by themselves


@dataclass(frozen=True)
class ValidationCurve:
    """The validations of a run: step, loss, seconds since the begin of the first step, CPU seconds of steps until then;
    shape (n,)."""

    step: NDArray[np.float64]
    loss: NDArray[np.float64]
    time_s: NDArray[np.float64]
    cpu_s: NDArray[np.float64]


_NO_VALIDATION = ValidationCurve(np.empty(0), np.empty(0), np.empty(0), np.empty(0))


@dataclass(frozen=True)
class RunFigures:
    """The figures of one run in a study; None stands for "not measured".

    `settings` is the config without title, seed and precision, flat. `model_bytes` is the size of the trained model.
    `curve` is the smoothed training loss, as steps and values. Times are medians over the steps. `memory_of_one_step`
    says that the memory was measured in one step, as on a CPU, and not over the run. `why_failed` is empty where the
    run came through. `refused` says why the run must not be used at all: its file is damaged, or it is not the run
    that was planned. `energy_j` is of all sensors over the run, `power_w` its mean, `idle_w` the power before the run,
    and `net_joules_per_sample` what a sample used above that; `why_no_energy` and `why_no_idle` say why they are None.
    `slow` says why the arithmetic of the precision is slow on its device; empty where it is not.
    """

    name: str
    path: Path | None
    group: str
    precision: str
    seed: int
    kind: RunKind
    order: int
    status: str
    came_through: bool
    metric: Metric
    metric_value: float | None
    val_loss: float | None
    train_loss: float | None
    work: TrainingIdentity
    settings: Mapping[str, Any]
    host: str
    device: str
    device_kind: str
    threads: int | None
    versions: Mapping[str, Any]
    step_s: float | None
    cpu_s: float | None
    data_share: float | None
    memory_bytes: float | None
    joules_per_sample: float | None
    tensor_use: float | None
    time_s: float | None
    skipped_steps: int | None
    emulated: str
    pressure: float | None
    record_share: float = 0.0
    machine: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""  # empty for this machine
    run_id: str = ""
    created: str = ""
    why_failed: str = ""
    refused: str = ""
    memory_of_one_step: bool = False
    model_bytes: float | None = None
    slow: str = ""
    energy_j: float | None = None
    power_w: float | None = None
    idle_w: float | None = None
    net_joules_per_sample: float | None = None
    largest_batch: float | None = None
    why_no_energy: str = ""
    why_no_idle: str = ""
    validation: ValidationCurve = _NO_VALIDATION
    curve: tuple[NDArray[np.float64], NDArray[np.float64]] = field(default_factory=lambda: (np.empty(0), np.empty(0)))

    @property
    def grain(self) -> float:
        """The smallest step of the metric: one sample of the validation set, for a share; 0 where it has none."""
        samples = self.work.data.get("validation_samples")
        counts = self.metric.unit == "%" and self.metric.of_outputs
        return 1 / samples if counts and isinstance(samples, int) and samples > 0 else 0.0
