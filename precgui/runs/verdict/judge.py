"""From differences paired by seed, and from the share of runs that fail, to one of four words: met, missed, undecided,
not measurable.

Several arms are judged together, because with ten arms one in forty would be called different that is not
(Holm). All tests are made at the planned interim looks only. A run that failed has no final accuracy, so it enters no
mean. A mean of the others alone would flatter the arm: where runs failed, the share of completed runs is the result,
and the mean is shown but not judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from precgui.runs.verdict.interim_analyses import DEFAULT_LOOKS, InterimAnalyses
from precgui.runs.verdict.paired import PairedDifference, holm, paired_difference, seeds_for
from precgui.runs.verdict.quantiles import share_interval
from precgui.sentences import L_, Sentence, counted, filled

VerdictWord = Literal["met", "missed", "undecided", "not measurable"]
VERDICT_WORDS = (L_("met"), L_("missed"), L_("undecided"), L_("not measurable"))
_OF_FEW = {5: 1.207, 6: 1.239, 7: 1.231}
_NORMAL_975 = 1.959964
FEWEST = min(_OF_FEW)
SKEWED = L_(
    "the differences are skewed (skewness {skewness:+.1f}; normal values stay within {limit:.1f} in 95 %): the "
    "t interval is wrong more often than its level says"
)
FAILURES_LEVEL = 0.95  # of the interval of a share of failures


@dataclass(frozen=True)
class Criterion:
    """A target on one quantity: it shall lie above (`side` 1) or below (`side` -1) the bound.

    `log` says that the quantity is the logarithm of a ratio, which is given back in verdicts. `one_seed` says that
    one seed is no measurement of it. `repeatable` quantities (a peak of memory) are judged by their value when all
    seeds agree. `systematic` is an error of the instrument in the unit of the quantity, which no number of seeds
    reduces: it is added to the interval on both sides.
    """

    name: str
    side: Literal[1, -1]
    bound: float
    one_seed: str
    log: bool = False
    repeatable: bool = False
    systematic: float = 0.0

    def in_own_unit(self, value: float) -> float:
        return math.exp(value) if self.log else value


@dataclass(frozen=True)
class Sample:
    """One arm's values in the order of the plan, one for each seed; with `why` it cannot be measured at all.

    `once` says where a value comes from that each run measured once, such as the memory of one step: where all are
    equal, they are one measurement and no sample of as many.
    """

    values: tuple[float, ...] = ()
    why: str = ""
    once: str = ""


@dataclass(frozen=True)
class Verdict:
    """`value`, `ci` and `margin` are in the unit of the target (a ratio for a ratio); None stands for "not measured".

    `ci` is the interval that was held against the margin, of confidence `level`: that of the look, shared by all arms.
    `n` seeds were used; `seeds_needed` is how many more would probably decide, None where that is not known. `caution`
    says why the interval is less sure than its level.
    """

    target: str
    verdict: VerdictWord
    value: float | None = None
    ci: tuple[float, float] | None = None
    margin: float | None = None
    n: int = 0
    seeds_needed: int | None = None
    why: str = ""
    level: float | None = None
    caution: str = ""

    @property
    def text(self) -> str:
        """The verdict in words, such as "undecided: about 5 more seeds"."""
        if self.verdict == "undecided":
            if self.seeds_needed is None:
                return self.verdict
            return counted(
                "undecided: about {count} more seed", "undecided: about {count} more seeds", self.seeds_needed
            )
        if self.verdict == "not measurable" and self.why:
            return Sentence("not measurable: {why}", why=self.why)
        return self.verdict


def judge(
    goal: Criterion, samples: Mapping[str, Sample], looks: InterimAnalyses = DEFAULT_LOOKS, grain: float = 0.0
) -> dict[str, Verdict]:
    """The verdict of each arm on one target, all arms judged together."""
    differences: dict[str, PairedDifference] = {}
    used: dict[str, Sequence[float]] = {}
    verdicts: dict[str, Verdict] = {}
    for arm, sample in samples.items():
        early = _without_test(goal, sample, looks)
        if early is None:
            used[arm] = sample.values[: looks.reached(len(sample.values))]
            differences[arm] = paired_difference(used[arm], grain)
        else:
            verdicts[arm] = early
    tested = _tested(goal, differences, looks)
    return verdicts | {arm: replace(each, caution=skew_caution(used[arm], grain)) for arm, each in tested.items()}


def _without_test(goal: Criterion, sample: Sample, looks: InterimAnalyses) -> Verdict | None:
    """The verdict on a sample that needs no test; None for a sample that needs one."""
    n, margin = len(sample.values), goal.in_own_unit(goal.bound)
    if sample.why or not n:
        why = sample.why or L_("no seed has both runs of a pair")
        return Verdict(goal.name, "not measurable", margin=margin, n=n, why=why)
    value = goal.in_own_unit(math.fsum(sample.values) / n)
    if goal.repeatable and max(sample.values) == min(sample.values):
        is_met = goal.side * (sample.values[0] - goal.bound) >= 0
        if sample.once:
            return Verdict(goal.name, "met" if is_met else "missed", value, None, margin, 1, why=sample.once)
        why = L_("the same in every run") if n > 1 else L_("one run; the value does not depend on the seed")
        return Verdict(goal.name, "met" if is_met else "missed", value, (value, value), margin, n, why=why)
    if n == 1:
        return Verdict(goal.name, "not measurable", value, None, margin, n, looks.seeds[0] - 1, goal.one_seed)
    if looks.reached(n) is None:
        why = Sentence("the first look of the plan is at {seeds} seeds", seeds=looks.seeds[0])
        return Verdict(goal.name, "undecided", value, None, margin, n, looks.seeds[0] - n, why)
    return None


def _tested(goal: Criterion, differences: Mapping[str, PairedDifference], looks: InterimAnalyses) -> dict[str, Verdict]:
    arms = list(differences)
    p_values = [min(_p_met(goal, differences[arm]), _p_missed(goal, differences[arm])) for arm in arms]
    adjusted = holm(p_values)
    order = sorted(range(len(arms)), key=p_values.__getitem__)
    return {
        arms[place]: _worded(goal, differences[arms[place]], adjusted[place], looks, len(arms) - rank)
        for rank, place in enumerate(order)
    }


def _worded(
    goal: Criterion, difference: PairedDifference, p_holm: float, looks: InterimAnalyses, shared_by: int
) -> Verdict:
    alpha = looks.alpha / shared_by
    low, high = difference.interval(1 - 2 * alpha)
    ci = goal.in_own_unit(low - goal.systematic), goal.in_own_unit(high + goal.systematic)
    value, margin, n = goal.in_own_unit(difference.mean), goal.in_own_unit(goal.bound), difference.n
    level = 1 - 2 * alpha
    if p_holm < looks.alpha:
        is_met = _p_met(goal, difference) < _p_missed(goal, difference)
        inside, outside = (
            L_("the interval lies wholly inside the target"),
            L_("the interval lies wholly outside the target"),
        )
        why = inside if is_met else outside
        return Verdict(goal.name, "met" if is_met else "missed", value, ci, margin, n, why=why, level=level)
    more = _more_seeds(goal, difference, alpha, looks)
    why = L_("the interval holds the border of the target")
    if more is None:
        why = L_("the mean is so near the border of the target that a thousand seeds would not tell")
    return Verdict(goal.name, "undecided", value, ci, margin, n, more, why, level)


def _more_seeds(goal: Criterion, difference: PairedDifference, alpha: float, looks: InterimAnalyses) -> int | None:
    distance = abs(difference.mean - goal.bound) - goal.systematic
    needed = seeds_for(distance, difference.standard_error * math.sqrt(difference.n), alpha)
    if needed is None:
        return None
    return max(needed, looks.after(difference.n) or 0, difference.n + 1) - difference.n


def _p_met(goal: Criterion, difference: PairedDifference) -> float:
    bound = goal.bound + goal.side * goal.systematic
    return difference.p_above(bound) if goal.side > 0 else difference.p_below(bound)


def _p_missed(goal: Criterion, difference: PairedDifference) -> float:
    bound = goal.bound - goal.side * goal.systematic
    return difference.p_below(bound) if goal.side > 0 else difference.p_above(bound)


def skewness(values: Sequence[float]) -> float:
    """The sample skewness sqrt(b1) = m3 / m2^1.5 with the moments about the mean; 0 where all values are equal."""
    deviations = np.asarray(values, np.float64) - np.mean(values)
    second = float(np.mean(deviations**2))
    return float(np.mean(deviations**3)) / second**1.5 if second > 0 else 0.0


def limit_of(n: int) -> float:
    """The size of the skewness that n normal values exceed in 5 % (both sides); infinite below five, of which none can
    be told.

    Of 5 to 7 values by D'Agostino and Tietjen 1973 (Biometrika 60, 169), of more by the transformation of D'Agostino
    1970 (Biometrika 57, 679).
    """
    if n < FEWEST:
        return math.inf
    if n in _OF_FEW:
        return _OF_FEW[n]
    kurtosis = 3 * (n * n + 27 * n - 70) * (n + 1) * (n + 3) / ((n - 2) * (n + 5) * (n + 7) * (n + 9))
    w_squared = math.sqrt(2 * (kurtosis - 1)) - 1
    delta, alpha = 1 / math.sqrt(0.5 * math.log(w_squared)), math.sqrt(2 / (w_squared - 1))
    return alpha * math.sinh(_NORMAL_975 / delta) / math.sqrt((n + 1) * (n + 3) / (6 * (n - 2)))


def skew_caution(values: Sequence[float], grain: float = 0.0) -> str:
    """A clause on skewed differences, whose t interval is wrong more often than its level says; empty where no skew is
    seen.

    Values that spread by no more than the `grain` of the metric are two or three steps of it, whose skewness says
    nothing.
    """
    if len(values) < FEWEST or float(np.std(values, ddof=1)) <= grain:
        return ""
    own, limit = skewness(values), limit_of(len(values))
    return filled(SKEWED, skewness=own, limit=limit) if abs(own) > limit else ""


def success_text(failed: int, runs: int) -> str:
    """The share of failures with its exact 95 % interval, such as "0 of 5 failed: less than 45 %"."""
    if runs == 1:
        return Sentence("{failed} of 1 failed: one run tells no share", failed=failed)
    low, high = (100 * bound for bound in share_interval(failed, runs, FAILURES_LEVEL))
    if failed == 0:
        return Sentence("0 of {runs} failed: less than {high:.0f} %", runs=runs, high=high)
    if failed == runs:
        return Sentence("{failed} of {runs} failed: more than {low:.0f} %", failed=failed, runs=runs, low=low)
    return Sentence(
        "{failed} of {runs} failed: {low:.0f} to {high:.0f} %", failed=failed, runs=runs, low=low, high=high
    )


def judge_failures(failed: int, runs: int, most: int, fewest: int) -> Verdict:
    """The verdict on "at most so many runs fail": it says what happened, its interval what may be expected.

    Fewer than `fewest` runs, the first look of the plan, can miss the target and not meet it.
    """
    if not runs:
        return Verdict("failures", "not measurable", margin=most, why=L_("no run has ended"))
    low, high = share_interval(failed, runs, FAILURES_LEVEL)
    result = Verdict(
        "failures",
        "met",
        failed,
        (low * runs, high * runs),
        most,
        runs,
        None,
        success_text(failed, runs),
        FAILURES_LEVEL,
    )
    if failed > most:
        return replace(result, verdict="missed")
    return result if runs >= fewest else replace(result, verdict="undecided", seeds_needed=fewest - runs)
