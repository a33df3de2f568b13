"""Schedules of the learning rate: that wait for the wrong direction, multiply rates, or are never stepped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from precgui.runs.diagnosis.findings import IN_ANY_FORMAT, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements, Values
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, whole
from precgui.sentences import L_, Sentence

_RARE = "schedule-stepped-rarely"
_FEWEST_STEPS, _AS_PLANNED = 100, 0.01  # of a run; relative: planned steps and those of the run
_RARELY, _NEVER_REACHED = 5, 0.5  # steps of the run for one of the schedule; of the planned rate
_SAME_CUT = 0.01  # between the quotient of two rates and the factor of a schedule
_SAME_NUMBER = 1e-5  # relative: a loss as it was recorded and as a schedule got it
_BETTER = 0.95  # of the worst value: what has become better since
_WARMING = 0.1  # of the rate that a schedule was made for
_SQUARED = 1e-3  # relative: the largest rate, and the square of the one that a schedule was made for
_MOST_SQUARED = 0.05  # a rate, which as a factor leaves a twentieth: more than a factor of its own may be meant to


@np.errstate(all="ignore")
def plateau_mode(m: Measurements) -> Answer:
    """A plateau schedule that waits for a rising loss, or for a falling score, and cuts the rate as it improves."""
    rows = [row for row in m.fact_rows("schedules") if row.get("kind") == "plateau"]
    if not m.own_loop or not rows:
        return None
    ratios = m.lr[1:] / m.lr[:-1]
    for row in rows:
        cuts = int((np.abs(ratios - number(row, "factor")) < _SAME_CUT).sum())
        followed = _followed(m, row) if cuts else None
        if followed is not None:
            return [_of_plateau(m, row, followed, cuts)]
    return RuledOut(
        "plateau-mode", L_("because no plateau schedule was seen to take what it is given for the other direction")
    )


@dataclass(frozen=True)
class _Followed:
    """Numbers that a plateau schedule is given: the best one by its mode, and the last one."""

    is_loss: bool
    best: float
    last: float


def _followed(m: Measurements, row: Mapping[str, Any]) -> _Followed | None:
    """The recorded numbers whose worst value is the best one of a schedule; None where there are none, or where they
    have not become better since."""
    if "best" not in row or row.get("mode") not in ("min", "max"):
        return None
    best, steps = number(row, "best"), whole(row, "last_epoch")
    losses, scores = m.run.series("val_loss")[1], m.run.series("val_accuracy")[1]
    if row.get("mode") == "max":
        epochs = np.array_split(m.loss, steps) if 0 < steps <= m.n and m.n % steps == 0 else []
        for values in (losses, m.loss, np.array([each.mean() for each in epochs])):
            known = values[np.isfinite(values)]
            if len(known) > 1 and _is_in(best, known) and known[-1] < _BETTER * best and not _is_in(best, scores):
                return _Followed(True, best, float(known[-1]))
        return None
    if not _more_is_better(m):
        return None
    for factor in (1.0, 100.0):
        known = factor * scores[np.isfinite(scores)]
        if len(known) > 1 and _is_in(best, known) and best < _BETTER * known[-1] and not _is_in(best, losses):
            return _Followed(False, best, float(known[-1]))
    return None


def _is_in(value: float, values: Values) -> bool:
    return bool((np.abs(values - value) <= _SAME_NUMBER * abs(value)).any()) and value > 0


def _more_is_better(m: Measurements) -> bool:
    metric = m.environment.get("metric")
    return not isinstance(metric, Mapping) or metric.get("higher_is_better") is not False


def _of_plateau(m: Measurements, row: Mapping[str, Any], followed: _Followed, cuts: int) -> Finding:
    mode = str(row.get("mode"))
    first = int(m.steps[1:][np.abs(m.lr[1:] / m.lr[:-1] - number(row, "factor")) < _SAME_CUT][0])
    proof = Evidence(
        L_("the best value of a plateau schedule = the worst one of what it is given, which has improved since"),
        {"best": followed.best, "last": followed.last, "cuts": cuts, "patience": number(row, "patience")},
        (
            Sentence(
                "The schedule waits for the largest value, and the largest it has seen is a loss of {best:.4g}. The "
                "loss has fallen to {last:.4g}, and the rate was cut {cuts} times, from {first:.3g} to {end:.3g}.",
                best=followed.best, last=followed.last, cuts=cuts, first=float(m.lr[0]), end=float(m.lr[-1]),
            ) if followed.is_loss else
            Sentence(
                "The schedule waits for the smallest value, and the smallest it has seen is a score of {best:.4g}. The "
                "score has risen to {last:.4g}, and the rate was cut {cuts} times, from {first:.3g} to {end:.3g}.",
                best=followed.best, last=followed.last, cuts=cuts, first=float(m.lr[0]), end=float(m.lr[-1]),
            )
        ),
        *m.log_of(Sentence("learning rate"), m.lr, 10),
    )  # fmt: skip
    return Finding(
        "plateau-mode", "warning",
        (
            L_("The plateau schedule waits for a rising loss, and cuts the rate while the loss falls")
            if followed.is_loss
            else L_("The plateau schedule waits for a falling score, and cuts the rate while the score rises")
        ),
        first, int(m.steps[-1]), (proof,),
        (
            L_("Make the schedule with mode='min', which is for losses.") if mode == "max"
            else L_("Make the schedule with mode='max', or give it a loss.")
        ),
        0.9, "torch.optim.lr_scheduler documentation; selene issue 115", certainty="exact", blame=IN_ANY_FORMAT,
    )  # fmt: skip


def rate_as_factor(m: Measurements) -> Answer:
    """A function for LambdaLR that returns rates: torch multiplies the rate of the optimizer by them."""
    rows = [row for row in m.fact_rows("schedules") if row.get("kind") == "lambda"]
    rates = m.lr[np.isfinite(m.lr)]
    if not m.own_loop or not rows or not len(rates) or len(rates) < m.n:
        return None
    largest = float(rates.max())
    bases = [number(row, "base_rate") for row in rows]
    base = next((each for each in bases if abs(largest - each**2) <= _SQUARED * each**2), 0.0)
    if not 0 < base <= _MOST_SQUARED:
        return RuledOut(
            "rate-as-factor", L_("because the largest rate is not the square of the one that the schedule was made for")
        )
    proof = Evidence(
        L_("max(lr) = base_lr^2 of a LambdaLR, base_lr <= 0.05"),
        {"lr_max": largest, "base_rate": base, "steps": m.n},
        Sentence(
            "The optimizer was made with a rate of {base:.3g}, and the largest rate of {steps} steps is {largest:.3g}, "
            "which is {base:.3g} times {base:.3g}: torch multiplies its rate by the answer of the function.",
            base=base, steps=m.n, largest=largest,
        ),
        *m.log_of(Sentence("learning rate"), m.lr, 10),
    )  # fmt: skip
    return [
        Finding(
            "rate-as-factor", "warning",
            L_("The function of LambdaLR returns a rate, where torch asks for a factor of the rate"),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_("Let the function return a factor that is 1 at the full rate, or make the optimizer with lr=1."),
            0.95, "torch.optim.lr_scheduler.LambdaLR documentation", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def schedule_not_stepped(m: Measurements) -> Answer:
    """A schedule that was made and never stepped: the rate stays at its beginning."""
    rows = [row for row in m.fact_rows("schedules") if row.get("kind") == "schedule"]
    if not m.own_loop or not rows:
        return None
    rate, base = number(rows[0], "rate"), number(rows[0], "base_rate")
    begins_low = rate < _WARMING * base
    proof = Evidence(
        L_("last_epoch = 0 of each schedule of the optimizer when the recording ended"),
        {"steps": m.n, "rate": rate, "base_rate": base},
        Sentence(
            "After {steps} steps no schedule of the optimizer had been stepped. The rate is {rate:.3g}, as in the "
            "first step; the schedule was made for {base:.3g}.",
            steps=m.n, rate=rate, base=base,
        ),
        *m.log_of(Sentence("learning rate"), m.lr, 10),
    )  # fmt: skip
    return [
        Finding(
            "schedule-not-stepped", "warning" if begins_low else "info",
            L_("The schedule of the learning rate is made and never stepped"), int(m.steps[0]), int(m.steps[-1]),
            (proof,),
            L_("Call scheduler.step() after optimizer.step(): in each step or each epoch, as its numbers are meant."),
            0.9 if begins_low else 0.6, "torch.optim.lr_scheduler documentation", certainty="exact",
            blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def schedule_stepped_rarely(m: Measurements) -> Answer:
    """A schedule that was planned for all steps of the run, and made one of many: the rate stays where it warms up."""
    rows = [row for row in m.fact_rows("schedules") if row.get("kind") == "planned"]
    rates = m.lr[np.isfinite(m.lr)]
    if not m.own_loop or not rows or not len(rates) or m.n < _FEWEST_STEPS:
        return None
    largest = float(rates.max())
    for row in rows:
        planned, done, peak = whole(row, "planned"), whole(row, "done"), number(row, "peak")
        steps = whole(row, "steps")
        is_planned = steps > 0 and abs(planned - steps) <= _AS_PLANNED * steps
        if is_planned and 0 < _RARELY * done <= steps and 0 < largest < _NEVER_REACHED * peak:
            return [_of_rare_steps(m, planned, done, largest, peak)]
    return RuledOut(
        _RARE,
        L_("because no schedule that was planned for as many steps as the run has was stepped in few of them only"),
    )


def _of_rare_steps(m: Measurements, planned: int, done: int, largest: float, peak: float) -> Finding:
    proof = Evidence(
        L_("steps that the schedule was planned for = steps of the run (1 %), steps of the schedule <= 1/5 of them, "
           "and max(lr) < 0.5 of the planned rate"),
        {"planned": planned, "done": done, "steps": m.n, "lr_max": largest, "peak": peak},
        Sentence(
            "The schedule was planned for {planned} steps, as many as the optimizer made, and was stepped {done} "
            "times. Its rate was to rise to {peak:.3g}, and was {largest:.3g} at most.",
            planned=planned, done=done, peak=peak, largest=largest,
        ),
        *m.log_of(Sentence("learning rate"), m.lr, 10),
    )  # fmt: skip
    return Finding(
        _RARE, "warning",
        L_("The schedule of the rate is planned in steps and stepped in epochs: the rate never comes to its height"),
        int(m.steps[0]), int(m.steps[-1]), (proof,),
        L_("Call scheduler.step() behind each optimizer.step(), or plan the schedule in epochs."),
        0.95, "torch.optim.lr_scheduler.OneCycleLR documentation", certainty="exact", blame=IN_ANY_FORMAT,
    )  # fmt: skip


RULES = (
    Rule("plateau-mode", "C", L_("Does a plateau schedule wait for the right direction?"), plateau_mode),
    Rule("rate-as-factor", "C", L_("Is the answer of a schedule a factor?"), rate_as_factor),
    Rule("schedule-not-stepped", "C", L_("Is the schedule of the rate stepped?"), schedule_not_stepped),
    Rule(_RARE, "C", L_("Is the schedule stepped as often as it was planned?"), schedule_stepped_rarely),
)
