"""Group B: updates of numbers that are stored in 16 bits, and are lost in their rounding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from precgui.runs.diagnosis.analysis import percent
from precgui.runs.diagnosis.digit_rules import compensated
from precgui.runs.diagnosis.findings import COMPARED, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.number_formats import DIGITS, half_ulp
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, rows_of, text, whole
from precgui.sentences import L_, Sentence, as_given, recased, together

_SOME, _OF_OPTIMIZER = Sentence("a tensor of the loop"), Sentence("of the optimizer")
_LOST = 0.5  # share of the elements that an update leaves as they were
_LOST_OF_WEIGHTS = 0.7  # of weights that an optimizer widens and rounds back: the largest elements always arrive
_FEWEST_STEPS = 2  # in which an update was seen
_GAP = 0.03  # between an average and what it follows, relative
_SAME_WAY = 0.3  # cosine of the updates of two steps that were seen
_BY_CHANCE, _MOST_BY_CHANCE = 4.0, 0.7  # standard deviations of the cosine, and the cosine that is always enough
_PAIRS = 2  # of steps
_WAY = 0.02  # relative change that all lost updates together would have made
_RARE = 0.5  # share of the steps
_MOST_STEPS_SHOWN = 4
_UNIT_DECAY = "unit_decay"
_FORGOTTEN = 1.0  # time constants of a decay


def lost_updates(m: Measurements) -> Answer:
    """Averages, targets, merged weights, running statistics: updates that rounding to 16 bits swallows."""
    rows = [row for row in m.fact_rows("stored_updates") if _steps(row)]
    if not m.own_loop or not m.n:
        return None
    kept = _never_forgotten(m)
    if not rows:
        return [kept] if kept is not None else None
    if overflown := [row for row in rows if row.get("format") == "fp16" and number(_steps(row)[-1], "infinite") > 0]:
        return [_overflown(m, overflown[0])]
    bad = [row for row in rows if _is_lost(m, row)]
    if not bad and kept is not None:
        return [kept]
    if not bad:
        most = max(number(_steps(row)[-1], "swallowed") for row in rows)
        return RuledOut(
            "lost-updates",
            Sentence(
                "because at most {most} of the elements of {row_count} kinds of updates of numbers stored in 16 "
                "bits are swallowed, or what they follow is within 3 % or does not go one way",
                most=percent(most),
                row_count=len(rows),
            ),
        )
    return [_lost(m, max(bad, key=lambda row: number(_steps(row)[-1], "swallowed")))]


def _never_forgotten(m: Measurements) -> Finding | None:
    """A recurrence whose decays are 1 in 16 bits, while the run is longer than the time in which they forget."""
    rows = [row for row in m.fact_rows("lost_values") if row.get("operation") == _UNIT_DECAY]
    rows = [row for row in rows if text(row, "format") in DIGITS and number(row, "count") >= _FEWEST_STEPS]
    row = max(rows, key=lambda each: _forgets(m, each), default=None)
    if row is None or not _forgets(m, row) > _FORGOTTEN or not number(row, "share") > _LOST:
        return None
    stored, share, step = text(row, "format"), number(row, "share"), whole(row, "step")
    gap, times = number(row, "gap"), number(row, "times")
    proof = Evidence(
        L_("decay, rounded, = 1 for decay < 1, in > 50 % of the decays of a state; (1 - decay) x multiplications > 1"),
        {"share": share, "gap": gap, "times": times, "exponent": _forgets(m, row), "step": step},
        Sentence(
            "In step {step} a state is multiplied {times:.0f} times by decays that are rounded to {stored}: {share} of "
            "them are below 1 and become 1, the median one was 1 - {gap:.2g}. Over all multiplications of the run it "
            "would leave {left} of the state, and nothing is forgotten.",
            step=step, times=times, stored=stored.upper(), share=percent(share), gap=gap,
            left=percent(math.exp(-_forgets(m, row))),
        ),
    )  # fmt: skip
    return Finding(
        "lost-updates", "warning",
        Sentence(
            "{share} of the decays of a state are 1 in {stored}: it never forgets",
            share=percent(share), stored=stored.upper(),
        ),
        step, int(m.steps[-1]), (proof,),
        Sentence(
            "Keep decays in FP32 up to the product with the state, and the state as well: all factors from "
            "1 - 2^-{digit} on are 1 in {stored}.",
            digit=DIGITS[stored] + 1, stored=stored.upper(),
        ), 0.85, "Orvieto et al. 2023, Resurrecting Recurrent Neural Networks", str(row.get("module") or ""),
        certainty="estimate", blame=COMPARED,
    )  # fmt: skip


def _forgets(m: Measurements, row: Mapping[str, Any]) -> float:
    """(1 - decay) times the multiplications that a state goes through: of the run, where it is handed from step to
    step, else of one step. Above 1 it is forgotten."""
    handed_on = m.n if row.get("is_old") is True else 1
    return number(row, "gap") * number(row, "times") * handed_on


def _steps(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return rows_of(row.get("steps"))


def _is_lost(m: Measurements, row: Mapping[str, Any]) -> bool:
    seen = _steps(row)
    if text(row, "format") not in DIGITS or (len(seen) < _FEWEST_STEPS and not _is_rare(row)):
        return False
    if row.get("optimizer"):
        typical = sorted(number(each, "swallowed") for each in seen[1:])[(len(seen) - 1) // 2]
        return typical > _LOST_OF_WEIGHTS and compensated(m) is None
    if not number(seen[-1], "swallowed") > _LOST:
        return False
    last = seen[-1]
    if weight := _weight(row):
        is_away = number(last, "intended") / weight > _GAP
        return is_away and all(_goes_on(each) for each in seen[1:][-_PAIRS:])
    return number(last, "intended") * _updates(m, row) > (half_ulp(text(row, "format")) / 2 if _is_rare(row) else _WAY)


def _goes_on(step: Mapping[str, Any]) -> bool:
    """Whether an update goes the way of the one before, more than noise does: the cosine of two random vectors of n
    elements has a standard deviation of 1 / sqrt(n), and of few large elements a larger one."""
    by_chance = min(_BY_CHANCE / math.sqrt(max(number(step, "elements"), 1.0)), _MOST_BY_CHANCE)
    return number(step, "direction") > max(_SAME_WAY, by_chance)


def _updates(m: Measurements, row: Mapping[str, Any]) -> float:
    """How often the run makes an update: as often as up to the last step that was seen, where that is known."""
    last = _steps(row)[-1]
    return m.n * number(last, "writes") / number(last, "step") if last.get("writes") else m.n


def _is_rare(row: Mapping[str, Any]) -> bool:
    """Whether an update is made in few steps: what many steps have learnt is added at once."""
    last = _steps(row)[-1]
    return 0 < number(last, "writes") <= _RARE * number(last, "step")


def _weight(row: Mapping[str, Any]) -> float:
    """Of the new value in an average, in the last step that was seen; 0 where it is a sum."""
    return number(_steps(row)[-1], "weight")


def _lost(m: Measurements, row: Mapping[str, Any]) -> Finding:
    seen, stored = _steps(row), text(row, "format").upper()
    share, last, weight = number(seen[-1], "swallowed"), whole(seen[-1], "step"), _weight(row)
    name = str(row.get("tensor") or "")
    what, fix = _kind(row, name, stored)
    lost = (
        Sentence("{share} in step {step}", share=percent(number(each, "swallowed")), step=whole(each, "step"))
        for each in seen[-_MOST_STEPS_SHOWN:]
    )
    listed = together(*lost, between=", ")
    follows = (
        Sentence(
            ", although what it follows is {intended} away",
            intended=percent(number(seen[-1], "intended") / weight),
        )
        if weight
        else ""
    )
    proof = Evidence(
        L_("x + update, rounded, = x for update != 0, in > 50 % of the elements (70 % of weights)"),
        {"share": share, "step": last, "tensors": whole(row, "tensors") or 1,
         "intended": number(seen[-1], "intended"), "half_ulp": half_ulp(text(row, "format")), "weight": weight,
         "direction": number(seen[-1], "direction")},
        Sentence(
            "The updates of {what} ({stored}, {operation}) leave {listed} of the elements as they were{follows}.",
            what=what, stored=stored, operation=row.get("operation"), listed=listed, follows=follows,
        ),
        L_("share of the elements that an update leaves as they were"),
        tuple((whole(each, "step"), number(each, "swallowed")) for each in seen),
    )  # fmt: skip
    return Finding(
        "lost-updates", "error" if share > 0.9 else "warning",
        Sentence(
            "{share} of the updates of {what} are lost in the rounding of {stored}",
            share=percent(share), what=what, stored=stored,
        ),
        whole(seen[0], "step"), int(m.steps[-1]), (proof,), fix, 0.9,
        "Zamirai et al. 2020, Revisiting BFloat16 Training; diffae issue 16", str(row.get("module") or ""),
        (name,) if name else (), certainty="estimate", blame=COMPARED,
    )  # fmt: skip


def _overflown(m: Measurements, row: Mapping[str, Any]) -> Finding:
    """A sum or an average in FP16 that has become Inf."""
    name = str(row.get("tensor") or "")
    first = next(each for each in _steps(row) if number(each, "infinite") > 0)
    share = number(first, "infinite")
    proof = Evidence(
        L_("an element of what the loop updates in FP16 is Inf"), {"share": share, "step": whole(first, "step")},
        Sentence(
            "In step {step} {share} of {name} (FP16, {operation}) are Inf.",
            step=whole(first, "step"), share=percent(share), name=name or _SOME, operation=row.get("operation"),
        ),
    )  # fmt: skip
    return Finding(
        "lost-updates", "error",
        Sentence(
            "{name}, which the loop updates in FP16, overflows",
            name=recased(as_given(name) if name else _SOME, "upper"),
        ),
        whole(first, "step"), int(m.steps[-1]), (proof,),
        L_("Keep sums, squares and running statistics in FP32: FP16 ends at 65504."), 0.9,
        "Micikevicius et al. 2018", str(row.get("module") or ""), certainty="estimate", blame=COMPARED,
    )  # fmt: skip


def _kind(row: Mapping[str, Any], name: str, stored: str) -> tuple[str, str]:
    """The tensors that are updated, as a clause, and the fix."""
    count = whole(row, "tensors") or 1
    named = name or _SOME
    if count > 1:
        named = Sentence("{name} and {count} more", name=named, count=count - 1)
    if row.get("optimizer"):
        return (
            Sentence(
                "the weights ({name} and {count} more), which each step widens, changes and rounds back",
                name=name or _OF_OPTIMIZER,
                count=count - 1,
            )
            if count > 1
            else Sentence(
                "the weights ({name}), which each step widens, changes and rounds back", name=name or _OF_OPTIMIZER
            ),
            Sentence(
                "Make the FP32 copy (master weights) of the {stored} weights once, keep it from step to step, and "
                "round only what the model reads; or round stochastically.",
                stored=stored,
            ),
        )
    last = _steps(row)[-1]
    is_void = bool(last.get("void"))
    if row.get("operation") == "mul":
        return (
            Sentence("{name} by a decay, whose factor is 1 in {format},", name=named, format=stored)
            if is_void
            else Sentence("{name} by a decay", name=named),
            Sentence(
                "Compute the factor of the decay in FP32 or with numbers of Python, and keep what it makes smaller "
                "(or a master copy) in FP32: a change by {last:.3g} is below half an ulp of {stored}.",
                last=number(last, "intended"),
                stored=stored,
            ),
        )
    if is_void or _weight(row):
        return _kind_of_average(row, named, stored, is_void=is_void)
    if _is_rare(row):
        return (
            Sentence(
                "{name}, written in {written:.0f} of {steps:.0f} steps,",
                name=named,
                written=number(last, "writes"),
                steps=number(last, "step"),
            ),
            Sentence(
                "Keep an FP32 copy of what is merged into (weights, sums), add to that copy, and round it to "
                "{stored} for the model: each addition is mostly below half an ulp of {stored}.",
                stored=stored,
            ),
        )
    return (
        Sentence("{name}, which the loop adds to,", name=named),
        Sentence(
            "Keep it in FP32 while it is added to (merged weights, sums, averages and counts), and round a copy to "
            "{stored}.",
            stored=stored,
        ),
    )


def _kind_of_average(row: Mapping[str, Any], names: str, stored: str, *, is_void: bool) -> tuple[str, str]:
    """The same of a moving average; `is_void`: its factor is 1 in the format."""
    if is_void:
        return (
            Sentence(
                "the moving average or target copy ({names}), whose factor is 1 in {stored},",
                names=names,
                stored=stored,
            ),
            Sentence(
                "Keep the factor of the average as a number of Python or in FP32, and the average in FP32: all "
                "factors from 1 - 2^-{digit} on are 1 in {stored}.",
                digit=DIGITS[text(row, "format")] + 1,
                stored=stored,
            ),
        )
    return (
        Sentence("the moving average or target copy ({names})", names=names),
        Sentence(
            "Keep the average (a target network, a running statistic) in FP32: {weight:.3g} of the difference is "
            "below half an ulp of {stored}.",
            weight=_weight(row),
            stored=stored,
        ),
    )


RULES = (Rule("lost-updates", "B", L_("Do updates of averages, targets and merged weights arrive?"), lost_updates),)
