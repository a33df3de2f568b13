"""A run beside a baseline: its loss without the noise of single batches, and how far it is from the baseline's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.events import Incident, Status
from precgui.runs.identity import why_not_comparable
from precgui.runs.run import Run
from precgui.runs.signals import Axis, Series

LOSS_MEAN, LOSS_GAP = "loss_mean", "loss_gap"
_MOST_OF_A_RUN = 20  # the mean takes in an epoch, but at most so large a part of the run


def window_of(run: Run) -> int:
    """Over how many steps the losses beside this run are averaged: an epoch, and a twentieth of the run at most."""
    steps = run.total_steps if run.total_steps or run.status == "running" else len(run.series("loss")[1])
    return max(1, min(run.steps_per_epoch or steps, steps // _MOST_OF_A_RUN))


class BaselineComparison:
    """A SignalSource: `run` with two series besides its own.

    `loss_mean` is the mean of the loss over the last `window` steps. `loss_gap` is that mean less the baseline's at
    the same step, for the steps that both have and at which the baseline is finite. Where the loss is NaN or Inf, both
    are so too; the means after it leave it out. Where the runs do not do the same work there is no `loss_gap`.
    """

    def __init__(self, run: Run, baseline: Run, window: int) -> None:
        self._run, self._baseline, self._window = run, baseline, window

    def series(self, name: str, over: Axis = "step") -> Series:
        if name == LOSS_MEAN:
            x, loss = self._run.series("loss", over)
            return x, trailing_mean(loss, self._window)
        if name == LOSS_GAP:
            return self._gap(over)
        return self._run.series(name, over)

    def _gap(self, over: Axis) -> Series:
        if why_not_comparable(self._run.config, self._baseline.config):
            return np.empty(0), np.empty(0)
        step, loss = self._run.series("loss")
        base_step, base_loss = self._baseline.series("loss")
        own, other = _common(step, base_step)
        base = trailing_mean(base_loss, self._window)[other]
        there = np.isfinite(base)
        with np.errstate(over="ignore"):  # of losses that a damaged file holds
            gap = trailing_mean(loss, self._window)[own[there]] - base[there]
        return self._run.series("loss", over)[0][own[there]], gap

    @property
    def status(self) -> Status:
        """Running as long as one of both is: the gap grows with either."""
        return "running" if self._baseline.status == "running" else self._run.status

    @property
    def environment(self) -> Mapping[str, Any]:
        return self._run.environment

    @property
    def total_steps(self) -> int:
        return self._run.total_steps

    def power_devices(self) -> list[str]:
        return self._run.power_devices()

    def state_devices(self) -> list[str]:
        return self._run.state_devices()

    def events(self, kind: str | None = None, since: int = 0) -> list[Incident]:
        return self._run.events(kind, since)


def _common(step: NDArray[np.float64], base: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The indices of the steps that both have."""
    count = min(len(step), len(base))
    if np.array_equal(step[:count], base[:count]):
        return np.arange(count), np.arange(count)
    _, own, other = np.intersect1d(step, base, return_indices=True)
    return own, other


def trailing_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """The mean of the finite ones of each value and the `window` - 1 before it; a value that is not finite stays.

    A sum is made of two running sums that begin anew every `window` values, so that no large value spoils those that
    come long after it.
    """
    finite = np.isfinite(values)
    with np.errstate(all="ignore"):
        sums = _trailing_sum(np.where(finite, values, 0.0), window)
        means = sums / _trailing_sum(finite.astype(np.float64), window)
    return np.where(finite, means, values)


def _trailing_sum(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    rows = -(-len(values) // window)
    padded = np.zeros((rows, window))
    padded.ravel()[: len(values)] = values
    upto = padded.cumsum(1)
    remainder = np.zeros_like(padded)  # of the row before, what lies within the window
    remainder[1:, :-1] = padded[:-1, :0:-1].cumsum(1)[:, ::-1]
    sums: NDArray[np.float64] = (upto + remainder).ravel()[: len(values)]
    return sums
