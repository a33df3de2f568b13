"""Whether differences of branches from the same state are bias or noise: t test, sign flips, bound on the effect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from precgui.runs.verdict.paired import paired_difference, seeds_for
from precgui.sentences import L_

ALPHA = 0.005  # below which both p values must be; `benchmarks/twins.py` measures the false alarms
LEVEL = 0.99  # of the interval of the drift
LEAST_EFFECT = 1e-3  # of the progress: a smaller bias is called negligible
MARGIN = 0.05  # of the progress: an interval inside it rules out a bias that matters
LEAST_BRANCHES = 10  # below it no pattern of signs has a p value below ALPHA
_EXACT_UP_TO = 16  # branches whose signs are all tried
_DRAWS = 1 << 16

DriftVerdict = Literal["bias", "negligible", "no bias", "undecided", "broken"]
DRIFT_VERDICTS = (
    L_("bias"), L_("negligible"), L_("no bias"), L_("undecided"), L_("broken"),
)  # fmt: skip


@dataclass(frozen=True)
class Drift:
    """How far branches end from the reference on average, in units of the loss.

    `progress` is the mean change of the reference's loss in a branch, absolute. `needed` is the number of branches
    that would decide, None where 1000 would not or nothing is open. Of a broken arm nothing else is known.
    """

    verdict: DriftVerdict
    n: int
    broken: int
    progress: float
    mean: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    p_t: float | None = None
    p_sign_flip: float | None = None
    needed: int | None = None

    @property
    def share(self) -> float | None:
        """The drift as a signed share of the progress; None where there is none."""
        return self.mean / self.progress if self.mean is not None and self.progress > 0 else None


def judge_drift(differences: Sequence[float], progress: float) -> Drift:
    """The drift from held-out losses, arm minus reference, one for each branch point.

    "bias" needs both p values below ALPHA and an effect of more than LEAST_EFFECT of the progress. Raises ValueError
    for fewer than two differences.
    """
    values = np.asarray(differences, np.float64)
    finite = values[np.isfinite(values)]
    broken = len(values) - len(finite)
    if len(values) < 2:
        raise ValueError("a drift needs two branches at least")
    if broken:
        return Drift("broken", len(values), broken, progress)
    paired = paired_difference([float(value) for value in values])
    low, high = paired.interval(LEVEL)
    p_t, p_sign = paired.p_different(), sign_flip_p(values)
    significant = p_t < ALPHA and p_sign < ALPHA
    verdict: DriftVerdict = "undecided"
    if significant and abs(paired.mean) > LEAST_EFFECT * progress:
        verdict = "bias"
    elif significant:
        verdict = "negligible"
    elif max(-low, high) <= MARGIN * progress:
        verdict = "no bias"
    needed = None
    if verdict == "undecided":
        needed = seeds_for(MARGIN * progress, paired.sd, (1 - LEVEL) / 2)
        needed = max(needed, LEAST_BRANCHES, len(values) + 1) if needed is not None else None
    return Drift(verdict, len(values), 0, progress, paired.mean, paired.sd, low, high, p_t, p_sign, needed)


def sign_flip_p(differences: Sequence[float] | np.ndarray) -> float:
    """The two-sided p value of the mean under random signs: exact up to 16 values, else of 65 536 drawn patterns.

    Drawn patterns count the one that was measured, too (Phipson and Smyth 2010), so that p is never 0.
    """
    values = np.asarray(differences, np.float64)
    measured = abs(math.fsum(values)) * (1 - 1e-12)
    if len(values) <= _EXACT_UP_TO:
        sums = values[:1]  # the other half of the patterns has the same absolute sums
        for value in values[1:]:
            sums = np.concatenate((sums + value, sums - value))
        return float(np.mean(np.abs(sums) >= measured))
    signs = np.random.default_rng(0).integers(0, 2, (_DRAWS, len(values)), dtype=np.int8) * 2 - 1
    return float((1 + np.count_nonzero(np.abs(signs @ values) >= measured)) / (1 + _DRAWS))
