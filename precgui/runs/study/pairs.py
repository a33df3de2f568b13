"""The values of an arm beside those of its baseline, paired by seed, with the reason where there is no pair."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from precgui.runs.identity import other_result
from precgui.runs.study.run_figures import ENDED, RunFigures
from precgui.runs.timing import StepClock, clock_for, why_no_time
from precgui.runs.verdict.judge import Sample
from precgui.sanitize import some_names
from precgui.sentences import L_, Sentence

Value = Callable[[RunFigures], float | None]
_NAMED = 6  # runs in a sentence; more are a number
ONE_STEP = L_("of one measured step")
NOT_MEASURED = L_("no value was measured")
Pair = tuple[RunFigures, RunFigures]


@dataclass(frozen=True)
class PairedArm:
    """The runs of one group in the order of the plan, and those of its baseline."""

    name: str
    runs: tuple[RunFigures, ...]
    baseline: tuple[RunFigures, ...]

    @property
    def of_seeds(self) -> list[RunFigures]:
        return [run for run in self.runs if run.kind == "run"]

    @property
    def ended(self) -> list[RunFigures]:
        """Runs that came to an end of their own; one that was stopped says nothing about its arm."""
        return [run for run in self.of_seeds if run.status in ENDED]

    @property
    def failed(self) -> int:
        return sum(not run.came_through for run in self.ended)

    def pairs(self) -> list[Pair]:
        """Runs of the arm and of the baseline with the same seed that both came through."""
        base = {run.seed: run for run in self.baseline if run.kind == "run" and run.came_through}
        return [(run, base[run.seed]) for run in self.of_seeds if run.came_through and run.seed in base]

    def time_pairs(self) -> list[Pair]:
        """Rounds of timing where there are some, else the pairs of seeds."""
        base = {run.order: run for run in self.baseline if run.kind == "timing"}
        rounds = [(run, base[run.order]) for run in self.runs if run.kind == "timing" and run.order in base]
        return rounds or self.pairs()

    @property
    def clock(self) -> StepClock:
        """The time by which this arm is compared with its baseline; a pair without CPU times decides for no other."""
        pairs = self.time_pairs()
        timed = [pair for pair in pairs if all(run.cpu_s for run in pair)] or pairs
        return clock_for([run for pair in timed for run in pair])

    def untimed(self) -> list[str]:
        """The runs that recorded no time by the clock of their arm, so that their pairs have no ratio of times."""
        signal = self.clock.signal
        return [run.name for pair in self.time_pairs() for run in pair if not getattr(run, signal)]

    @property
    def withheld(self) -> str:
        """The reason for which the arm cannot be compared with its baseline; empty when it can.

        Where it is not that of every pair, the run of the first pair that has it is named.
        """
        reasons = [(pair[0].name, other_result(pair[0].work, pair[1].work)) for pair in self.pairs()]
        name, why = next(((name, why) for name, why in reasons if why), ("", ""))
        if not why or all(other for _, other in reasons):
            return why
        return Sentence("{value} ({remark})", value=why, remark=name)

    @property
    def flattered(self) -> str:
        """The reason for which a mean over the runs that came through would flatter the arm or its baseline."""
        if self.failed:
            return Sentence(
                "{failed} of {runs} runs failed: a mean of the others would flatter the arm",
                failed=self.failed,
                runs=len(self.ended),
            )
        base = [run for run in self.baseline if run.kind == "run" and run.status in ENDED]
        failed = sum(not run.came_through for run in base)
        if failed:
            return Sentence(
                "{failed} of {runs} runs of the baseline failed: a mean of the others would flatter it",
                failed=failed,
                runs=len(base),
            )
        return ""


def differences(arm: PairedArm, value: Value, *, worse_is_positive: int = 1) -> Sample:
    """Value less the baseline's for each seed; withheld where one side of some pair alone has a value."""
    if why := arm.withheld or arm.flattered:
        return Sample(why=why)
    pairs = [(run, base, value(run), value(base)) for run, base in arm.pairs()]
    lone = [base.name if a is not None else run.name for run, base, a, b in pairs if (a is None) != (b is None)]
    known = [worse_is_positive * (a - b) for _, _, a, b in pairs if a is not None and b is not None]
    known = [difference for difference in known if math.isfinite(difference)]  # of two huge numbers it is not
    if known and lone:
        return Sample(why=Sentence("no value was measured in {runs}", runs=some_names(lone, _NAMED)))
    return Sample(tuple(known), "" if known else NOT_MEASURED)


def log_ratios(arm: PairedArm, value: Value, *, times: bool = False) -> Sample:
    """Logarithms of value over the baseline's, of timing rounds where the value is a time and there are some."""
    if arm.withheld:
        return Sample(why=arm.withheld)
    pairs = arm.time_pairs() if times else arm.pairs()
    if why := next((why for pair in pairs if (why := why_no_time(*pair))), ""):
        return Sample(why=why)
    values = [(value(run), value(base)) for run, base in pairs]
    known = [math.log(a / b) for a, b in values if a and b and a > 0 and b > 0]
    return Sample(tuple(known), "" if known else NOT_MEASURED)


def memory_ratios(arm: PairedArm) -> Sample:
    """Logarithms of the memory over the baseline's; one measurement where each run measured it in one step."""
    sample = log_ratios(arm, lambda run: run.memory_bytes)
    once = all(run.memory_of_one_step for pair in arm.pairs() for run in pair)
    return replace(sample, once=ONE_STEP) if once and not sample.why else sample


def own_values(arm: PairedArm, value: Value) -> Sample:
    """The arm's own values, not compared with any other."""
    known = [result for run in arm.of_seeds if run.came_through and (result := value(run)) is not None]
    return Sample(tuple(known), "" if known else L_("the hardware does not tell"))


def curve_distances(arm: PairedArm) -> Sample:
    """Of each seed the mean distance of the training loss from the baseline's, as a share of it, after the first
    quarter of the steps."""
    if why := arm.withheld or arm.flattered:
        return Sample(why=why)
    results = [distance for pair in arm.pairs() if (distance := curve_distance(*pair)) is not None]
    return Sample(tuple(results), "" if results else L_("not measured"))


def curve_distance(run: RunFigures, base: RunFigures) -> float | None:
    """The mean of |loss - baseline's| over the mean of the baseline's, from a quarter of the steps on."""
    (x, own), (base_x, other) = run.curve, base.curve
    if not len(x) or len(x) != len(base_x) or not np.array_equal(x, base_x):
        return None
    late = slice(len(x) // 4, None)
    with np.errstate(all="ignore"):
        distance = float(np.abs(own[late] - other[late]).mean() / np.abs(other[late]).mean())
    return distance if math.isfinite(distance) else None
