"""How many runs of an arm completed: the share with its exact interval, and the verdict on failures.

A run that failed has no final accuracy, so it enters no mean. A mean of the others alone would flatter the arm: where
runs failed, the share of completed runs is the result, and the mean is shown but not judged.
"""

from __future__ import annotations

from dataclasses import replace

from precgui.runs.verdict.judge import Verdict
from precgui.runs.verdict.quantiles import share_interval
from precgui.sentences import L_, Sentence

LEVEL = 0.95  # of the interval of a share of failures


def success_text(failed: int, runs: int) -> str:
    """The share of failures with its exact 95 % interval, such as "0 of 5 failed: less than 45 %"."""
    if runs == 1:
        return Sentence("{failed} of 1 failed: one run tells no share", failed=failed)
    low, high = (100 * bound for bound in share_interval(failed, runs, LEVEL))
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
    low, high = share_interval(failed, runs, LEVEL)
    result = Verdict(
        "failures", "met", failed, (low * runs, high * runs), most, runs, None, success_text(failed, runs), LEVEL
    )
    if failed > most:
        return replace(result, verdict="missed")
    return result if runs >= fewest else replace(result, verdict="undecided", seeds_needed=fewest - runs)
