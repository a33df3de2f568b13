"""A run made of synthetic events, with everything that makes a record difficult: NaN, Inf, long texts, two sensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from precgui.config import RunConfig
from precgui.events import DeviceRead, Evaluated, Event, HostRead, Incident, PowerRead, RunEnded, RunStarted, StepDone
from precgui.runs.file.writer import RunWriter
from precgui.runs.live import LiveRun

STEPS_PER_EPOCH = 25
LONG_MESSAGE = "the gradient of layer four is not finite – " * 20


def synthetic_events(steps: int = 300, end: RunEnded | None = None, step_s: float = 0.009) -> list[Event]:
    rng = np.random.default_rng(7)
    events: list[Event] = [RunStarted(0.05, steps, STEPS_PER_EPOCH, "cpu", {"threads": 1, "parameters": 12345})]
    for step in range(1, steps + 1):
        bad = step % 50 == 0 and step != steps
        loss = math.nan if bad else float(rng.lognormal())
        norm = math.inf if bad else float(rng.lognormal(sigma=30))
        memory = math.nan if step < 10 else 1e6 + step
        time_s = 0.05 + step * 0.01
        events.append(
            StepDone(step, time_s, loss, 2.0**16, bad, 0.1 / step, norm, step_s, 0.001, 64, memory, cpu_s=0.008)
        )
        if bad:
            events.append(Incident(time_s, step, "nonfinite_gradient", "error", LONG_MESSAGE + str(step), "fc.weight"))
        if step % STEPS_PER_EPOCH == 0:
            events.append(Evaluated(step, step // STEPS_PER_EPOCH, time_s, float(rng.random()), 1 - 1 / step))
        if step % 10 == 0:
            events.append(PowerRead("cuda:0", time_s, 100.0 + step, math.nan))
            events.append(PowerRead("package-0", time_s, 20.0, step * 0.2))
        if step % 20 == 0:
            busy, reasons = step / steps, 4.0 if step % 40 == 0 else 1.0
            events.append(DeviceRead("cuda:0", time_s, 0.9, busy, 0.8, 0.3, 1700.0 + step, 61.0, reasons))
            events.append(DeviceRead("CPU", time_s, busy, *[math.nan] * 6))
            events.append(HostRead(time_s, 1.5, 0.25, math.nan if step % 40 else 3.0))
    return [*events, end or RunEnded(0.06 + steps * 0.01, "completed", "all steps done")]


def open_writer(path: Path, config: RunConfig | None = None, **options: Any) -> RunWriter:
    return RunWriter(
        path,
        config or RunConfig(precision="fp16-amp"),
        run_id="7f",
        created="2026-01-02T03:04:05+00:00",
        machine={"devices": [{"name": "a CPU"}]},
        **{"environment": {"python": "3.11", "temperature": math.nan}, **options},
    )


def live_run(events: Sequence[Event], config: RunConfig | None = None) -> LiveRun:
    run = LiveRun(
        config or RunConfig(precision="fp16-amp"), run_id="7f", created="", machine={}, environment={"python": "3.11"}
    )
    run.extend(events)
    return run
