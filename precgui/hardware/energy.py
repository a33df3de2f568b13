"""Energy of a stretch of work, from recorded readings.

Counters first: their difference between the ends of a window. Power is integrated only where there is no counter, or
where the counter was reset in the window, and the result says so. Windows under a second are not measurable: the
sensors renew their value ten times a second and some average over a second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precgui.hardware.readings import Missing, Reading
from precgui.sentences import L_, Sentence

LEAST_S = 1.0
SENSOR_ERROR = 0.05  # of the reading, as found on more than 70 GPUs (arXiv 2312.02741)
COUNTER, INTEGRATED = L_("energy counter"), L_("integrated power")
_LONGEST_GAP_S = 1.0  # between two power readings that are integrated over
_COVER = 0.9  # share of a window that counter readings must span


@dataclass(frozen=True, slots=True)
class WindowEnergy:
    """Energy used in a window of `seconds`, by COUNTER or INTEGRATED."""

    energy_j: float
    seconds: float
    method: str


def window_energy(
    time_s: ArrayLike, power_w: ArrayLike, energy_j: ArrayLike, start_s: float, end_s: float, least_s: float = LEAST_S
) -> Reading[WindowEnergy]:
    """Energy of one device between two times, from its recorded readings (`PowerRead`, 1-D, same length)."""
    times, watts, joules = (np.asarray(a, dtype=np.float64) for a in (time_s, power_w, energy_j))
    start_s, end_s = float(start_s), float(end_s)
    seconds = end_s - start_s
    if seconds < least_s:
        return Missing(
            Sentence(
                "not measurable: the window of {seconds:.2f} s is shorter than {least_s:g} s",
                seconds=seconds,
                least_s=least_s,
            )
        )
    counted = _counted(times, joules, start_s, end_s)
    if counted is not None:
        return WindowEnergy(counted, seconds, COUNTER)
    return _integrated(times, watts, start_s, end_s)


def _counted(times: NDArray[np.float64], joules: NDArray[np.float64], start_s: float, end_s: float) -> float | None:
    """Difference of the counter, straight between its renewals; None where they do not reach or where it was reset."""
    known = ~np.isnan(joules)
    times, joules = times[known], joules[known]
    if times.size < 2:
        return None
    renewed = np.concatenate(([True], np.diff(joules) != 0))
    times, joules = times[renewed], joules[renewed]
    covered = min(end_s, times[-1]) - max(start_s, times[0])
    if times.size < 2 or covered < _COVER * (end_s - start_s):
        return None
    begin = max(int(np.searchsorted(times, start_s, "right")) - 1, 0)
    if np.any(np.diff(joules[begin : int(np.searchsorted(times, end_s)) + 1]) < 0):
        return None
    first, last = np.interp((start_s, end_s), times, joules)
    return float(last - first) * (end_s - start_s) / float(covered)


def _integrated(
    times: NDArray[np.float64], watts: NDArray[np.float64], start_s: float, end_s: float
) -> Reading[WindowEnergy]:
    inside = (times >= start_s) & (times <= end_s) & ~np.isnan(watts)
    times, watts = times[inside], watts[inside]
    if times.size < 2:
        return Missing(L_("no sensor was read in this window"))
    gaps = np.diff(np.concatenate(([start_s], times, [end_s])))
    if gaps.max() > _LONGEST_GAP_S:
        return Missing(
            Sentence("not measurable: the sensor was silent for {gap_s:.1f} s of this window", gap_s=gaps.max())
        )
    joules = float(np.sum((watts[1:] + watts[:-1]) / 2 * np.diff(times)))
    mean_w = joules / float(times[-1] - times[0])
    return WindowEnergy(mean_w * (end_s - start_s), end_s - start_s, INTEGRATED)
