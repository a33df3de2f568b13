"""The speed-up of a precision in the runs that were timed here, paired by seed as in a study, by the same clock."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from precgui.config import RunConfig
from precgui.runs.step_times import TimedRow, timed_runs
from precgui.runs.timing import RunTiming, TimeSignal, clock_for, why_no_time
from precgui.runs.verdict.paired import paired_difference

LEVEL = 0.95
FEWEST_PAIRS = 3


@dataclass(frozen=True)
class PairedSpeedup:
    """The geometric mean of the speed-ups of `n` pairs, above 1 is faster, with its 95 % t interval.

    Both are None where there are fewer than three pairs. `signal` is the time that was compared.
    """

    n: int
    ratio: float | None = None
    ci: tuple[float, float] | None = None
    signal: TimeSignal = "step_s"

    @property
    def differs(self) -> bool:
        """Whether a difference was measured."""
        return self.ci is not None and not self.ci[0] <= 1 <= self.ci[1]


def paired_speedup(config: RunConfig, precision: str, baseline: str = "fp32") -> PairedSpeedup:
    """The speed-up of a precision over the baseline in the study of this work that has the most pairs."""
    pairs = _pairs(timed_runs(config, precision), timed_runs(config, baseline))
    clock = clock_for([run for pair in pairs for run in pair])
    ratios = []
    for own, base in pairs:
        times = getattr(own, clock.signal), getattr(base, clock.signal)
        if times[0] and times[1]:
            ratios.append(math.log(times[1] / times[0]))
    if len(ratios) < FEWEST_PAIRS:
        return PairedSpeedup(len(ratios))
    spread = paired_difference(ratios)
    low, high = spread.interval(LEVEL)
    return PairedSpeedup(spread.n, math.exp(spread.mean), (math.exp(low), math.exp(high)), clock.signal)


def _pairs(own: list[TimedRow], base: list[TimedRow]) -> list[tuple[RunTiming, RunTiming]]:
    """Runs of one folder and seed, of the folder that has the most of them; the newest where a seed ran twice."""
    others = {(row.folder, row.seed): row.timing for row in base}
    mine = {(row.folder, row.seed): row.timing for row in own}
    both = [key for key in mine if key in others and not why_no_time(mine[key], others[key])]
    if not both:
        return []
    folder = Counter(key[0] for key in both).most_common(1)[0][0]
    return [(mine[key], others[key]) for key in both if key[0] == folder]
