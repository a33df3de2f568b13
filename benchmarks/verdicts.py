"""How often the verdicts of a study are wrong, and how often they see what is there, on pools of trained networks.

    python benchmarks/verdicts.py [draws]

A/A: FP32 against FP32 with other seeds. They are the same, so each verdict "different" is false. A/B: an arm against
FP32 with the same seeds. The pools were trained by `benchmarks/verdict_pool.py`: 256 seeds x 6 arms of a small
network on the digits (accuracy in steps of 1/359), 128 seeds x 4 arms of a small GPT (loss).
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precgui.runs.verdict.interim_analyses import DEFAULT_LOOKS, InterimAnalyses
from precgui.runs.verdict.judge import Criterion, Sample, judge
from precgui.runs.verdict.paired import PairedDifference, holm, paired_difference

POOLS = Path(__file__).parent
MARGIN = 0.005
DRAWS = 4000
Draw = NDArray[np.float64]  # the paired differences of one imagined study, in the order of its seeds


def load_pool(name: str) -> tuple[dict[str, NDArray[np.float64]], float]:
    """The metric of each arm, one value a seed, and the grain of the metric (0 for a loss)."""
    pool = json.loads((POOLS / f"pool_{name}.json").read_text(encoding="utf-8"))
    samples = pool.get("validation_samples")
    if samples is None:
        return {arm: np.array(kept["loss"]) for arm, kept in pool["arms"].items()}, 0.0
    return {arm: np.array(kept["right"]) / samples for arm, kept in pool["arms"].items()}, 1 / samples


class Drawer:
    """Imagined studies drawn from a pool without replacement."""

    def __init__(self, pool: dict[str, NDArray[np.float64]], seed: int = 0) -> None:
        self.pool, self._random = pool, np.random.default_rng(seed)

    def same(self, n: int) -> Draw:
        """A/A: the differences of FP32 and FP32 with other seeds."""
        base = self.pool["fp32"]
        seeds = self._random.choice(len(base), 2 * n, replace=False)
        return base[seeds[:n]] - base[seeds[n:]]

    def other(self, arm: str, n: int) -> Draw:
        """A/B: the differences of an arm and FP32, paired by seed."""
        base = self.pool["fp32"]
        seeds = self._random.choice(len(base), n, replace=False)
        return self.pool[arm][seeds] - base[seeds]


def share(draws: int, verdict: Callable[[], bool]) -> float:
    """The share of so many imagined studies with this verdict."""
    return sum(verdict() for _ in range(draws)) / draws


def is_different(differences: Draw, grain: float, alpha: float = 0.05) -> bool:
    return paired_difference(differences.tolist(), grain).p_different() < alpha


def is_different_in_plan(differences: Draw, grain: float, looks: InterimAnalyses = DEFAULT_LOOKS) -> bool:
    """Whether any of the planned looks calls it different."""
    return any(is_different(differences[:n], grain, looks.alpha) for n in looks.seeds)


def is_different_at_any_time(differences: Draw, grain: float) -> bool:
    """Seeds added one by one until the difference is "significant": what one must not do."""
    return any(is_different(differences[:n], grain) for n in range(3, len(differences) + 1))


def is_any_different(family: list[PairedDifference], adjust: bool) -> bool:
    p_values = [difference.p_different() for difference in family]
    return min(holm(p_values) if adjust else p_values) < 0.05


def is_equivalent(differences: Draw, grain: float, margin: float = MARGIN) -> bool:
    return paired_difference(differences.tolist(), grain).p_equivalent(margin) < 0.05


def is_met(differences: Draw, grain: float, lost: float) -> bool:
    """Whether `judge` says "met" to "less than `lost` is lost", at one look at all of the seeds."""
    goal = Criterion("accuracy_lost", -1, lost, "one seed: not a measurement of accuracy")
    verdict = judge(goal, {"arm": Sample(tuple(-differences))}, InterimAnalyses((len(differences),)), grain)["arm"]
    return verdict.verdict == "met"


def false_verdicts(name: str, draws: int) -> None:
    """The A/A table of one pool."""
    pool, grain = load_pool(name)
    drawer = Drawer(pool)
    print(f"\n{name}: A/A, {draws} draws, share of false verdicts (aim 3.5 to 6 %)")
    for n in (3, 5, 8):
        print(f"  paired t, {n} seeds: {100 * share(draws, lambda n=n: is_different(drawer.same(n), grain)):.1f} %")
    looks = share(draws, lambda: is_different_in_plan(drawer.same(10), grain))
    peeks = share(draws // 4, lambda: is_different_at_any_time(drawer.same(12), grain))
    print(f"  looks at 5 and 10 seeds: {100 * looks:.1f} %; looking at 3, 4 ... 12: {100 * peeks:.1f} %")
    for arms in (5, 10):

        def family(arms: int = arms) -> list[PairedDifference]:
            return [paired_difference(drawer.same(5).tolist(), grain) for _ in range(arms)]

        with_holm = share(draws // 2, lambda: is_any_different(family(), adjust=True))
        without = share(draws // 4, lambda: is_any_different(family(), adjust=False))
        print(f"  any of {arms} arms, 5 seeds: {100 * with_holm:.1f} % with Holm, {100 * without:.1f} % without")


def equivalence(draws: int) -> None:
    """How often "equal within the margin" is said where the truth lies at the margin, and where it does not."""
    pool, grain = load_pool("digits")
    drawer = Drawer(pool)
    print(f"\ndigits: equal within {100 * MARGIN} points (TOST), {draws} draws; truth at the margin: aim <= 5 %")
    for n in (3, 5, 8):
        at = share(draws, lambda n=n: is_equivalent(drawer.same(n) - MARGIN, grain))
        met = share(draws, lambda n=n: is_met(drawer.same(n) - MARGIN, grain, MARGIN))
        arms = ", ".join(
            f"{arm} {100 * share(draws // 8, lambda n=n, arm=arm: is_equivalent(drawer.other(arm, n), grain)):.0f} %"
            for arm in ("bf16", "e4m3fn", "int4")
        )
        print(f"  {n} seeds: truth at the margin {100 * at:.1f} %, target met {100 * met:.1f} %; {arms}")


def power(draws: int) -> None:
    """Whether a difference that is there is seen, and how often."""
    for name in ("digits", "gpt"):
        pool, grain = load_pool(name)
        print(f"\n{name}: power of the paired t test, {draws} draws")
        for arm in pool:
            if arm != "fp32":
                print(f"  {arm}: {_power_of_arm(Drawer(pool), arm, grain, draws)}")


def _power_of_arm(drawer: Drawer, arm: str, grain: float, draws: int) -> str:
    values, base = drawer.pool[arm], drawer.pool["fp32"]
    difference, unit, factor = values - base, " points" if grain else "", 100 if grain else 1
    seen = [share(draws, lambda n=n: is_different(drawer.other(arm, n), grain)) for n in (3, 5, 8)]
    return (
        f"true difference {factor * difference.mean():+.3f}{unit}, sd {factor * difference.std(ddof=1):.3f}, "
        f"correlation {_correlation(values, base):.3f}; "
        f"seen with 3, 5, 8 seeds: {', '.join(f'{100 * rate:.0f} %' for rate in seen)}"
    )


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else math.nan


def main(draws: int) -> None:
    begin = time.process_time()
    for name in ("digits", "gpt"):
        false_verdicts(name, draws)
    equivalence(draws)
    power(draws // 4)
    print(f"\n{time.process_time() - begin:.0f} CPU-s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else DRAWS)
