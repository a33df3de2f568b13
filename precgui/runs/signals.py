"""The signals of a run and how they are computed from columns, by one rule for live and saved runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from precgui.events import (
    EVALUATION_SIGNALS,
    HOST_SIGNALS,
    POWER_SIGNALS,
    RANK_SIGNALS,
    STATE_SIGNALS,
    STEP_SIGNALS,
    ZERO_SIGNALS,
)
from precgui.hardware.clock_reasons import HELD_BITS
from precgui.runs.growable import GrowableArray, Values

Axis = Literal["step", "time_s"]
Series = tuple[NDArray[np.float64], NDArray[np.float64]]

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


class Computed(Protocol):
    """How what follows from `rows` rows of columns is computed.

    `compute(start)` gives the values for all rows from `start` on; `final(start)` says how many rows have a value that
    no later row changes, all where it is None.
    """

    def __call__(
        self, key: str, rows: int, compute: Callable[[int], Values], final: Callable[[int], int] | None = None
    ) -> Values: ...


def whole(key: str, rows: int, compute: Callable[[int], Values], final: Callable[[int], int] | None = None) -> Values:
    """Compute all anew, as of a run that has ended."""
    return compute(0)


class KeptRows:
    """Computes each row once: a run that goes on is asked for its series with every batch of steps."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[GrowableArray, int]] = {}  # values that are final, and of how many rows

    def __call__(
        self, key: str, rows: int, compute: Callable[[int], Values], final: Callable[[int], int] | None = None
    ) -> Values:
        values, known = self._kept.get(key) or (GrowableArray(), 0)
        if known == rows:
            return values.view
        fresh, known = compute(known), rows if final is None else final(known)
        left = rows - known
        values.append(fresh[: len(fresh) - left])
        self._kept[key] = values, known
        return np.concatenate([values.view, fresh[len(fresh) - left :]]) if left else values.view


def series(source: SeriesSource, name: str, over: Axis = "step", computed: Computed = whole) -> Series:
    """The signal as (x, value). Raises KeyError for an unknown signal or power device."""
    signal, _, device = name.partition(":")
    if signal in POWER_SIGNALS:
        return _readings(source, signal, device, over, source.power_devices(), source.power_column, computed)
    if signal in STATE_SIGNALS:
        return _readings(source, signal, device, over, source.state_devices(), source.state_column, computed)
    if signal == "clock_held":
        x, bits = series(source, name.replace(signal, "clock_reasons", 1), over, computed)
        return x, computed(name, len(bits), lambda start: _held(bits[start:]))
    if signal in RANK_SIGNALS:
        return _of_rank(source, signal, device, over, computed)
    if device or signal not in SIGNALS:
        raise KeyError(name)
    if signal in HOST_SIGNALS:
        time_s = source.column("host", "time_s")
        x = time_s if over == "time_s" else _step_at(source, time_s, "host", computed)
        return x, source.column("host", signal)
    if signal in EVALUATION_SIGNALS:
        return source.column("evaluation", over), source.column("evaluation", signal.removeprefix("val_"))
    if signal in ZERO_SIGNALS:
        return source.column("zeros", over), source.column("zeros", signal.removeprefix("zeros_"))
    if signal == "weight_norm":
        steps, norms = source.weight_norms()
        return (_time_at(source, steps) if over == "time_s" else steps), norms
    x = source.column("steps", over)
    if signal == "samples_per_s":
        return x, computed(signal, len(x), lambda start: _rate(source, start))
    return x, source.column("steps", signal)


def _readings(
    source: SeriesSource, signal: str, device: str, over: Axis, devices: list[str],
    column: Callable[[str, str], Values], computed: Computed,
) -> Series:  # fmt: skip
    if not device and not devices:
        return np.empty(0), np.empty(0)
    if device and device not in devices:
        raise KeyError(f"{signal}:{device}")
    device = device or devices[0]
    time_s, values = column(device, "time_s"), column(device, signal)
    table = "power" if signal in POWER_SIGNALS else "state"
    return (time_s if over == "time_s" else _step_at(source, time_s, f"{table}:{device}", computed)), values


def _of_rank(source: SeriesSource, signal: str, rank: str, over: Axis, computed: Computed) -> Series:
    """The series of one process, the first where none is named. Raises KeyError for a name that is no number."""
    if rank and not rank.isdecimal():
        raise KeyError(f"{signal}:{rank}")
    ranks, x = source.column("ranks", "rank"), source.column("ranks", over)
    values = source.column("ranks", signal)
    rows = min(len(ranks), len(x), len(values))  # a damaged column may be shorter
    own = float(rank or 0)

    def of_own(key: str, column: Values) -> Values:
        return computed(f"{key}:{own}", rows, lambda start: column[start:rows][ranks[start:rows] == own])

    return of_own(over, x), of_own(signal, values)


def _held(bits: Values) -> Values:
    """1 where the clock is throttled, 0 where it is not, NaN where the device does not report it."""
    reported = np.isfinite(bits) & (bits >= 0) & (bits < 1 << 32)  # a damaged file holds any bits
    held = np.where(reported, bits, 0.0).astype(np.int64) & HELD_BITS != 0
    return np.where(reported, held, np.nan)


def _step_at(source: SeriesSource, time_s: Values, key: str, computed: Computed) -> Values:
    """The step under way at each time, between steps by linear interpolation; 0 while there is none."""
    step_time_s = source.column("steps", "time_s")
    if not len(step_time_s):
        return np.zeros_like(time_s)
    steps = source.column("steps", "step")

    def before_last_step(start: int) -> int:
        """Rows whose place stays: later ones move when the next step is done."""
        later = np.flatnonzero(~(time_s[start:] < step_time_s[-1]))
        return start + int(later[0]) if len(later) else len(time_s)

    return computed(key, len(time_s), lambda start: interpolated(time_s[start:], step_time_s, steps), before_last_step)


def _time_at(source: SeriesSource, steps: Values) -> Values:
    """The time at which each step ended; NaN where no step was recorded."""
    known = source.column("steps", "step")
    if not len(known):
        return np.full_like(steps, np.nan)
    return interpolated(steps, known, source.column("steps", "time_s"))


def interpolated(places: Values, known: Values, values: Values) -> Values:
    """`np.interp`, which copies the whole of columns that are read-only, on the part of them that it needs."""
    if not len(places):
        return np.empty(0)
    first, last = known.searchsorted([np.fmin.reduce(places), np.fmax.reduce(places)], "right")
    part = slice(max(min(int(first) - 1, len(known) - 2), 0), max(int(last) + 1, 2))  # of one row NaN has its value
    return np.interp(places, known[part], values[part])


def _rate(source: SeriesSource, start: int) -> Values:
    """Samples per second of each step from row `start` on, data loading included; Inf where the clock saw no time
    pass."""
    step_s, data_s, samples = (source.column("steps", name)[start:] for name in ("step_s", "data_s", "samples"))
    with np.errstate(all="ignore"):  # a damaged file holds any bits
        return samples / (step_s + data_s)
