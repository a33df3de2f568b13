"""Group B, the optimizer's state in 16 bits: second moments that do not fall, or that are zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from precgui.runs.diagnosis.analysis import epsilons, groups_of, growth, median, percent, recorded_optimizers
from precgui.runs.diagnosis.findings import BEYOND_RANGE, COMPARED, TOO_FEW_DIGITS, Blame, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements, RecordedRows, Values
from precgui.runs.diagnosis.nan_aware import largest
from precgui.runs.diagnosis.number_formats import DIGITS
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, text, whole
from precgui.sentences import L_, Sentence

_TOO_LARGE = 4.0  # times the second moment that the gradients give
_USUAL_DECAY = 0.001  # 1 - beta2 of Adam, where nothing says another one
_LARGEST_DECAY = 0.2  # of a second moment
_ALIKE = 0.03  # relative deviation of the decays of one state, by 16-bit rounding
_FEWEST_TENSORS = 3  # that must agree on a decay
_SQUARES = 4.0  # times the square of the largest gradient that is recorded: a second moment stays below
_UNDERFLOWN = 0.1  # of the elements of a state are zero although their gradient is not
_LARGE_EPSILON = 2.0**-14  # near the root of FP16's smallest number: what is divided by is not zero without it
_SMALL_EPSILON, _HUGE = 1e-5, 1000.0  # of Adam; times the rate
_FEWEST_ROWS = 2  # in which a state is zero
_OVER_EPSILON = 0.1  # relative deviation of an update from the rate times the momentum over the epsilon
_SMALLEST_NORMAL = 2.0**-14  # of FP16; numbers below have fewer digits
_NAMES = {"bf16": "BF16", "fp16": "FP16"}
_STORED = {"fp16": "FP16", "e5m2": "E5M2", "e4m3fn": "E4M3"}


@dataclass(frozen=True)
class _SecondMoments:
    """`places` in the table of the optimizer's state, with the share of itself that a moment loses in a step."""

    places: tuple[int, ...]
    decay: float


def frozen_moments(m: Measurements) -> Answer:
    """A second moment in 16 bits: v * 0.999 rounds back to v, so that it never falls."""
    table = m.table("optimizer")
    moments = _second_moments(m, table) if table is not None else None
    if table is None or moments is None:
        return None
    low = [place for place in moments.places if table.formats[place] in DIGITS]
    if not low:
        return RuledOut(
            "frozen-moments",
            Sentence(
                "because the second moments of {place_count} parameters are in FP32",
                place_count=len(moments.places),
            ),
        )  # fmt: skip
    stored, decay = table.formats[low[0]], moments.decay
    if decay >= 2.0 ** -DIGITS[stored] and not _is_subnormal(table, low, stored):
        return RuledOut(
            "frozen-moments",
            Sentence(
                "because the decay of {decay:.3g} is more than half an ulp of the second moments, 2^-{digit}",
                decay=decay,
                digit=DIGITS[stored],
            ),
        )  # fmt: skip
    worst = median(_moment_ratio(m, table, low, decay))
    if not np.isfinite(worst):
        return None
    if worst < _TOO_LARGE:
        return RuledOut(
            "frozen-moments",
            Sentence(
                "because the second moments are {worst:.2g} times those that the gradients give in FP32",
                worst=worst,
            ),
        )  # fmt: skip
    proof = Evidence(
        L_("mean(v) / (sum of (1 - b2) b2^(T - t) mean(g_t^2)) > 4"),
        {"ratio": worst, "tensors": len(low), "decay": decay},
        Sentence(
            "At the end the second moments ({name}) are {worst:.2g} times those that the recorded gradients give: "
            "the decay of {decay:.3g} is below half an ulp, 2^-{digit}.",
            name=_NAMES[stored], worst=worst, decay=decay, digit=DIGITS[stored],
        ),
    )  # fmt: skip
    return [
        Finding(
            "frozen-moments", "warning",
            Sentence(
                "The optimizer's second moments do not fall in {name}: the steps get too small",
                name=_NAMES[stored],
            ),
            int(table.steps[0]), int(table.steps[-1]), (proof,),
            L_("Keep the optimizer's state in FP32, or lower beta2 to 0.95."), 0.6,
            "OneTrainer issue 1005; AReaL issue 1292", "", tuple(table.names[place] for place in low[:20]),
            {"precision_options.master_weights": True}, "estimate", blame=TOO_FEW_DIGITS,
        )
    ]  # fmt: skip


def _second_moments(m: Measurements, table: RecordedRows) -> _SecondMoments | None:
    """The second moments: those that torch names so, else the state that is (1 - b2) g^2 after the first step."""
    named = tuple(place for place, name in enumerate(table.names) if name.endswith("exp_avg_sq"))
    if named:
        decay = _decay_of(m, table, named)
        return _SecondMoments(named, decay if decay is not None else _decay_of_settings(m))
    for kind in sorted({name.rpartition(".")[2] for name in table.names}):
        places = tuple(place for place, name in enumerate(table.names) if name.rpartition(".")[2] == kind)
        decay = _decay_of(m, table, places)
        if decay is not None:
            return _SecondMoments(places, decay)
    return None


@np.errstate(all="ignore")
def _decay_of(m: Measurements, table: RecordedRows, places: tuple[int, ...]) -> float | None:
    """mean(v) / mean(g^2) after step 1, where some parameters agree on it: 1 - b2 of a moment that began at 0."""
    gradients = m.table("gradient")
    if gradients is None or not len(table.steps) or table.steps[0] != 1 or gradients.steps[0] != 1:
        return None
    known = {name: place for place, name in enumerate(gradients.names)}
    pairs = [(place, known[owner]) for place in places if (owner := table.names[place].rpartition(".")[0]) in known]
    decays = np.array([table.stat("mean")[0, a] / gradients.stat("rms")[0, b] ** 2 for a, b in pairs])
    decays = decays[np.isfinite(decays)]
    typical = median(decays)
    agree = len(decays) >= _FEWEST_TENSORS and bool((np.abs(decays / typical - 1) < _ALIKE).all())
    return typical if agree and 0 < typical < _LARGEST_DECAY else None


def _decay_of_settings(m: Measurements) -> float:
    """1 - b2 of the first optimizer with two betas, as recorded; that of Adam's usual settings where none is."""
    for each in recorded_optimizers(m):
        betas = each.get("betas")
        if isinstance(betas, list | tuple) and len(betas) > 1 and isinstance(betas[1], int | float):
            return 1 - float(betas[1])
    return _USUAL_DECAY


@np.errstate(all="ignore")
def _is_subnormal(table: RecordedRows, places: list[int], stored: str) -> bool:
    """Whether typical second moments are in the subnormal numbers of FP16, whose ulps are larger parts of them."""
    return stored == "fp16" and median(table.stat("mean")[-1, places]) < _SMALLEST_NORMAL


@np.errstate(all="ignore")
def _moment_ratio(m: Measurements, table: RecordedRows, places: list[int], decay: float) -> Values:
    """Mean of v in the last row over the sum of (1 - b2) b2^(T - t) g_t^2 of the recorded gradients.

    Between recorded gradients their sizes are interpolated. Where the norm of all gradients, which every step records,
    says that this leaves out large ones, the sums are raised by as much.
    """
    gradients = m.table("gradient")
    if gradients is None or m.config.train.clip_norm is not None or m.skipped.mean() > 0.1:
        return np.empty(0)
    known = {name: place for place, name in enumerate(gradients.names)}
    last = int(table.steps[-1])
    grid = np.unique(np.linspace(1, last, min(last, 2000)).astype(int))
    weight = decay * (1 - decay) ** (last - grid) * (last / len(grid))
    missed = _missed(m, gradients, last, decay)
    results = []
    for place in places:
        own = known.get(table.names[place].rpartition(".")[0])
        square = gradients.stat("rms")[:, own] ** 2 if own is not None else np.empty(0)
        visited = np.isfinite(square)
        if visited.sum() >= 5:
            expected = float((np.interp(grid, gradients.steps[visited], square[visited]) * weight).sum())
            results.append(table.stat("mean")[-1, place] / (expected * missed))
    return np.array(results)


def _missed(m: Measurements, gradients: RecordedRows, last: int, decay: float) -> float:
    """The weighted sum of squared norms of all steps over that of the recorded steps, interpolated; 1 at least."""
    known = np.isfinite(m.grad_norm) & (m.steps <= last)
    rows = known & np.isin(m.steps, gradients.steps)
    if rows.sum() < 2:
        return 1.0
    square, steps = m.grad_norm[known] ** 2, m.steps[known]
    weight = (1 - decay) ** (last - steps)
    seen = float((np.interp(steps, m.steps[rows], m.grad_norm[rows] ** 2) * weight).sum())
    return max(float((square * weight).sum()) / seen, 1.0) if seen > 0 else 1.0


def moments_underflow(m: Measurements) -> Answer:
    """State of the optimizer in FP16 that is zero where the gradient is not: squares below 6e-8."""
    if emptied := _emptied_between_steps(m) or _divided_by_nothing(m):
        return emptied
    table, gradients = m.table("optimizer"), m.table("gradient")
    if table is None or gradients is None:
        return _next_to_nothing(m)
    low = [place for place, name in enumerate(table.formats) if name == "fp16" and table.names[place].count(".")]
    if not low:
        return _never_moved(m, table, gradients) or _next_to_nothing(m)
    if min(epsilons(m), default=0.0) >= _LARGE_EPSILON:
        return None
    lost = _zeros_of_its_own(table, gradients, low)
    if not lost:
        return RuledOut(
            "moments-underflow",
            Sentence(
                "because the {low_count} tensors of the optimizer's state in FP16 are zero only where gradients are",
                low_count=len(low),
            ),
        )
    name = max(lost, key=lambda each: lost[each])
    proof = Evidence(
        L_("zeros(state) - zeros(gradient) > 0.1, state in FP16"),
        {"more_than_gradient": lost[name], "tensors": len(lost)},
        Sentence(
            "{lost} of {name} is zero in a step in which its gradient is not: squares below 2^-25 are zero in FP16, "
            "and the update is the mean divided by the epsilon alone.",
            lost=percent(lost[name]),
            name=name,
        ),
        Sentence("share of zeros in {name}", name=name),
        m.points_of(table.steps, table.share_zero()[:, table.names.index(name)]),
    )
    broken, grown = not bool(m.finite_loss.all()), growth(m, m.n)
    learns = grown is not None and grown.last_loss < 0.8 * grown.first_loss
    return [
        Finding(
            "moments-underflow", "error" if broken else "info" if learns else "warning",
            L_("The optimizer's second moments are zero in FP16: updates are divided by next to nothing"),
            int(table.steps[0]), int(table.steps[-1]), (proof,),
            L_("Keep the optimizer's state in FP32 or BF16."), 0.9, "optax issue 1754", name.rpartition(".")[0]
            .rpartition(".")[0], tuple(sorted(lost, key=lambda each: -lost[each]))[:20], certainty="estimate",
            blame=BEYOND_RANGE,
        )
    ]  # fmt: skip


def _emptied_between_steps(m: Measurements) -> list[Finding]:
    """Second moments in FP32 that the optimizer found rounded to zero since its last step, or as it began."""
    rows = [each for each in m.fact_rows("emptied_moments") if text(each, "format") in _STORED]
    lost = [each for each in rows if number(each, "lost") > _UNDERFLOWN * number(each, "of") > 0]
    if not lost:
        return []
    row, steps = max(lost, key=lambda each: number(each, "lost")), [whole(each, "step") for each in lost]
    step, share, name = whole(row, "step"), number(row, "lost") / number(row, "of"), _STORED[text(row, "format")]
    proof = Evidence(
        L_("v = round(v) = 0 where |m| > eps, before a step, of a state that is held in FP32"),
        {"step": step, "share": share, "largest": number(row, "largest"), "steps": len(lost)},
        Sentence(
            "As step {step} began, {share} of the second moments were zero beside a first moment that was not (up to "
            "{largest:.3g}), and the others were numbers of {name}: the state, which is held in FP32, had been "
            "rounded to {name} since the step before. An optimizer writes both from the same gradients. Seen in "
            "steps {steps}.",
            step=step, share=percent(share), largest=number(row, "largest"), name=name,
            steps=", ".join(map(str, steps[:6])),
        ),
    )  # fmt: skip
    return [
        Finding(
            "moments-underflow", "error",
            Sentence(
                "The optimizer's second moments were rounded to {name} between steps, and small ones became zero: "
                "the next updates are too large",
                name=name,
            ),
            steps[0], int(m.steps[-1]), (proof,),
            L_(
                "Save and move the optimizer's state in FP32 or BF16: squares of gradients below 6e-8 are zero in FP16."
            ),
            0.95, "optax issue 1754", blame=COMPARED,
        )
    ]  # fmt: skip


def _divided_by_nothing(m: Measurements) -> list[Finding]:
    """Updates of elements whose second moment is zero, in whatever format, far larger than those of all others."""
    rows = [row for row in (m.fact_rows("zero_state") if m.own_loop else ()) if _are_moments(m, row)]
    if not rows:
        return []
    row, steps = max(rows, key=lambda each: number(each, "lost")), [whole(each, "step") for each in rows]
    update, usual = number(row, "update"), number(row, "usual")
    share, times = number(row, "lost") / number(row, "of"), update / usual if usual > 0 else 0.0
    name, stored = str(row.get("state")), str(row.get("format")).upper()
    seen = ", ".join(map(str, steps[:6]))
    proof = Evidence(
        L_("state = 0 where the gradient is not, and |update| there > 30 times the largest one elsewhere")
        if usual > 0 else L_("state = 0 wherever the gradient is not, and |update| > 1000 rate"),
        {"step": whole(row, "step"), "share": share, "update": update, "usual": usual, "steps": len(rows)}
        | ({"times": times} if usual > 0 else {}),
        Sentence(
            "In step {step} {name} ({stored}) was zero in {share} of the elements whose gradient was not, and their "
            "weights were changed by {update:.3g} (median), {times:.3g} times as much as any other one "
            "({usual:.3g}): they are divided by the epsilon alone. Seen in steps {steps}.",
            step=whole(row, "step"), name=name, stored=stored, share=percent(share), update=update, times=times,
            usual=usual, steps=seen,
        )
        if usual > 0 else Sentence(
            "In step {step} {name} ({stored}) was zero in all elements whose gradient was not, and their weights were "
            "changed by {update:.3g} (median), over 1000 times the learning rate: they are divided by the epsilon "
            "alone. Seen in steps {steps}.",
            step=whole(row, "step"), name=name, stored=stored, update=update, steps=seen,
        ),
    )  # fmt: skip
    return [
        Finding(
            "moments-underflow", "error",
            Sentence(
                "The optimizer's second moments ({name}, {stored}) are zero in {share} of the elements: their updates "
                "are divided by the epsilon alone",
                name=name, stored=stored, share=percent(share),
            ),
            steps[0], int(m.steps[-1]), (proof,),
            L_(
                "Store second moments with a scale for each block, at best their root or logarithm, round small ones "
                "up to the first level above zero, keep them in FP32, or use a larger epsilon."
            ),
            0.95, "Dettmers et al. 2022, 8-bit optimizers", certainty="exact", blame=BEYOND_RANGE,
        )
    ]  # fmt: skip


def _are_moments(m: Measurements, row: Mapping[str, Any]) -> bool:
    """Whether a state that is zero is divided by: beside larger ones, or, where all is zero, in an optimizer that adds
    an epsilon to it. Not with a large epsilon, which was chosen to bound such updates."""
    eps = min(epsilons(m), default=0.0)
    adds = eps > 0 and all("betas" in each and "eps" in each for each in recorded_optimizers(m))
    return eps <= _SMALL_EPSILON and (number(row, "usual") > 0 or adds)


@np.errstate(all="ignore")
def _next_to_nothing(m: Measurements) -> Answer:
    """Updates of an optimizer like Adam that are far larger than its rate, in a run that they spoil: elements are
    divided by the epsilon alone. With second moments of these gradients an update is about the rate at most; without
    the root of them it is below rate / (2 sqrt(eps))."""
    table, gradients, eps = m.table("update"), m.table("gradient"), min(epsilons(m), default=0.0)
    every = recorded_optimizers(m)
    if not m.own_loop or table is None or gradients is None or not 0 < eps <= _SMALL_EPSILON:
        return None
    if m.finite_loss.all() or not all("betas" in each and "eps" in each for each in every):
        return None
    rates = [float(rate) for each in every if isinstance(rate := each.get("lr"), int | float)]
    rate = max([*rates, *m.lr[np.isfinite(m.lr)].tolist()], default=0.0)
    well = table.steps <= m.steps[int(np.argmin(m.finite_loss))]
    most = np.nan_to_num(table.stat("amax")[well], posinf=0.0)
    huge = most.max(1, initial=0.0) > max(rate / (2 * np.sqrt(eps)), _HUGE * rate)
    if not rate > 0 or not huge.any():
        return None
    if any(number(each, "weight_decay") * rate >= 1 for one in every for each in (one, *groups_of(one))):
        return None  # it multiplies weights by 1 - rate x decay in each step: beyond 2 they grow by that alone
    row = int(np.argmax(huge))
    name, step, update = table.names[int(np.argmax(most[row]))], int(table.steps[row]), float(most[row].max())
    proof = Evidence(
        L_("max |update| > rate / (2 sqrt(eps)) and > 1000 rate, of an optimizer with betas and an epsilon"),
        {"step": step, "update": update, "rate": rate, "eps": eps},
        Sentence(
            "Step {step} changed an element of {name} by {update:.3g}, {update2:.3g} times the learning rate "
            "{rate:.3g}. Divided by the root of their own second moment gradients give about the rate; divided by "
            "the epsilon, {eps:.3g}, alone they give that much.",
            step=step, name=name, update=update, update2=update / rate, rate=rate, eps=eps,
        ),
    )  # fmt: skip
    return [
        Finding(
            "moments-underflow", "error",
            L_(
                "The optimizer's second moments are zero where gradients are not: updates are divided by the "
                "epsilon alone"
            ),
            step, int(table.steps[-1]), (proof,),
            L_(
                "Look at how second moments are stored: a state in 8 bits needs a scale for each block, at best of "
                "its root, and small values must not become zero (round up). Or keep it in FP32, or use a larger "
                "epsilon."
            ),
            0.85, "Dettmers et al. 2022, 8-bit optimizers", name.rpartition(".")[0], (name,), certainty="estimate",
            blame=Blame(needs=L_("how the optimizer stores its second moments, which is not recorded")),
        )
    ]  # fmt: skip


@np.errstate(all="ignore")
def _never_moved(m: Measurements, table: RecordedRows, gradients: RecordedRows) -> Answer:
    """State that is zero in every recorded step beside a momentum that is not, and updates that are the rate times that
    momentum over the epsilon: second moments which never left zero."""
    updates, eps, rate = m.table("update"), min(epsilons(m), default=0.0), median(m.lr)
    if not m.own_loop or updates is None or not 0 < eps <= _SMALL_EPSILON or not rate > 0:
        return None
    if not m.finite_loss.all():
        table = table.of(table.steps < m.steps[int(np.argmin(m.finite_loss))] - 1)
    zero, sizes = _at_zero(table)
    both = [owner for owner in zero if owner in sizes and owner in updates.names and owner in gradients.names]
    alike = [owner for owner in both if _is_over_epsilon(table, updates, sizes[owner], owner, rate / eps)]
    if not alike or 2 * len(alike) < len(updates.names):
        return None
    names = tuple(zero[owner] for owner in alike)
    proof = Evidence(
        L_(
            "state = 0 in every recorded step, and |update| = rate |momentum| / eps within 10 %, of half the "
            "parameters"
        ),
        {"tensors": len(names), "of": len(updates.names), "eps": eps, "rate": rate},
        Sentence(
            "{name} and {name_count} more tensors of the optimizer's state are exactly zero in each of {step_count} "
            "recorded steps, while gradients are not, and the updates of {alike_count} of {name_count2} parameters "
            "are the learning rate times their momentum over the epsilon {eps:.3g}.",
            name=names[0], name_count=len(names) - 1, step_count=len(table.steps), alike_count=len(alike),
            name_count2=len(updates.names), eps=eps,
        ),
    )  # fmt: skip
    return [
        Finding(
            "moments-underflow", "error",
            L_("The optimizer's second moments stay zero: updates are divided by the epsilon alone"),
            int(table.steps[0]), int(table.steps[-1]), (proof,),
            L_(
                "Look at the factors with which they are updated: 0.999 is 1 in BF16, so that 1 - 0.999 is zero "
                "there. Keep such factors as Python numbers or in FP32."
            ), 0.9, "Kingma and Ba 2015", alike[0].rpartition(".")[0],
            names[:20], certainty="estimate",
            blame=Blame(needs=L_("the same run with the optimizer's factors in FP32")),
        )
    ]  # fmt: skip


def _at_zero(table: RecordedRows) -> tuple[dict[str, str], dict[str, int]]:
    """By parameter the name of a state that is zero in each of some rows, and the place of one that is not."""
    zero: dict[str, str] = {}
    other: dict[str, int] = {}
    for place, name in enumerate(table.names):
        owner, known = name.rpartition(".")[0], table.stat("amax")[table.recorded[:, place], place]
        if len(known) < _FEWEST_ROWS:
            continue
        if (known == 0).all():
            zero[owner] = name
        else:
            other[owner] = place
    return zero, other


def _is_over_epsilon(table: RecordedRows, updates: RecordedRows, place: int, owner: str, factor: float) -> bool:
    """Whether the update of a parameter is `factor` times the momentum at this place, in half of the steps of both."""
    _, own, other = np.intersect1d(table.steps, updates.steps, return_indices=True)
    ratio = updates.stat("l2")[other, updates.names.index(owner)] / (factor * table.stat("l2")[own, place])
    ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
    return bool(len(ratio)) and 2 * int((np.abs(ratio - 1) < _OVER_EPSILON).sum()) >= len(ratio)


def _is_square(table: RecordedRows, gradients: RecordedRows, place: int, gradient: int) -> bool:
    """Whether a state is never far above the square of the largest gradient: a second moment is not, a momentum is."""
    most = largest(table.stat("amax")[:, [place]], 0)[0]
    return bool(most <= _SQUARES * largest(gradients.stat("amax")[:, [gradient]], 0)[0] ** 2)


def _zeros_of_its_own(table: RecordedRows, gradients: RecordedRows, places: list[int]) -> dict[str, float]:
    """By how much of a second moment more is zero than of its gradient in the same step, the most over all recorded
    steps."""
    _, own, other = np.intersect1d(table.steps, gradients.steps, return_indices=True)
    zeros, alive = table.share_zero()[own], gradients.share_zero()[other]
    known = {name: place for place, name in enumerate(gradients.names)}
    result = {}
    for place in places:
        gradient = known.get(table.names[place].rpartition(".")[0])
        if gradient is None or not len(own) or not _is_square(table, gradients, place, gradient):
            continue
        more = largest((zeros[:, place] - alive[:, gradient])[:, None], 0)[0]
        result[table.names[place]] = float(more)
    return {name: more for name, more in result.items() if more > _UNDERFLOWN}


RULES = (
    Rule("frozen-moments", "B", L_("Does the optimizer's second moment fall?"), frozen_moments),
    Rule("moments-underflow", "B", L_("Does the optimizer's state reach below the range?"), moments_underflow),
)
