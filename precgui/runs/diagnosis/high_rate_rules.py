"""Group C: rates at which an optimizer like Adam throws away what it began with."""

from __future__ import annotations

import numpy as np

from precgui.runs.diagnosis.analysis import base_rate, first_update, is_adaptive, median, percent, update_ratios
from precgui.runs.diagnosis.blame import blame_of_symptom
from precgui.runs.diagnosis.chance_rules import ABOVE, BEST, JUMPED, LITTLE, NO_BETTER, Chance, chance_of
from precgui.runs.diagnosis.findings import Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.sentences import L_, Sentence

_HIGH_RATE = 0.02  # of an optimizer like Adam, whose updates are of the size of the rate
_LARGE_UPDATES = 0.01  # of the weights, median of the second half
_RISE, _NOTICED = 0.03, 4.0  # of the loss above its least quarter, and standard errors
_FIRST_STEPS, _LEAPT = 10, 1.5  # steps, and the largest loss of these over that before any update
# Ten steps in one direction that raise a loss to 10 times that of a constant: as many in all directions, which go the
# root of 10 as far, raise it by about as much as it is. Steps as large as half of the first weights: after four of them
# no weight is where it was.
_FAR_LEAPT, _FAR_LEFT = 10.0, 0.3
_FAR_MOVED, _FAR_MOVED_LEFT = 0.5, 0.5
_RATE_OF_ADAM, _EARLY_UPDATE = 3e-3, 0.03  # and the median update of the first steps, of the weights
_STAYS = 0.5  # of the rate, median of the second half


@np.errstate(all="ignore")
def rate_too_high(m: Measurements) -> Answer:
    """A loss of fixed targets that rises again, under an optimizer like Adam at a rate far above the usual one."""
    found = chance_of(m)
    if found is None or not is_adaptive(m):
        return None
    ratios = update_ratios(m)[1]
    rate, typical = base_rate(m), median(ratios[len(ratios) // 2 :])
    quarters = np.array_split(m.loss, 4)
    least = min(quarters[:3], key=np.mean)
    late, lowest = float(quarters[3].mean()), float(least.mean())
    rise = late / lowest - 1
    noise = float(np.sqrt(least.var() / len(least) + quarters[3].var() / len(quarters[3])))
    risen = rise > _RISE and late - lowest > _NOTICED * noise
    if not (rate >= _HIGH_RATE and typical > _LARGE_UPDATES and risen):
        thrown = _thrown_away(m, found, rate) or _thrown_up(m, found, rate)
        return (
            [thrown]
            if thrown is not None
            else RuledOut(
                "rate-too-high",
                Sentence(
                    "because a step changes the weights by {typical} at a rate of {rate:.3g}, and the loss ends at "
                    "{late:.3g} times that of its least quarter",
                    typical=percent(typical),
                    rate=rate,
                    late=late / lowest,
                ),
            )
        )
    proof = Evidence(
        L_("rate >= 0.02, |update| / |weights| > 0.01, and a loss that rises by > 3 % and 4 standard errors"),
        {"rate": rate, "update": typical, "loss_least": lowest, "loss_last": late, "standard_error": noise},
        Sentence(
            "At a rate of {rate:.3g} a step changes the weights by {typical} of their norm; the mean loss of a "
            "quarter of the steps fell to {lowest:.4g} and rose to {late:.4g} again.",
            rate=rate, typical=percent(typical), lowest=lowest, late=late,
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "rate-too-high", "warning", L_("The learning rate is too high: the loss rises again"), int(m.steps[0]),
            int(m.steps[-1]), (proof,),
            L_("Lower the rate to 0.001, as is usual for optimizers like Adam, and warm it up."),
            0.75, "Kingma and Ba 2015", config_change={"optimizer.lr": 1e-3}, certainty="estimate",
             blame=blame_of_symptom(m),
        )
    ]  # fmt: skip


def _moves(m: Measurements) -> float:
    """The median update of the second half, of the norm of the weights before the first one."""
    updates, weights = m.table("update"), m.table("weight")
    if updates is None or weights is None or not len(weights.total_l2):
        return 0.0
    late = updates.total_l2[updates.steps > m.steps[m.n // 2]]
    return median(late) / max(float(weights.total_l2[0]), 1e-30) if len(late) else 0.0


def _thrown_away(m: Measurements, found: Chance, rate: float) -> Finding | None:
    """A first update as large as the weights that it began with, at a rate that stays, and a loss which that raised and
    which has not come far below that of a constant since."""
    began, first = first_update(m), float(m.loss[0]) / found.unit
    highest = float(m.loss[:_FIRST_STEPS].max()) / found.unit
    leapt = highest / max(first, found.constant)
    if began is None or not began[1] >= JUMPED or not leapt > _LEAPT:
        return None
    least = _FAR_LEFT if leapt >= _FAR_LEAPT else _FAR_MOVED_LEFT if _moves(m) >= _FAR_MOVED else LITTLE
    stays = rate >= _HIGH_RATE and median(m.lr[m.n // 2 :]) >= _STAYS * rate
    if not stays or not found.late >= least * found.constant:
        return None
    step, ratio = began
    proof = Evidence(
        Sentence(
            "rate >= 0.02 that stays, |first update| >= |weights|, loss in the first 10 steps >= {leapt:g} times and "
            "at the end >= {least:g} times that of the best constant answer",
            leapt=_FAR_LEAPT if leapt >= _FAR_LEAPT else _LEAPT, least=least,
        ),
        {"rate": rate, "update": ratio, "loss_first": first, "loss_highest": highest, "constant": found.constant,
         "late": found.late},
        Sentence(
            "At a rate of {rate:.3g} the update of step {step} was {ratio:.3g} times as large as the weights before "
            "it (L2 norms): the loss rose from {first:.4g} to {highest:.4g}. It ends at {late:.4g}, where the same "
            "answer to all inputs has {constant:.4g}.",
            rate=rate, step=step, ratio=ratio, first=first, highest=highest, late=found.late, constant=found.constant,
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return Finding(
        "rate-too-high", "warning",
        L_("The learning rate is too high: the first step replaced the weights, and little is learnt"), step,
        int(m.steps[-1]), (proof,),
        L_("Lower the rate to 0.001, as is usual for optimizers like Adam, and warm it up."),
        0.8, "Kingma and Ba 2015", config_change={"optimizer.lr": 1e-3}, certainty="estimate",
        blame=blame_of_symptom(m),
    )  # fmt: skip


def _thrown_up(m: Measurements, found: Chance, rate: float) -> Finding | None:
    """First steps that threw the loss up, at a rate that stays, and a loss above that of a constant ever since."""
    steps, ratios = update_ratios(m)
    early = median(ratios[steps <= _FIRST_STEPS])
    first, highest = float(m.loss[0]) / found.unit, float(m.loss[:_FIRST_STEPS].max()) / found.unit
    leapt = highest / max(first, found.constant)
    stays = rate >= _RATE_OF_ADAM and median(m.lr[m.n // 2 :]) >= _STAYS * rate
    never = found.best >= BEST and found.loss > ABOVE * found.constant and found.late >= NO_BETTER * found.constant
    if not (stays and never and leapt > _LEAPT and early > _EARLY_UPDATE):
        return None
    proof = Evidence(
        L_("rate >= 0.003 that stays, |update| / |weights| > 0.03 and loss > 1.5 times that of the best constant "
           "answer in the first 10 steps, and no loss below 0.97 of the latter since"),
        {"rate": rate, "update": early, "loss_first": first, "loss_highest": highest, "constant": found.constant,
         "late": found.late},
        Sentence(
            "At a rate of {rate:.3g} the first steps changed the weights by {early} of their norm each: the loss rose "
            "from {first:.4g} to {highest:.4g}. It ends at {late:.4g}, where the same answer to all inputs has "
            "{constant:.4g}.",
            rate=rate, early=percent(early), first=first, highest=highest, late=found.late, constant=found.constant,
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return Finding(
        "rate-too-high", "warning",
        L_("The learning rate is too high: the first steps threw the loss up, and nothing has been learnt since"),
        int(m.steps[0]), int(m.steps[-1]), (proof,),
        Sentence(
            "Lower the rate to {rate:.0e} and warm it up; a trained network that learns something new bears a tenth of "
            "the rate that it was trained at.", rate=10.0 ** np.floor(np.log10(rate / 9)),
        ),
        0.75, "Kingma and Ba 2015", certainty="estimate", blame=blame_of_symptom(m),
    )  # fmt: skip


RULES = (Rule("rate-too-high", "C", L_("Does the rate let the loss fall?"), rate_too_high),)
