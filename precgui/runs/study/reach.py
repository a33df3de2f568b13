"""Time and energy until a run has reached a loss that all runs can be asked for."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from precgui.runs.study.result import LossReached
from precgui.runs.study.run_figures import RunFigures


def common_loss(runs: Sequence[RunFigures], baseline: str) -> float | None:
    """The worst of the best validation losses of the baseline's runs: each of them has reached it. None without any."""
    own = [run for run in runs if run.group == baseline and run.kind == "run" and run.came_through]
    best = [float(np.nanmin(run.validation.loss)) for run in own if np.isfinite(run.validation.loss).any()]
    return max(best) if best else None


def loss_reached(runs: Sequence[RunFigures], group: str, loss: float) -> LossReached:
    """How many runs of a group reached the loss, and after what time."""
    own = [run for run in runs if run.group == group and run.kind == "run" and run.status in ("completed", "failed")]
    places = [(run, place) for run in own if (place := _first(run, loss)) is not None]
    if not own or len(places) < len(own):
        return LossReached(loss, len(places), len(own))
    times = [float(run.validation.time_s[place]) for run, place in places]
    cpu = [float(run.validation.cpu_s[place]) for run, place in places]
    energy = [
        run.joules_per_sample * run.work.samples_per_step * float(run.validation.step[place])
        for run, place in places
        if run.joules_per_sample is not None
    ]
    return LossReached(
        loss, len(places), len(own), median(times), median(cpu) if np.isfinite(cpu).all() else None,
        median(energy) if len(energy) == len(own) else None,
    )  # fmt: skip


def _first(run: RunFigures, loss: float) -> int | None:
    there = np.flatnonzero(run.validation.loss <= loss)
    return int(there[0]) if len(there) else None
