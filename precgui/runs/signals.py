"""The signals of a run and how they are computed from columns, by one rule for live and saved runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from precgui.hardware.nvml import HELD_BITS
from precgui.runs.growable import Values

Axis = Literal["step", "time_s"]
Series = tuple[NDArray[np.float64], NDArray[np.float64]]

# Signals recorded at every step, in the order of the file. `step` and `time_s` are the axes.
# The last two are not in files of early versions and then NaN.
STEP_SIGNALS = (
    "loss", "scale", "skipped", "lr", "grad_norm", "step_s", "data_s", "samples", "memory_bytes",
    "backward_passes", "optimizer_steps", "cpu_s",
)  # fmt: skip
EVALUATION_SIGNALS = ("val_loss", "val_accuracy")
HOST_SIGNALS = ("load", "cpu_pressure", "preemptions")  # the fields of `events.HostRead`
ZERO_SIGNALS = ("zeros_by_mask", "zeros_by_rounding")  # fields of `events.ZerosCounted`; of pruned runs only
# Of each process of a run on several; the fields of `events.RankStep`. `NAME` is that of the first, `NAME:2` of rank 2.
RANK_SIGNALS = (
    "rank_step_s", "rank_wait_s", "rank_cpu_s", "rank_memory_bytes", "sent_bytes", "interface_bytes", "gradient_error",
)  # fmt: skip
POWER_SIGNALS = ("power_w", "energy_j")
# What the devices did, read twice a second; the fields of `events.DeviceRead`.
STATE_SIGNALS = ("utilisation", "tensor_use", "sm_use", "dram_use", "clock_mhz", "temperature_c", "clock_reasons")
# samples / (step_s + data_s), 1 where `clock_reasons` say that power, heat or a limit holds the clock down, and the
# L2 norm of all weights where they were measured
DERIVED_SIGNALS = ("samples_per_s", "clock_held", "weight_norm")
SIGNALS = (
    *STEP_SIGNALS, *EVALUATION_SIGNALS, *POWER_SIGNALS, *STATE_SIGNALS, *DERIVED_SIGNALS, *HOST_SIGNALS,
    *ZERO_SIGNALS,
    *RANK_SIGNALS,
)  # fmt: skip


class SeriesSource(Protocol):
    """Where columns come from; each call returns all rows so far as float64."""

    def column(self, table: str, name: str) -> Values: ...
    def power_devices(self) -> list[str]: ...
    def power_column(self, device: str, name: str) -> Values: ...
    def state_devices(self) -> list[str]: ...
    def state_column(self, device: str, name: str) -> Values: ...
    def weight_norms(self) -> Series:
        """(steps, L2 norms of all weights) where they were measured."""
        ...


def series(source: SeriesSource, name: str, over: Axis = "step") -> Series:
    """The signal as (x, value). Raises KeyError for an unknown signal or power device."""
    signal, _, device = name.partition(":")
    if signal in POWER_SIGNALS:
        return _readings(source, signal, device, over, source.power_devices(), source.power_column)
    if signal in STATE_SIGNALS:
        return _readings(source, signal, device, over, source.state_devices(), source.state_column)
    if signal == "clock_held":
        x, bits = series(source, name.replace(signal, "clock_reasons", 1), over)
        return x, _held(bits)
    if signal in RANK_SIGNALS:
        return _of_rank(source, signal, device, over)
    if device or signal not in SIGNALS:
        raise KeyError(name)
    if signal in HOST_SIGNALS:
        time_s = source.column("host", "time_s")
        return (time_s if over == "time_s" else _step_at(source, time_s)), source.column("host", signal)
    if signal in EVALUATION_SIGNALS:
        return source.column("evaluation", over), source.column("evaluation", signal.removeprefix("val_"))
    if signal in ZERO_SIGNALS:
        return source.column("zeros", over), source.column("zeros", signal.removeprefix("zeros_"))
    if signal == "weight_norm":
        steps, norms = source.weight_norms()
        return (_time_at(source, steps) if over == "time_s" else steps), norms
    x = source.column("steps", over)
    if signal == "samples_per_s":
        return x, _rate(source)
    return x, source.column("steps", signal)


def _readings(
    source: SeriesSource, signal: str, device: str, over: Axis, devices: list[str], column: Callable[[str, str], Values]
) -> Series:
    if not device and not devices:
        return np.empty(0), np.empty(0)
    if device and device not in devices:
        raise KeyError(f"{signal}:{device}")
    device = device or devices[0]
    time_s, values = column(device, "time_s"), column(device, signal)
    return (time_s if over == "time_s" else _step_at(source, time_s)), values


def _of_rank(source: SeriesSource, signal: str, rank: str, over: Axis) -> Series:
    """The series of one process, the first where none is named. Raises KeyError for a name that is no number."""
    if rank and not rank.isdecimal():
        raise KeyError(f"{signal}:{rank}")
    ranks, x = source.column("ranks", "rank"), source.column("ranks", over)
    values = source.column("ranks", signal)
    rows = min(len(ranks), len(x), len(values))  # a damaged column may be shorter
    own = ranks[:rows] == float(rank or 0)
    return x[:rows][own], values[:rows][own]


def _held(bits: Values) -> Values:
    """1 where the clock is throttled, 0 where it is not, NaN where the device does not report it."""
    reported = np.isfinite(bits) & (bits >= 0) & (bits < 1 << 32)  # a damaged file holds any bits
    held = np.where(reported, bits, 0.0).astype(np.int64) & HELD_BITS != 0
    return np.where(reported, held, np.nan)


def _step_at(source: SeriesSource, time_s: Values) -> Values:
    """The step under way at each time, between steps by linear interpolation; 0 while there is none."""
    step_time_s = source.column("steps", "time_s")
    if not len(step_time_s):
        return np.zeros_like(time_s)
    return np.interp(time_s, step_time_s, source.column("steps", "step"))


def _time_at(source: SeriesSource, steps: Values) -> Values:
    """The time at which each step ended; NaN where no step was recorded."""
    known = source.column("steps", "step")
    if not len(known):
        return np.full_like(steps, np.nan)
    return np.interp(steps, known, source.column("steps", "time_s"))


def _rate(source: SeriesSource) -> Values:
    """Samples per second of each step, data loading included; Inf where the clock saw no time pass."""
    with np.errstate(all="ignore"):  # a damaged file holds any bits
        busy_s = source.column("steps", "step_s") + source.column("steps", "data_s")
        return source.column("steps", "samples") / busy_s
