"""Group C: trainings that stand still at the level of chance, where a constant answer has no larger loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from precgui.runs.diagnosis.analysis import (
    base_rate,
    is_adaptive,
    lower_rate,
    median,
    percent,
    recorded_optimizers,
    update_ratios,
)
from precgui.runs.diagnosis.blame import blame_of_symptom, computes_in_16_bits, is_state_coarse
from precgui.runs.diagnosis.findings import Blame, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements, Values
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, whole
from precgui.sentences import L_, Sentence, together

_FEWEST_STEPS = 120
_FIRST = 32  # the first step that is compared with a constant
_LATE = 100  # one of the steps that are compared is this late
NO_BETTER = 0.995  # of the loss of the best constant: a model with less has learnt something
BEST = 0.97  # of the loss of a constant, for each of several losses that are added up
LITTLE, _FLAT_MODULES = 0.9, 0.5  # the same where as large a share of the modules with a function are flat
_FALL, _NOISE = 0.02, 1.5  # of the loss in the last quarter, and standard errors: with more the training goes on
ABOVE = 1.01  # of the loss of the best constant
_ALIKE = 0.02  # relative deviation of the factor between a recorded loss and that which was seen
_WARMED_UP = 1.5  # times the median rate at the end: the rate still rises
_MOVED = 0.1  # of the weights, by all updates together: with less the run may be short
JUMPED = 1.0  # of the weights, by one update
_BURST, _SPIKE = 10.0, 2.0  # the largest loss, of that at the end: told as the cause, or as a hint
_FEWEST_OF_A_BATCH, _FEWEST_BATCHES = 16, 3
_MORE_ALIKE = 0.5  # of what is possible: targets of one batch beyond those of all, as Wright's F
_BEGUN, _OFTEN = 2, 3  # the first step that is looked at; times that a class was forgotten
_FEWEST_CLASSES = 4  # equal scores for fewer are too near to those of a half-learnt class


@dataclass(frozen=True)
class Chance:
    """The last step that was compared with a constant, and the mean losses of all that were; `late` is that at the end,
    in the same unit."""

    step: int
    kind: str  # of loss
    loss: float
    constant: float
    late: float
    best: float  # the smallest quotient of a loss and its constant
    unit: float = 1.0  # the recorded loss, over the one that was compared


@np.errstate(all="ignore")
def chance_of(m: Measurements) -> Chance | None:
    """The loss beside that of the best constant answer to the same targets; None where they cannot be compared.

    Not where a constant is perfect or targets move, of several optimizers (adversaries are at chance when all is well),
    where the recorded loss is not a multiple of the one that was seen, where data come class by class, so that each
    step has a best constant of its own, nor in runs with few steps.
    """
    if not m.own_loop or m.n < _FEWEST_STEPS or not m.finite_loss.all() or len(recorded_optimizers(m)) != 1:
        return None
    rows = m.fact_rows("constant_answers")
    if not rows or any(row.get("void") for row in rows) or _Order(rows).is_by_class:
        return None
    known = [
        (whole(row, "step"), str(row.get("kind")), number(row, "loss"), number(row, "constant"),
         number(row, "best", 1.0))
        for row in rows
    ]  # fmt: skip
    recorded = m.at_loss(np.array([row[0] for row in known], np.int64))
    factors = recorded / np.array([row[2] for row in known])
    unit = median(factors)
    seen = [row for row in known if row[0] >= _FIRST]
    if not seen or seen[-1][0] < _LATE or not unit > 0 or not (np.abs(factors / unit - 1) < _ALIKE).all():
        return None
    late = float(m.loss[-(m.n // 4) :].mean()) / unit
    return Chance(
        seen[-1][0], seen[-1][1], float(np.mean([row[2] for row in seen])), float(np.mean([row[3] for row in seen])),
        late, float(np.mean([row[4] for row in seen])), unit,
    )  # fmt: skip


def is_at_chance(m: Measurements, least: float = NO_BETTER) -> bool:
    """Whether the model had at least this share of the loss of a constant in the steps that were compared, and the loss
    has not fallen since. Not while the rate is warmed up."""
    found = chance_of(m)
    if found is None or found.loss < least * found.constant or m.lr[-1] > _WARMED_UP * median(m.lr):
        return False
    if found.best < min(BEST, least) or found.late < LITTLE * found.constant:
        return False
    before, late = m.loss[m.n // 4 : -(m.n // 4)], m.loss[-(m.n // 4) :]
    noise = float(np.sqrt(before.var() / len(before) + late.var() / len(late)))
    least = _FALL * before.mean() if found.loss < ABOVE * found.constant else 0.0  # on its way to chance from above
    return bool(late.mean() >= before.mean() - max(least, _NOISE * noise))


def flat_at_chance(m: Measurements, functions: tuple[str, ...], share: float) -> tuple[tuple[str, float], ...]:
    """Modules of a model at chance in which at least this share of the results of a function is flat, and the share.

    Of the last step that was seen, the flattest first; functions inside a module count, too.
    """
    rows = [row for row in m.fact_rows("flat_units") if row.get("function") in functions]
    known = tuple((str(row.get("module")), number(row, "share")) for row in rows if number(row, "share") >= share)
    every = max((whole(row, "of") for row in rows), default=0)
    return known if known and is_at_chance(m, LITTLE if len(known) >= _FLAT_MODULES * every else NO_BETTER) else ()


def chance_proof(m: Measurements, least: float = NO_BETTER) -> tuple[Evidence, ...]:
    """The proof that the model has at least this share of the loss of a constant; () where that is not so."""
    found = chance_of(m)
    if found is None or not is_at_chance(m, least):
        return ()
    return (
        Evidence(
            Sentence(
                "loss >= {least:g} of that of the best constant answer to the same targets, and no fall since",
                least=least,
            ),
            {"loss": found.loss, "constant": found.constant, "step": found.step, "late": found.late},
            Sentence(
                "In steps {first} to {step} the {kind} was {loss:.4g}; the same answer to all inputs has "
                "{constant:.4g} for the same targets. The loss at the end is {late:.4g}.",
                first=_FIRST, step=found.step, kind=found.kind, loss=found.loss, constant=found.constant,
                late=found.late,
            ),
            "loss", m.series_of(m.loss),
        ),
    )  # fmt: skip


def _way_of(m: Measurements) -> float:
    """How far an optimizer like Adam can have gone, of the rms of the weights: the sum of the rates, whatever is
    rounded stochastically on the way. Infinite for others."""
    weights = m.table("weight")
    if weights is None or not is_adaptive(m):
        return float("inf")
    count, norm = float(np.nansum(weights.stat("count")[0])), float(weights.total_l2[0])
    return float(np.nansum(m.lr) * np.sqrt(max(count, 1.0)) / max(norm, 1e-30))


def _way_moved(m: Measurements) -> tuple[Values, float]:
    """The share of their norm by which each update moves the weights, where it is known, and that of all together."""
    ratios = update_ratios(m)[1]
    known = ratios[np.isfinite(ratios)]
    return known, min(float(known.mean() * m.n) if len(known) else 0.0, _way_of(m))


def _near_chance(m: Measurements, found: Chance) -> list[Finding] | None:
    """A hint where next to nothing of the loss of a constant is learnt, though the loss falls.

    No fault by itself: a training may be slow, or have little to learn.
    """
    least = min(found.loss, found.late) / found.constant
    if min(least, found.best) < BEST or found.late > ABOVE * found.constant:  # above: on its way to that level
        return None
    if m.lr[-1] > _WARMED_UP * median(m.lr) or _way_moved(m)[1] < _MOVED:
        return None
    proof = Evidence(
        L_("loss >= 0.97 of that of the best constant answer to the same targets, and <= 1.01 at the end"),
        {"loss": found.loss, "constant": found.constant, "step": found.step, "late": found.late},
        Sentence(
            "In steps {first} to {step} the {kind} was {loss:.4g}; the same answer to all inputs has {constant:.4g} "
            "for the same targets. The loss at the end is {late:.4g}, {share} of that.",
            first=_FIRST, step=found.step, kind=found.kind, loss=found.loss, constant=found.constant,
            late=found.late, share=percent(found.late / found.constant),
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "chance-level", "info", L_("The model is hardly better than one answer for all inputs"), found.step,
            int(m.steps[-1]), (proof,),
            L_(
                "If more can be learnt, and not only by a longer training, look at inputs and targets as the loss gets "
                "them: are they still of the same samples (shuffled, sorted, joined)? A model that learns the samples "
                "by heart lowers its training loss slowly, too: compare with the loss of a validation."
            ),
            0.5, "docs/diagnosis.md", certainty="estimate", blame=blame_of_symptom(m),
        )
    ]  # fmt: skip


def chance_level(m: Measurements) -> Answer:
    """The model learns nothing from its inputs: one answer for all of them has no larger loss."""
    found = chance_of(m)
    if found is None:
        return None
    if not is_at_chance(m):
        return _near_chance(m, found) or RuledOut(
            "chance-level",
            Sentence(
                "because the {kind} was {loss:.3g} where the best constant answer has {constant:.3g}, and ends at "
                "{late:.3g}",
                kind=found.kind,
                loss=found.loss,
                constant=found.constant,
                late=found.late,
            ),
        )
    known, moved = _way_moved(m)
    norms = m.grad_norm[np.isfinite(m.grad_norm)]
    if moved < _MOVED:
        return RuledOut(
            "chance-level", Sentence(
                "because all updates together move the weights by {moved} only, so that the loss of a constant, "
                "{constant:.3g}, says little",
                moved=percent(moved), constant=found.constant,
            ),
        )  # fmt: skip
    largest = float(known.max())
    burst = float(m.loss.max()) / float(m.loss[-(m.n // 4) :].mean())
    jumped = largest > JUMPED and burst > _BURST and not is_state_coarse(m)
    proof = Evidence(
        "|update| / |weights|", {"largest": largest, "typical": median(known), "grad_norm": median(norms)},
        Sentence(
            "A step changes the weights by {known} of their norm, at most by {largest}; the median gradient norm is "
            "{norms:.3g}.",
            known=percent(median(known)), largest=percent(largest), norms=median(norms),
        ),
    )  # fmt: skip
    low = computes_in_16_bits(m) or bool(m.fact_rows("gradient_edits"))
    fix = _lower_rate(m) if jumped else _other_fix(m, largest, low=low, has_spiked=burst > _SPIKE)
    return [
        Finding(
            "chance-level", "warning",
            L_("The model does no better than one answer for all inputs: the learning rate was too high") if jumped
            else L_("The model does no better than one answer for all inputs: it learns nothing from them"),
            found.step, int(m.steps[-1]), (*chance_proof(m), proof), fix, 0.75,
            "docs/diagnosis.md", certainty="estimate", blame=blame_of_symptom(m),
        )
    ]  # fmt: skip


def _lower_rate(m: Measurements) -> str:
    rate = lower_rate(m)
    return (
        Sentence(
            "Lower the learning rate from {base_rate:g} to {rate:.1g}, or warm it up: the loss reached "
            "{loss:.3g} and the model has not recovered.",
            base_rate=base_rate(m),
            rate=rate,
            loss=float(m.loss.max()),
        )
        if rate > 0
        else Sentence(
            "Lower the learning rate, or warm it up: the loss reached {loss:.3g} and the model has not recovered.",
            loss=float(m.loss.max()),
        )
    )


def _other_fix(m: Measurements, largest: float, *, low: bool, has_spiked: bool) -> str:
    """Of a model whose weights move by at most the share `largest` in a step, and learn nothing."""
    fix = (
        Sentence(
            "Look at inputs and targets as the loss gets them: are they still of the same samples (shuffled, sorted, "
            "joined), and do the inputs hold what the targets ask for? Then try to fit a single batch. Gradients "
            "arrive and weights move, no activation function is flat, and the largest update is {largest} of the "
            "weights; a run in FP32 shows whether 16 bits matter.",
            largest=percent(largest),
        )
        if low
        else Sentence(
            "Look at inputs and targets as the loss gets them: are they still of the same samples (shuffled, sorted, "
            "joined), and do the inputs hold what the targets ask for? Then try to fit a single batch. Gradients "
            "arrive and weights move, no activation function is flat, and the largest update is {largest} of the "
            "weights.",
            largest=percent(largest),
        )
    )
    spike = Sentence("The loss once reached {loss:.3g}: try a lower rate, too.", loss=float(m.loss.max()))
    return together(fix, spike if has_spiked else "")


class _Order:
    """How alike the targets of a batch are, of a cross entropy with one target for each sample."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        large = [row for row in rows if number(row, "samples") >= _FEWEST_OF_A_BATCH]
        self.rows = [row for row in large if "alike" in row and "share" in row and whole(row, "classes") > 1]
        self.is_known = len(self.rows) >= _FEWEST_BATCHES
        self.steps = [whole(row, "step") for row in self.rows]
        self.classes = [whole(row, "class") for row in self.rows]  # the most frequent ones
        self.inside, self.overall, self.share = (
            float(np.mean([number(row, key) for row in self.rows])) if self.rows else 0.0
            for key in ("alike", "alike_in_all", "share")
        )

    @property
    def is_by_class(self) -> bool:
        """Whether batches differ in their classes more than they could by chance."""
        has_several = self.is_known and len(set(self.classes)) > 1
        return has_several and self.inside - self.overall >= _MORE_ALIKE * (1 - self.overall)


@dataclass(frozen=True)
class _Forgotten:
    """The loss of batches of one class beside that of equal scores for all classes."""

    equal: float  # the loss of equal scores
    late: float  # of the last quarter, or of the steps that were looked at
    low: float
    high: float
    came_back: int  # how often a loss below `low` was followed by one above `high`
    in_second_half: int
    classes: int

    @property
    def is_repeated(self) -> bool:
        """Whether some class must have been forgotten more than once: there are not as many classes."""
        return self.came_back > self.classes and self.in_second_half >= _OFTEN

    @property
    def is_at_chance(self) -> bool:
        """Whether nothing was learnt; False of two classes: a judge of true and false is there when all is well."""
        return self.classes > 2 and self.late >= BEST * self.equal


def _forgotten_of(m: Measurements, order: _Order) -> _Forgotten | None:
    """None where the recorded loss is no multiple of the cross entropy, and too few steps were looked at."""
    rows, classes = order.rows, max(whole(row, "classes") for row in order.rows)
    equal = math.log(classes)
    low, high = equal / 2, math.log(max(classes, _FEWEST_CLASSES))
    seen = np.array([number(row, "loss") for row in rows])
    recorded = m.at_loss(np.array([whole(row, "step") for row in rows], np.int64))
    factors = recorded / seen
    unit = median(factors)
    if not (unit > 0 and (np.abs(factors / unit - 1) < _ALIKE).all() and m.finite_loss.all()):
        later = [number(row, "loss") for row in rows if whole(row, "step") > _BEGUN]
        late = float(np.mean(later)) if len(later) >= _FEWEST_BATCHES else 0.0
        return _Forgotten(equal, late, low, high, 0, 0, classes) if late else None
    losses, back, is_low = m.loss / unit, list[int](), False
    for place, loss in enumerate(losses):
        if loss < low:
            is_low = True
        elif loss > high and is_low:
            back.append(place)
            is_low = False
    late = float(losses[-max(m.n // 4, 1) :].mean())
    return _Forgotten(equal, late, low, high, len(back), sum(each >= m.n // 2 for each in back), classes)


@np.errstate(all="ignore")
def sorted_batches(m: Measurements) -> Answer:
    """Batches hold next to nothing but one class, another one in other steps, and a class is forgotten meanwhile."""
    order = _Order(m.fact_rows("constant_answers"))
    if not m.own_loop or not m.n or not order.is_known or len(recorded_optimizers(m)) > 1:
        return None
    if not order.is_by_class:
        return RuledOut(
            "sorted-batches",
            Sentence(
                "because two targets of one batch are of the same class with a chance of {inside}, and two of all "
                "batches together with one of {overall}",
                inside=percent(order.inside), overall=percent(order.overall),
            ),
        )  # fmt: skip
    found = _forgotten_of(m, order)
    if found is None or not (found.is_repeated or found.is_at_chance):
        return RuledOut(
            "sorted-batches",
            L_("because the loss does not show that a class is forgotten, though batches hold few classes each"),
        )
    return [_come_sorted(m, order, found)]


def _come_sorted(m: Measurements, order: _Order, found: _Forgotten) -> Finding:
    seen = Sentence(
        "In steps {steps} the most frequent class of the batch was class {classes}, with {share} of the targets on "
        "average. Two targets of one batch are of the same class with a chance of {inside}; of shuffled data it would "
        "be {overall}, that of all these targets together.",
        steps=", ".join(map(str, order.steps)), classes=", ".join(map(str, order.classes)),
        share=percent(order.share), inside=percent(order.inside), overall=percent(order.overall),
    )  # fmt: skip
    back = Sentence(
        "The cross entropy rose from below {low:.3g} to above {high:.3g} {count} times, {late_count} of them in the "
        "second half; there are {classes} classes, so that one was forgotten more than once.",
        low=found.low, high=found.high, count=found.came_back, late_count=found.in_second_half, classes=found.classes,
    )  # fmt: skip
    level = Sentence(
        "The cross entropy at the end is {late:.3g}; equal scores for all {classes} classes have {equal:.3g}.",
        late=found.late, classes=found.classes, equal=found.equal,
    )  # fmt: skip
    proof = Evidence(
        L_("targets of a batch are alike by half more than chance, and the loss comes back above that of equal scores"),
        {"alike": order.inside, "alike_in_all": order.overall, "share": order.share, "late": found.late,
         "equal": found.equal, "came_back": found.came_back},
        together(seen, back if found.is_repeated else level),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return Finding(
        "sorted-batches", "error" if found.is_repeated else "warning",
        L_("The data come class by class, and what is learnt of one class is forgotten"), order.steps[0],
        int(m.steps[-1]), (proof,),
        L_(
            "Shuffle the data before they are cut into batches (DataLoader(shuffle=True)), in each epoch anew. Of a "
            "stream, or where batches hold one class on purpose, mix in samples of the others."
        ),
        0.85, "docs/diagnosis.md", certainty="exact" if found.is_repeated else "estimate",
        blame=Blame(False, L_("the order of the data is the same in any format")),
    )  # fmt: skip


RULES = (
    Rule("sorted-batches", "C", L_("Has each batch several classes?"), sorted_batches),
    Rule("chance-level", "C", L_("Is the model better than one answer for all inputs?"), chance_level),
)
