"""Records made by hand, where every number is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from precgui.config import OWN_LOOP, RunConfig
from precgui.events import EXPONENT_BINS, TENSOR_STATS, Event, RunEnded, RunStarted, StepDone, TensorStats
from precgui.runs.live import LiveRun


def steps(losses: Sequence[float], **signals: Sequence[float]) -> list[Event]:
    """One event a step; signals not given are 1 (norm, scale), 0 (skipped) and 0.1 (lr)."""
    n = len(losses)
    given = {"scale": [1.0] * n, "skipped": [0.0] * n, "lr": [0.1] * n, "grad_norm": [1.0] * n} | signals
    return [
        StepDone(
            step=i + 1, time_s=0.1 * i, loss=losses[i], scale=given["scale"][i], skipped=bool(given["skipped"][i]),
            lr=given["lr"][i], grad_norm=given["grad_norm"][i], step_s=0.1, data_s=0.0, samples=8,
            memory_bytes=math.nan,
        )
        for i in range(n)
    ]  # fmt: skip


def tensors(step: int, kind: str, values: Mapping[str, Mapping[str, float]]) -> TensorStats:
    stats = np.full((len(values), len(TENSOR_STATS)), math.nan)
    for row, own in enumerate(values.values()):
        for name, value in {"count": 100.0, "zeros": 0.0, "nan": 0.0, "pos_inf": 0.0, "neg_inf": 0.0, **own}.items():
            stats[row, TENSOR_STATS.index(name)] = value
    exponents = np.zeros((len(values), EXPONENT_BINS), "<u4")
    exponents[:, 127] = 100
    names = tuple(values)
    return TensorStats(step, 0.1 * step, kind, names, (1,) * len(names), stats.tobytes(), exponents.tobytes())


def run_of(events: Sequence[Event], precision: str = "fp32", status: str = "completed", **environment: Any) -> LiveRun:
    config = RunConfig(task=OWN_LOOP, precision=precision)
    live = LiveRun(config, run_id="1", created="", machine={}, environment=environment)
    live.extend([RunStarted(0.0, 0, 0, "cpu"), *events, RunEnded(9.0, status, "")])
    return live


FALLING = [2.0 * 0.95**i for i in range(60)]
