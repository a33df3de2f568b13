"""Figures of imagined runs, to judge without training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from precgui.config import RunConfig
from precgui.runs.identity import TrainingIdentity
from precgui.runs.metric import ACCURACY
from precgui.runs.study.run_figures import RunFigures

WORK = TrainingIdentity(RunConfig(), {"validation_samples": 1000}, ACCURACY, 64, 100, "")


def figures(group: str, seed: int, **changes: Any) -> RunFigures:
    """A run that came through with 90 % and 10 ms a step."""
    work = replace(WORK, weights_sha256=f"{seed}", **changes.pop("work", {}))
    curve = np.arange(1.0, 101.0), np.full(100, 0.5)
    made = RunFigures(
        name=f"s{seed:02}-{group}", path=None, group=group, precision=group, seed=seed, kind="run", order=seed,
        status="completed", came_through=True, metric=work.metric, metric_value=0.9, val_loss=0.5, train_loss=0.5,
        work=work, settings={}, host="h", device="CPU", device_kind="cpu", threads=1, versions={"torch": "2"},
        step_s=0.010, cpu_s=0.010, data_share=0.01, memory_bytes=1000.0, joules_per_sample=None, tensor_use=None,
        time_s=1.0, skipped_steps=0, emulated="", pressure=0.0, machine={}, curve=curve,
    )  # fmt: skip
    return replace(made, **changes)


def arm(group: str, values: list[float], **changes: Any) -> list[RunFigures]:
    """Runs of one arm with these values of the metric, seeds from 1."""
    return [figures(group, seed, metric_value=value, **changes) for seed, value in enumerate(values, 1)]
