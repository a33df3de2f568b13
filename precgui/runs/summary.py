"""The summary of a run: the figures that lists, comparisons and `precgui run --json` show."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.events import Status
from precgui.hardware.energy import window_energy
from precgui.hardware.readings import Missing, Reading, known
from precgui.runs.metric import metric_of
from precgui.runs.outcome import lost_validation, nonfinite_since
from precgui.runs.run import Run, SignalSource
from precgui.sentences import L_, Sentence, together, without_stop

NONFINITE_KINDS = ("nonfinite_loss", "nonfinite_gradient")


@np.errstate(all="ignore")  # a damaged file holds any bits
def summarise(run: Run, status: Status | None = None) -> dict[str, Any]:
    """The figures of a run from what was recorded; None stands for "not measured" and for a value not finite.

    `train_loss` is the mean over the last epoch's steps whose loss is finite, None when the last loss is not.
    `final.val_accuracy` is in terms of `metric`. `samples_per_s` counts data loading; `energy_j` adds up the sensors.
    """
    steps = len(run.series("loss")[1])
    return {
        "status": status or run.status,
        "precision": run.config.precision,
        "steps": steps,
        "final": {
            "train_loss": _final_loss(run),
            "val_loss": _last(run.series("val_loss")[1]),
            "val_accuracy": _last(run.series("val_accuracy")[1]),
        },
        "metric": asdict(metric_of(run.environment)),
        "time_s": _duration_s(run),
        "before_first_step_s": _preparation_s(run),
        "step_s_median": _median(run.series("step_s")[1]),
        "samples_per_s": _samples_per_s(run),
        "memory_peak_bytes": _peak_bytes(run),
        "energy_j": energy_j(run),
        "tensor_use": tensor_use(run),
        "skipped_steps": _skipped(run.series("skipped")[1]),
        "nonfinite_events": sum(len(run.events(kind)) for kind in NONFINITE_KINDS),
        "nonfinite_since_step": nonfinite_since(*run.series("loss")),
        "nonfinite_validation": lost_validation(run),
    }


def energy_j(run: Run) -> float | None:
    """Energy of all sensors over the run: of each its counter, or else the integral of its power.

    None as soon as that of one sensor is not known: a sum of the others would be too low.
    """
    return known(energy_used_j(run))


def energy_used_j(run: Run) -> Reading[float]:
    """As `energy_j`, with the reason where it is not known."""
    parts = [_sensor_energy_j(run, device) for device in run.power_devices()]
    unknown = next((part for part in parts if isinstance(part, Missing)), None)
    if unknown is not None or not parts:
        return unknown or Missing(_why_no_sensor(run))
    return sum(part for part in parts if not isinstance(part, Missing))


def sensor_rows(run: SignalSource) -> list[dict[str, Any]]:
    """The rows on the sensors of power that were looked for; a file of others may hold anything in their place."""
    sensors = run.environment.get("power_sensors")
    return [row for row in sensors if isinstance(row, dict)] if isinstance(sensors, list) else []


def _why_no_sensor(run: Run) -> str:
    reasons = [
        without_stop(reason)
        for row in sensor_rows(run)
        if not row.get("found") and isinstance(reason := row.get("reason"), str)
    ]
    return together(*reasons, between="; ") if any(reasons) else L_("no sensor was read in this run")


def tensor_use(run: Run) -> float | None:
    """Mean share of the time in which tensor cores worked, of the GPU with the largest; None where none has it."""
    shares = [_finite(run.series(f"tensor_use:{device}")[1]) for device in run.state_devices()]
    return max((float(share.mean()) for share in shares if len(share)), default=None)


def _sensor_energy_j(run: Run, device: str) -> Reading[float]:
    """Over the time of the run, by the one energy meter: the counter where there is one, integrated power otherwise.

    The sensors are read on for seconds after it, while the record of what ran is measured: that is no training.
    """
    time_s, power_w = run.series(f"power_w:{device}", "time_s")
    counted_j = run.series(f"energy_j:{device}", "time_s")[1]
    if not len(time_s):
        return Missing(Sentence("{device} was not read", device=device))
    window = window_energy(time_s, power_w, counted_j, 0.0, _duration_s(run) or time_s[-1])
    return window if isinstance(window, Missing) else window.energy_j


def _final_loss(run: Run) -> float | None:
    loss = run.series("loss")[1]
    if not len(loss) or not np.isfinite(loss[-1]):
        return None
    return float(_finite(loss[-max(run.steps_per_epoch, 1) :]).mean())


def _duration_s(run: Run) -> float | None:
    """From the start of the run to its last step or evaluation."""
    ends = np.concatenate([run.series(name, "time_s")[0] for name in ("loss", "val_loss")])
    return float(ends.max()) if len(ends) else None


def _preparation_s(run: Run) -> float | None:
    """From the start of the run to its first step: loading, and compiling when something is used for the first time."""
    ends, step_s = run.series("step_s", "time_s")
    begin_s = float(ends[0] - step_s[0]) if len(ends) else math.nan
    return max(begin_s, 0.0) if math.isfinite(begin_s) else None


def _samples_per_s(run: Run) -> float | None:
    samples = run.series("samples")[1].sum()
    if samples == 0:  # a recorded loop without them
        return None
    busy_s = run.series("step_s")[1].sum() + run.series("data_s")[1].sum()
    return float(samples / busy_s) if busy_s > 0 and np.isfinite(samples / busy_s) else None


def _skipped(skipped: NDArray[np.float64]) -> int | None:
    """The number of skipped steps; None for a run of another tool that does not record them."""
    return None if np.isnan(skipped).any() else int(np.count_nonzero(skipped))


def _peak_bytes(run: Run) -> int | None:
    """The peak of the device's allocator in bytes; on a CPU, which has none, that of the one measured step."""
    measured = _finite(run.series("memory_bytes")[1])
    if len(measured):
        return int(measured.max())
    memory = run.environment.get("memory")
    peak = memory.get("peak_bytes") if isinstance(memory, dict) else None
    return peak if isinstance(peak, int) and peak > 0 else None


def _median(values: NDArray[np.float64]) -> float | None:
    measured = _finite(values)
    return float(np.median(measured)) if len(measured) else None


def _last(values: NDArray[np.float64]) -> float | None:
    return float(values[-1]) if len(values) and np.isfinite(values[-1]) else None


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]
