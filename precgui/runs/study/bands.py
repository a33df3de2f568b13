"""Loss curves of a group over its seeds: the mean and the range of all runs, over steps, time or energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from precgui.runs.study.result import Study
from precgui.runs.study.run_figures import RunFigures

BandLoss = Literal["training", "validation"]
BandAxis = Literal["steps", "cpu_s", "time_s", "joules"]


@dataclass(frozen=True)
class LossBand:
    """The geometric mean, the least and the largest loss of a group's runs at `x`, all of shape (n,).

    `runs` are the losses of each run at `x`, NaN where they are not finite or not positive; shape (runs, n).
    """

    group: str
    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    runs: NDArray[np.float64]


def loss_bands(
    study: Study, runs: Sequence[RunFigures], loss: BandLoss = "training", over: BandAxis = "steps"
) -> list[LossBand]:
    """The bands of the groups that have curves of equal steps; of one whose cost is not measured, none.

    The cost of a step is its mean over the runs of the group: the mean of their median steps, or the energy of a sample
    times the samples of a step. Emulated groups have no cost.
    """
    results = []
    for group in study.groups:
        own = [run for run in runs if run.group == group.group and run.kind == "run"]
        unit = _cost_of_a_step(own, over)
        band = _band(group.group, own, loss) if unit is not None else None
        if band is not None and unit is not None:
            results.append(LossBand(band.group, band.x * unit, band.mean, band.low, band.high, band.runs))
    return results


def _cost_of_a_step(runs: Sequence[RunFigures], over: BandAxis) -> float | None:
    if over == "steps":
        return 1.0
    if any(run.emulated for run in runs):
        return None
    costs = [_cost(run, over) for run in runs if run.came_through]
    known = [cost for cost in costs if cost is not None]
    return mean(known) if known and len(known) == len(costs) else None


def _cost(run: RunFigures, over: BandAxis) -> float | None:
    if over == "cpu_s":
        return run.cpu_s
    if over == "time_s":
        return run.step_s
    samples = run.work.samples_per_step
    return None if run.joules_per_sample is None or not samples else run.joules_per_sample * samples


def _band(group: str, runs: Sequence[RunFigures], loss: BandLoss) -> LossBand | None:
    curves = [run.curve if loss == "training" else (run.validation.step, run.validation.loss) for run in runs]
    curves = [curve for curve in curves if len(curve[0])]
    curves = [curve for curve in curves if np.array_equal(curve[0], curves[0][0])]
    if not curves:
        return None
    losses = np.vstack([values for _, values in curves])
    finite = np.where(np.isfinite(losses) & (losses > 0), losses, np.nan)
    there = ~np.isnan(finite).any(0)
    if not there.any():
        return None
    kept = finite[:, there]
    steps = np.asarray(curves[0][0], np.float64)[there]
    return LossBand(group, steps, np.exp(np.log(kept).mean(0)), kept.min(0), kept.max(0), kept)
