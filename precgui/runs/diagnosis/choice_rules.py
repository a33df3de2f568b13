"""Group B: choices among scores that rounding has made equal, as of the nearest code or the best expert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precgui.runs.diagnosis.analysis import percent
from precgui.runs.diagnosis.findings import Blame, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, rows_of, text, whole
from precgui.sentences import L_, Sentence

_TIED = "tied-choices"
_MANY = 0.3  # of the choices of an operation: others in FP64, among scores that are equal in the step
_LOST = 0.25  # of what the best score has above the median one, on average
_FEWEST_STEPS = 2
_IN_FP64 = Blame(True, L_("computed in FP64 from the same numbers these scores are not equal, and others are chosen"))


def tied_choices(m: Measurements) -> Answer:
    """Indices that are chosen among equal scores, which are not equal in FP64: the first place decides."""
    rows = [row for row in m.fact_rows("exact_steps") if "unavailable" not in row]
    if not m.own_loop or not m.n or not rows:
        return None
    seen = [(whole(row, "step"), each) for row in rows for each in rows_of(row.get("choices"))]
    last = max((step for step, _ in seen), default=0)
    bad = [(step, each) for step, each in seen if _is_arbitrary(each)]
    worst = max((each for step, each in bad if step == last), key=lambda each: number(each, "regret"), default=None)
    steps = sorted({step for step, each in bad if worst is not None and text(each, "line") == text(worst, "line")})
    if worst is None or last < whole(rows[-1], "step") or len(steps) < _FEWEST_STEPS:
        return RuledOut(
            _TIED, L_("because less than a third of the choices of a step are made among scores that FP64 tells apart"),
        )  # fmt: skip
    return [_finding(m, worst, steps)]


def _is_arbitrary(row: Mapping[str, Any]) -> bool:
    return number(row, "tied") > _MANY and number(row, "regret") > _LOST


def _finding(m: Measurements, row: Mapping[str, Any], steps: list[int]) -> Finding:
    operation, line, stored = text(row, "operation"), text(row, "line"), text(row, "format").upper()
    tied, changed, regret = (number(row, key) for key in ("tied", "changed", "regret"))
    proof = Evidence(
        L_("choices among scores that are equal in the step, and others in FP64, > 30 %; and what is lost by them > 25 "
           "% of the distance between the best score and the median one"),
        {"tied": tied, "changed": changed, "regret": regret, "step": steps[-1], "choices": number(row, "choices"),
         "candidates": number(row, "candidates")},
        Sentence(
            "In step {step} {operation} at {line} chose {count:.0f} times among {candidates:.0f} scores ({format}). In "
            "FP64 {changed} of these choices are others; in {tied} the score that was taken and the next one are equal "
            "in the step alone. On average {regret} of the lead of the best score over the median one is lost.",
            step=steps[-1], operation=operation, line=line, count=number(row, "choices"),
            candidates=number(row, "candidates"), format=stored, changed=percent(changed), tied=percent(tied),
            regret=percent(regret),
        ),
    )  # fmt: skip
    return Finding(
        _TIED, "warning",
        Sentence(
            "{tied} of the choices at {line} are made among scores that rounding has made equal",
            tied=percent(tied), line=line,
        ),
        steps[0], int(m.steps[-1]), (proof,),
        L_(
            "Compute the scores in FP32 from operands that were never rounded (.float() before the products and "
            "differences, autocast off around them), and take off what all scores have in common: distances as "
            "torch.cdist of centred numbers, scores before a softmax or sigmoid."
        ), 0.85, "foundry#236", text(row, "module"), certainty="exact", blame=_IN_FP64,
    )  # fmt: skip


RULES = (Rule(_TIED, "B", L_("Do scores tell apart what is chosen by them?"), tied_choices),)
