"""How far a ratio between two runs can be trusted, from the steps that each of them recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precgui.hardware.energy import SENSOR_ERROR
from precgui.runs.caveats import Arithmetic, marked
from precgui.runs.verdict.quantiles import student_quantile
from precgui.sentences import L_, Sentence

Interval = tuple[float, float]
TOO_FEW_STEPS = L_("too few steps for an interval")
BLOCKS, LEAST_BLOCKS = 10, 3
_LEAST_STEPS = 5  # of a block
# Two-sided 95 % of Student's t for 4 to 18 degrees of freedom (two runs of 3 to 10 blocks).
_STUDENT_95 = (2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101)


@dataclass(frozen=True)
class Variation:
    """`log_sd`: standard deviation of the logarithm of the median step time, between `blocks` stretches of one run.

    `log_wait`: logarithm of step time over the CPU time of the process, 0 where it never waited or on other devices.
    """

    log_sd: float
    blocks: int
    log_wait: float = 0.0


@dataclass(frozen=True)
class NoiseBetween:
    """How much runs of the same work differ in speed: standard deviation of the logarithm of a step time of one run."""

    log_sd: float
    degrees: int


UNKNOWN_NOISE = NoiseBetween(math.inf, 0)


def noise_between(times: Sequence[Sequence[float]]) -> NoiseBetween:
    """The pooled noise of groups of step times of the same work; UNKNOWN_NOISE where no group has two of them."""
    known = [[time for time in group if math.isfinite(time) and time > 0] for group in times]
    logs = [np.log(np.asarray(group, np.float64)) for group in known if len(group) > 1]
    degrees = sum(len(group) - 1 for group in logs)
    if not degrees:
        return UNKNOWN_NOISE
    return NoiseBetween(math.sqrt(sum(float(((group - group.mean()) ** 2).sum()) for group in logs) / degrees), degrees)


_MOST_LOG = 600.0  # of a ratio and its interval together: beyond, they are no floats, and no times of a computer


@np.errstate(over="ignore")  # of a file that says anything
def variation(step_s: ArrayLike, cpu_s: ArrayLike | None = None) -> Variation | None:
    """How much the speed of a run varied while it went on; None of fewer than 15 steps.

    `cpu_s`: CPU time of each step, for a run on a CPU, where waiting for other programs is no property of the run.

    The deviation is that between stretches of the run, not that of their mean: a load that came and went within the
    run bounds the error of the level of a whole run.
    """
    times: NDArray[np.float64] = np.asarray(step_s, dtype=np.float64)
    known = np.isfinite(times) & (times > 0)
    log_wait = 0.0 if cpu_s is None else _log_wait(times[known], np.asarray(cpu_s, dtype=np.float64)[known])
    times = times[known]
    blocks = min(BLOCKS, times.size // _LEAST_STEPS)
    if blocks < LEAST_BLOCKS:
        return None
    levels = [float(np.log(np.median(block))) for block in np.array_split(times, blocks)]
    return Variation(float(np.std(levels, ddof=1)), blocks, log_wait)


def _log_wait(times: NDArray[np.float64], cpu_s: NDArray[np.float64]) -> float:
    known = np.isfinite(cpu_s) & (cpu_s > 0)
    return max(0.0, float(np.median(np.log(times[known]) - np.log(cpu_s[known])))) if known.any() else 0.0


def ratio_interval(
    ratio: float | None,
    own: Variation | None,
    base: Variation | None,
    *,
    of_energy: bool = False,
    between: NoiseBetween | None = None,
) -> Interval | None:
    """95 % around a ratio of two runs, by Student's t on logarithms; None where a run is too short or its times absurd.

    It reaches from the ratio of step times to that of CPU times: where one run had to wait for other programs more than
    the other, the ratio in between is not known. `of_energy`: a ratio of energies, not of speeds; the error of the
    sensors widens it. `between`, for runs that trained at other loads of the machine, is the noise between runs of the
    same work: the interval is not narrower than it, and there is none where it is UNKNOWN_NOISE.
    """
    if ratio is None or ratio <= 0 or own is None or base is None or between == UNKNOWN_NOISE:
        return None
    deviation = math.hypot(own.log_sd, base.log_sd, SENSOR_ERROR if of_energy else 0.0)
    half = _STUDENT_95[own.blocks + base.blocks - 2 * LEAST_BLOCKS] * deviation
    if between is not None:  # of a difference of two runs
        half = max(half, student_quantile(0.975, between.degrees) * math.sqrt(2) * between.log_sd)
    waited = own.log_wait - base.log_wait
    if half + abs(waited) + abs(math.log(ratio)) > _MOST_LOG:
        return None
    moved = ratio * math.exp(-waited if of_energy else waited)
    return min(ratio, moved) * math.exp(-half), max(ratio, moved) * math.exp(half)


def ratio_text(
    ratio: float | None,
    interval: Interval | None,
    unknown: str,
    arithmetic: Arithmetic = "native",
    why_none: str = TOO_FEW_STEPS,
) -> str:
    """Such as "1.12x (0.95 to 1.32, within noise)"; 1 without an interval is the baseline against itself.

    `arithmetic` is that of the run, for the remark "(emulated)"; `why_none` says why there is no interval.
    """
    if ratio is None:
        return unknown
    if interval is None:
        own = marked(f"{ratio:.2f}x", arithmetic)
        return own if ratio == 1 else Sentence("{value} ({remark})", value=own, remark=why_none)
    low, high = interval
    ends = {"ratio": ratio, "low": low, "high": high}
    if low <= 1 <= high:
        return marked(Sentence("{ratio:.2f}x ({low:.2f} to {high:.2f}, within noise)", **ends), arithmetic)
    return marked(Sentence("{ratio:.2f}x ({low:.2f} to {high:.2f})", **ends), arithmetic)
