"""The figures of runs beside a baseline, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from precgui.runs.caveats import Arithmetic
from precgui.runs.ratio_interval import TOO_FEW_STEPS, Interval
from precgui.sentences import L_, Sentence, counted


@dataclass(frozen=True)
class Compared:
    """One run of a comparison. None stands for "not measurable"; ratios are to the baseline.

    `speedup`: samples per second of median steps over the baseline's, above 1 is faster; steps per second where one
    of the two has no samples, which `notes` say. Steps are timed as `runs.timing` says: in CPU time where
    other programs kept the CPU busy, which `notes` say, too.
    `memory_ratio` of peaks, `energy_ratio` per step: below 1 is less. The intervals hold 95 % of what varied within the
    two runs (`runs.ratio_interval`); None for the baseline and for runs of few steps.
    `tensor_use`: share of the time in which tensor cores worked, None where the hardware does not report it.
    `accuracy_delta`: value less that of the baseline, in terms of `metric`, which says which way is better; None where
    the baseline has another metric. `emulated`: the arithmetic was imitated, so its speed and memory say
    nothing about hardware that has the format. `arithmetic` is `native`, `emulated`, or `slow` where the device
    computes the format more slowly than FP32, and `caveat` says why. `withheld` says why there are no ratios and no
    difference: the work is another one than the baseline's; empty where it is the same. `accuracy_withheld` says why
    there is no difference alone: other steps or start weights. `costs_withheld` says why there are no ratios of time,
    memory and energy: emulated arithmetic in one of the two, another machine or number of threads. `differs_in` are the
    settings other than the precision in which the run differs from the baseline, with both values. `loads_differ`:
    other programs kept the CPU busier in one of the two, so that the intervals hold the noise between runs of the same
    work, and there are none where no work ran twice.
    """

    run: str
    title: str
    path: str | None
    precision: str
    status: str
    steps: int
    train_loss: float | None
    val_loss: float | None
    val_accuracy: float | None
    metric: dict[str, Any]  # of the task, the fields of `events.Metric`
    time_s: float | None
    before_first_step_s: float | None
    step_s_median: float | None
    samples_per_s: float | None
    memory_peak_bytes: int | None
    energy_j: float | None
    tensor_use: float | None
    skipped_steps: int | None
    nonfinite_events: int
    nonfinite_since_step: int | None
    nonfinite_validation: str
    speedup: float | None
    speedup_interval: Interval | None
    memory_ratio: float | None
    energy_ratio: float | None
    energy_ratio_interval: Interval | None
    accuracy_delta: float | None
    emulated: bool
    arithmetic: Arithmetic
    caveat: str
    withheld: str
    accuracy_withheld: str = ""
    costs_withheld: str = ""
    cpu_s_median: float | None = None  # CPU time of the process in a step
    differs_in: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    accuracy_grain: float | None = None  # one validation sample of the metric; None where it has no such step
    outcome: str = ""  # the status, and what it hides; see `runs.outcome`
    loads_differ: bool = False

    @property
    def why_no_ratio(self) -> str:
        """The reason for which there are no ratios of time, memory and energy, for a cell; empty when there is none."""
        if self.withheld:
            return Sentence("withheld: {why}", why=self.withheld)
        return Sentence("not measurable: {why}", why=self.costs_withheld) if self.costs_withheld else ""

    @property
    def why_no_difference(self) -> str:
        """The reason for which there is no difference of the metric, for a cell; empty when there is none."""
        why = self.withheld or self.accuracy_withheld
        return Sentence("withheld: {why}", why=why) if why else ""

    @property
    def why_no_interval(self) -> str:
        """The reason for which a ratio has no interval, behind it in a cell."""
        return L_("the loads differed") if self.loads_differ else TOO_FEW_STEPS

    def with_remark(self, difference: str) -> str:
        """A difference to the baseline with a remark behind it; several settings are a number."""
        if not self.differs_in:
            return Sentence("{difference} (one seed)", difference=difference)
        return counted(
            "{difference} (one seed; other {setting})",
            "{difference} (one seed; {count} other settings)",
            len(self.differs_in),
            difference=difference,
            setting=next(iter(self.differs_in)),
        )


@dataclass(frozen=True)
class RunComparison:
    """`baseline` is the name of one of the runs; `notes` say what cannot be compared."""

    baseline: str
    runs: tuple[Compared, ...]
    notes: tuple[str, ...] = ()
