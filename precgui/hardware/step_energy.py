"""The energy of one step, measured by the book, and the power of idle devices."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from precgui.events import Event, PowerRead
from precgui.hardware.energy import COUNTER, INTEGRATED, LEAST_S, SENSOR_ERROR, WindowEnergy, window_energy
from precgui.hardware.power import PowerSampler
from precgui.hardware.readings import Missing, Reading
from precgui.sentences import L_

_QUEUED_S = 0.1  # of work, about, between two waits for a device: after each wait it is idle until the next launch


@dataclass(frozen=True, slots=True)
class EnergyPlan:
    """How long to measure. A window below `least_s` gives no result."""

    warm_up_s: float = 30.0
    idle_s: float = 5.0
    window_s: float = 5.0
    windows: int = 3
    least_s: float = LEAST_S


@dataclass(frozen=True, slots=True)
class StepEnergy:
    """Energy of one step in joules: the median over windows. `net_j` is above the idle power.

    `uncertainty` is a share of `gross_j`: the sensor's own error and the spread between windows, added in quadrature.
    `net_uncertainty_j` holds these and the sensor's error of the idle energy, in joules: of a small difference of large
    numbers, a share would say little.
    """

    gross_j: float
    net_j: Reading[float]
    net_uncertainty_j: Reading[float]
    spread: float
    uncertainty: float
    steps: int
    windows: int
    idle_w: Reading[float]
    method: str
    remarks: tuple[str, ...]


def idle_power(seconds: float, wait: Callable[[float], object] | None = None) -> dict[str, Reading[float]]:
    """Mean power in watts of every device with a sensor, while `wait` lets so many seconds pass with nothing to do."""
    reads: list[Event] = []
    zero = time.perf_counter()
    with PowerSampler(reads.append, zero) as sampler:
        span = _idle(sampler, seconds, zero, wait)
    devices = dict.fromkeys(read.device for read in reads if isinstance(read, PowerRead))
    used = {device: _sum(reads, [device], span, LEAST_S) for device in devices}
    return {
        device: part if isinstance(part, Missing) else part.energy_j / part.seconds for device, part in used.items()
    }


def measure_step(
    step: Callable[[], object],
    devices: Sequence[str],
    synchronize: Callable[[], object] = lambda: None,
    plan: EnergyPlan | None = None,
    remarks: Callable[[], Sequence[str]] = tuple,
) -> Reading[StepEnergy]:
    """Energy of `step` on `devices` (names of `PowerRead.device`, summed): idle, warm-up, windows, median.

    `synchronize` waits for queued work; `remarks` tells what disturbed (throttling, other programs), asked after
    each window.
    """
    plan = plan or EnergyPlan()
    reads: list[Event] = []
    zero = time.perf_counter()
    with PowerSampler(reads.append, zero) as sampler:
        spans = [_idle(sampler, plan.idle_s, zero)]
        _run_for(step, synchronize, plan.warm_up_s)
        counts, said = [], list[str]()
        for _ in range(plan.windows):
            count, span = _window(step, synchronize, sampler, plan.window_s, zero)
            counts.append(count)
            spans.append(span)
            said += [remark for remark in remarks() if remark not in said]
    results = [_sum(reads, devices, span, plan.least_s) for span in spans]
    return _result(results[0], results[1:], counts, tuple(said))


def _idle(
    sampler: PowerSampler, seconds: float, zero: float, wait: Callable[[float], object] | None = None
) -> tuple[float, float]:
    sampler.read_now()
    start_s = time.perf_counter() - zero
    (wait or time.sleep)(seconds)
    sampler.read_now()
    return start_s, time.perf_counter() - zero


def _run_for(step: Callable[[], object], synchronize: Callable[[], object], seconds: float) -> int:
    """Steps until the time is over, and how many. So many are queued at once that a device is hardly ever idle."""
    count, queued = 0, 1
    now = time.perf_counter()
    end = now + seconds
    while now < end:
        begin = now
        for _ in range(queued):
            step()
        synchronize()
        count += queued
        now = time.perf_counter()
        if now - begin < _QUEUED_S / 2:
            queued *= 2
    return count


def _window(
    step: Callable[[], object], synchronize: Callable[[], object], sampler: PowerSampler, seconds: float, zero: float
) -> tuple[int, tuple[float, float]]:
    synchronize()
    sampler.read_now()
    start_s = time.perf_counter() - zero
    count = max(1, _run_for(step, synchronize, seconds))
    sampler.read_now()
    return count, (start_s, time.perf_counter() - zero)


def _sum(
    reads: Sequence[Event], devices: Sequence[str], span: tuple[float, float], least_s: float
) -> Reading[WindowEnergy]:
    """The energy of all devices in one span; Missing as soon as one of them is."""
    parts: list[WindowEnergy] = []
    for device in devices:
        rows = [(r.time_s, r.power_w, r.energy_j) for r in reads if isinstance(r, PowerRead) and r.device == device]
        times, watts, joules = np.array(rows, dtype=np.float64).reshape(-1, 3).T
        part = window_energy(times, watts, joules, *span, least_s)
        if isinstance(part, Missing):
            return part
        parts.append(part)
    if not parts:
        return Missing(L_("no power sensor belongs to this device"))
    methods = {part.method for part in parts}
    method = COUNTER if methods == {COUNTER} else INTEGRATED
    return WindowEnergy(sum(part.energy_j for part in parts), span[1] - span[0], method)


def _result(
    idle: Reading[WindowEnergy],
    windows: Sequence[Reading[WindowEnergy]],
    counts: Sequence[int],
    remarks: tuple[str, ...],
) -> Reading[StepEnergy]:
    measured = [window for window in windows if not isinstance(window, Missing)]
    if len(measured) < len(windows) or not measured:
        return next(
            (window for window in windows if isinstance(window, Missing)), Missing(L_("no window was measured"))
        )
    per_step = [window.energy_j / count for window, count in zip(measured, counts, strict=True)]
    gross = statistics.median(per_step)
    spread = statistics.stdev(per_step) / gross if len(per_step) > 1 and gross > 0 else 0.0
    step_s = statistics.median(window.seconds / count for window, count in zip(measured, counts, strict=True))
    idle_w: Reading[float] = idle if isinstance(idle, Missing) else idle.energy_j / idle.seconds
    uncertainty = math.hypot(SENSOR_ERROR, spread)
    net: Reading[float] = idle_w if isinstance(idle_w, Missing) else gross - idle_w * step_s
    net_error: Reading[float] = (
        idle_w if isinstance(idle_w, Missing) else math.hypot(uncertainty * gross, SENSOR_ERROR * idle_w * step_s)
    )
    method = COUNTER if all(window.method == COUNTER for window in measured) else INTEGRATED
    return StepEnergy(gross, net, net_error, spread, uncertainty, sum(counts), len(measured), idle_w, method, remarks)
