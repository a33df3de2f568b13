"""How many runs of an arm completed: the share with its exact interval, and the verdict on failures.

A run that failed has no final accuracy, so it enters no mean. A mean of the others alone would flatter the arm: where
runs failed, the share of completed runs is the result, and the mean is shown but not judged.
"""

from __future__ import annotations

from precgui.runs.verdict.judge import Verdict, VerdictWord
from precgui.runs.verdict.quantiles import share_interval


def success_text(failed: int, runs: int) -> str:
    """The share of failures with its exact 95 % interval, such as "0 of 5 failed: less than 45 %"."""
    low, high = (100 * bound for bound in share_interval(failed, runs))
    if failed == 0:
        return f"0 of {runs} failed: less than {high:.0f} %"
    if failed == runs:
        return f"{failed} of {runs} failed: more than {low:.0f} %"
    return f"{failed} of {runs} failed: {low:.0f} to {high:.0f} %"


def judge_failures(failed: int, runs: int, most: int) -> Verdict:
    """The verdict on "at most so many runs fail": it says what happened, its interval what may be expected."""
    if not runs:
        return Verdict("failures", "not measurable", margin=most, why="no run has ended")
    word: VerdictWord = "met" if failed <= most else "missed"
    low, high = share_interval(failed, runs)
    return Verdict("failures", word, failed, (low * runs, high * runs), most, runs, why=success_text(failed, runs))
