"""Group C: what is wrong, and not by precision: data, rates, undefined operations, dead units, cut graphs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from precgui.config.precision_traits import TRAITS
from precgui.runs.diagnosis.analysis import (
    Growth,
    base_rate,
    constant_norm,
    growth,
    higher_rate,
    lower_rate,
    median,
    narrow_range,
    no_measure,
    optimizer_of,
    rolling_median,
    storage,
    update_ratios,
)
from precgui.runs.diagnosis.blame import (
    blame_of_rate,
    blame_of_symptom,
    is_state_coarse,
    low_state,
    operations,
    rounds_by_itself,
)
from precgui.runs.diagnosis.causes import non_finite_cause
from precgui.runs.diagnosis.findings import IN_ANY_FORMAT, Blame, Cause, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements, Values
from precgui.runs.diagnosis.number_formats import DIGITS
from precgui.runs.diagnosis.rate_cause import HUGE_UPDATE, KEEP_STATE, LARGE_UPDATES
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.sentences import L_, Sentence, recased, together

# Precisions that do not make a training diverge: FP32 or FP64 weights, operands of 16 bits or more.
_WIDE = tuple(
    name
    for name, row in TRAITS.items()
    if not row.is_stored_low and row.operand in ("fp64", "fp32", "tf32", "bf16", "fp16")
)
_UNBOUNDED = 1e4  # times the largest loss of the first steps, below zero
_PACED, _GROWING = 50.0, 5.0  # the same for a loss that falls faster and faster; growth of the gradient norm then
_PACED_TO_NAN = 10.0  # the same where it becomes NaN or Inf then
_BEGINNING = 10  # steps
_FEWEST_BELOW = 3  # steps
_ABOVE = 10.0  # times the size of the gradients
_BY_EPSILON = 0.1  # of the weights, by all updates together, where the epsilon is far above the gradients
_LEARNT = 0.1  # a cross entropy that only a trained network has; one of k classes begins near log k
_OF_CROSS_ENTROPY = ("nll_loss_forward", "nll_loss2d_forward", "binary_cross_entropy")


def non_finite(m: Measurements) -> Answer:
    """The loss, or the gradients of a step that was taken, are not finite."""
    if not m.n:
        return None
    bad = np.flatnonzero(
        ~m.finite_loss | (~np.isfinite(m.grad_norm) & ~m.skipped & ~np.isnan(m.lr) & _reported_steps(m))
    )
    if not len(bad):
        return RuledOut(
            "undefined-operation",
            Sentence(
                "because loss and gradients of all {steps} steps that were taken are finite",
                steps=m.n,
            ),
        )
    cause = non_finite_cause(m, int(bad[0]))
    if cause.rule == "scale":
        return None
    return [_of_cause(m, cause, bad)]


def _reported_steps(m: Measurements) -> NDArray[np.bool_]:
    """Steps with an event about gradients that are not finite; a NaN norm may also mean "not measured"."""
    reported = {each.step for each in m.of_kind("nonfinite_gradient")}
    return np.asarray(np.isin(m.steps, sorted(reported)))


def _of_cause(m: Measurements, cause: Cause, bad: NDArray[np.intp]) -> Finding:
    last = bool(bad[-1] >= m.n - 3)
    share = len(bad) / m.n
    harmless = not last and bool(m.skipped[bad].all()) and (share <= 0.02 or len(bad) <= 2)
    first = int(m.steps[bad[0]])
    # Inf, as of a sum, whose gradients are finite: the weights took no harm.
    kept = bool((np.isinf(m.loss[bad]) & np.isfinite(m.grad_norm[bad]) & ~m.skipped[bad]).all())
    title = recased(cause.short, "upper")
    if harmless:
        title = Sentence("{cause}; the step was skipped, nothing is lost", cause=title)
    elif len(bad) > 1:
        title = Sentence("{cause}, and {bad} of {all} steps are not finite", cause=title, bad=len(bad), all=m.n)
    harm = Evidence(
        L_("count of steps that are not finite"), {"first": first, "count": len(bad), "steps": m.n},
        Sentence(
            "The first is step {first}; {bad_count} of {steps} steps are not finite.",
            first=first, bad_count=len(bad), steps=m.n,
        ), "loss", m.series_of(m.loss),
    )  # fmt: skip
    return Finding(
        cause.rule, "info" if harmless else "error" if (last or share > 0.2) and not kept else "warning",
        title,
        first, int(m.steps[bad[-1]]), (*cause.evidence, harm), cause.fix, cause.confidence,
        "docs/diagnosis.md, origin of the first value that is not finite", cause.module, cause.tensors,
        config_change=cause.config_change, certainty=cause.certainty, blame=cause.blame,
    )  # fmt: skip


def divergence(m: Measurements) -> Answer:
    """The loss ends far above its least value and above its beginning, and gradients or weights grew with it."""
    result = growth(m, m.n) if m.n >= 5 and m.finite_loss.all() else None
    if result is None or no_measure(m):
        return None
    ratio = float(np.nan_to_num(update_ratios(m)[1]).max(initial=0.0))
    weights = _weight_growth(m)
    by_rate, spiked = ratio > 0.3 or weights > 3, float(np.max(m.loss)) > 1.5 * result.first_loss
    ends_high = result.last_loss > 1.2 * result.first_loss + 1e-12 and result.loss_ratio > 1.5
    high = ends_high and (by_rate or result.norm_ratio > 10 or result.loss_ratio > 10)
    chance = result.last_loss > 0.97 * result.first_loss and by_rate and spiked
    wild = result.norm_ratio > 100 and ratio > 0.3 and spiked
    if not (high or chance or wild):
        return RuledOut(
            "divergence",
            Sentence(
                "because the loss ends at {last_loss:.3g}, having begun at {first_loss:.3g}",
                last_loss=result.last_loss,
                first_loss=result.first_loss,
            ),
        )
    proof = _growth_proof(m, result, weights, ratio)
    # Small steps that keep the weights: the loss of adversaries, of policies and of harder data rises just so.
    if m.own_loop and ratio < 0.05 and not weights > 3 and storage(m) in ("", "fp32", "fp64"):
        return [_rising(m, proof)]
    grave = result.loss_ratio > 3 or chance or wild
    return [_diverged(m, proof, grave=grave, ratio=ratio, by_rate=ratio > 0.05 or weights > 3)]


def _rising(m: Measurements, proof: Evidence) -> Finding:
    return Finding(
        "rising-loss",
        "info",
        L_("The loss ends higher than it began, in small steps"),
        int(m.steps[0]),
        int(m.steps[-1]),
        (proof,),
        L_("Expected of adversaries, policies, harder data and terms that are added; else lower the learning rate."),
        0.5,
        "docs/diagnosis.md",
        certainty="estimate",
        blame=Blame(needs=L_("an evaluation on data of one kind")),
    )


def _diverged(m: Measurements, proof: Evidence, *, grave: bool, ratio: float, by_rate: bool) -> Finding:
    rate = lower_rate(m)
    coarse = is_state_coarse(m)
    stored_low = storage(m) in DIGITS or bool(low_state(m)) or rounds_by_itself(m)
    low = stored_low or (not set(_WIDE).issuperset(m.precisions) and not m.own_loop and ratio < 0.05)
    needs = L_("the same run in fp32")
    blame = Blame(needs=needs) if low else blame_of_symptom(m, needs)
    if ratio > HUGE_UPDATE and storage(m) == "fp32" and not low:
        blame = LARGE_UPDATES
    least_at = int(np.nanargmin(rolling_median(m.loss, max(m.n // 20, 1))))
    cause = L_("the learning rate is too high") if rate > 0 and not coarse else L_("the updates are too large")
    fix = (
        Sentence("Lower the learning rate to {rate:.3g}, warm it up, or clip the gradients.", rate=rate)
        if rate > 0
        else L_("Make the updates smaller; the loop makes them by itself, and no learning rate is recorded.")
    )
    return Finding(
        "divergence", "error" if grave else "warning",
        Sentence("The training diverged: {cause}", cause=cause) if by_rate else L_("The training diverged"),
        int(m.steps[least_at]), int(m.steps[-1]), (proof,),
        together(KEEP_STATE, fix) if coarse else fix, 0.85, "docs/diagnosis.md",
        config_change={"optimizer.lr": rate} if rate > 0 else {}, certainty="estimate",
        blame=blame,
    )  # fmt: skip


def _growth_proof(m: Measurements, growth: Growth, weights: float, ratio: float) -> Evidence:
    return Evidence(
        L_("loss_end > 1.2 loss_begin and norm x10, weights x3, |update| > 0.3 |weight|, loss > 10 min; or norm x100"),
        {
            "loss_first": growth.first_loss,
            "loss_least": growth.least_loss,
            "loss_last": growth.last_loss,
            "norm_ratio": growth.norm_ratio,
            "weights_ratio": weights,
            "update_ratio": ratio,
        },
        _growth_sentence(growth, weights, ratio),
        "loss",
        m.series_of(m.loss),
    )


def _growth_sentence(growth: Growth, weights: float, ratio: float) -> Sentence:
    """How far loss, gradients and weights grew, as far as they were recorded."""
    values = {"first_loss": growth.first_loss, "least_loss": growth.least_loss, "last_loss": growth.last_loss}
    if not np.isfinite(weights):
        return Sentence(
            "The loss began at {first_loss:.3g}, was least at {least_loss:.3g} and ends at {last_loss:.3g}; the "
            "gradient norm ended at {norm_ratio:.2g} times its first value; weights were not recorded.",
            norm_ratio=growth.norm_ratio,
            **values,
        ) if np.isfinite(growth.norm_ratio) else Sentence(
            "The loss began at {first_loss:.3g}, was least at {least_loss:.3g} and ends at {last_loss:.3g}; neither "
            "gradients nor weights were recorded.",
            **values,
        )  # fmt: skip
    if not np.isfinite(growth.norm_ratio):
        return Sentence(
            "The loss began at {first_loss:.3g}, was least at {least_loss:.3g} and ends at {last_loss:.3g}; no "
            "gradient was recorded, the norm of the weights at {weights:.2g} times; one step changed the "
            "weights by up to "
            "{ratio:.2g} of their norm.",
            weights=weights,
            ratio=ratio,
            **values,
        )
    return Sentence(
        "The loss began at {first_loss:.3g}, was least at {least_loss:.3g} and ends at {last_loss:.3g}; the "
        "gradient norm ended at {norm_ratio:.2g} times its first value, the norm of the weights at "
        "{weights:.2g} times; "
        "one step changed the weights by up to {ratio:.2g} of their norm.",
        norm_ratio=growth.norm_ratio,
        weights=weights,
        ratio=ratio,
        **values,
    )


def unbounded_loss(m: Measurements) -> Answer:
    """A loss that becomes negative and runs away below zero: nothing holds it there."""
    loss, steps = m.loss[m.finite_loss], m.steps[m.finite_loss]
    if len(loss) <= _BEGINNING or not (loss < 0).any():
        return None
    begin, least_loss = float(np.abs(loss[:_BEGINNING]).max()), float(loss.min())
    if not begin > 0:
        return None
    below = np.flatnonzero(loss < -_UNBOUNDED * begin)
    far = len(below) >= _FEWEST_BELOW and (loss[below[0] :] < 0).mean() >= 0.9
    gathers = _gathers_pace(m, loss, begin)
    if not far and gathers is None:
        return RuledOut(
            "unbounded-loss",
            Sentence(
                "because the least loss, {least_loss:.3g}, is {least_loss2:.3g} times as large as the first ones, "
                "up to {begin:.3g}, of {unbounded:g}, and does not fall faster and faster with growing gradients",
                least_loss=least_loss,
                least_loss2=abs(least_loss) / begin,
                begin=begin,
                unbounded=_UNBOUNDED,
            ),
        )
    step = int(steps[below[0] if far else np.flatnonzero(loss < -_pace(m) * begin)[0]])
    proof = Evidence(
        L_(
            "loss < -10^4 max(|loss| of the first 10 steps) and negative in 90 % of the steps from there on; or < "
            "-50 times that (-10 where it ends in NaN or Inf), the run falls faster at its end than at its begin, "
            "norm x 5"
        ),
        {"begin": begin, "least": least_loss, "step": step, "last": float(loss[-1]), "norm_ratio": gathers or 0.0},
        Sentence(
            "The losses of the first {beginning} steps are {begin:.3g} at most in size; in step {step} it is far "
            "below, the least is {least_loss:.3g}, it falls faster and faster, and the gradient norm grew "
            "{gathers:.3g}-fold.",
            beginning=_BEGINNING, begin=begin, step=step, least_loss=least_loss, gathers=gathers,
        )
        if gathers else Sentence(
            "The losses of the first {beginning} steps are {begin:.3g} at most in size; in step {step} it is far "
            "below, the least is {least_loss:.3g}.",
            beginning=_BEGINNING, begin=begin, step=step, least_loss=least_loss,
        ),
        "loss", m.series_of(m.loss, m.finite_loss),
    )  # fmt: skip
    return [
        Finding(
            "unbounded-loss", "error", L_("The loss falls without bound below zero"), step, int(m.steps[-1]), (proof,),
            L_(
                "Look at the sign of each term of the loss (a likelihood, a divergence, an entropy, a penalty): one "
                "that has no lower bound is minimised. Change its sign, or bound it."
            ), 0.9,
            "docs/diagnosis.md", certainty="estimate", blame=_blame_of_falling(m, gathers),
        )
    ]  # fmt: skip


def _blame_of_falling(m: Measurements, gathers: float | None) -> Blame:
    """Who makes a loss fall without bound; finite numbers that fall faster and faster are no matter of formats."""
    needs = L_("the same run in fp32")
    if gathers is not None and m.finite_loss.all() and storage(m) not in DIGITS:
        return Blame(False, L_("the loss falls faster and faster through finite numbers, which have no end there"))
    return blame_of_symptom(m, needs)


def _gathers_pace(m: Measurements, loss: Values, begin: float) -> float | None:
    """By how much the gradient norm grew, where the loss ends far below zero and does not slow down.

    A log-likelihood of a density, a reward or a score that grows slows down, and its gradients get smaller.
    """
    result = growth(m, m.n)
    if len(loss) < 3 * _BEGINNING or not loss[-_BEGINNING:].max() < -_pace(m) * begin or result is None:
        return None
    quarters = [float(np.median(part)) for part in np.array_split(loss, 4)]
    falls = -np.diff(quarters)
    gathers = bool((falls > 0).all() and falls[-1] > falls[0] and falls[-1] > 0.8 * falls[1])
    return result.norm_ratio if gathers and result.norm_ratio > _GROWING else None


def _pace(m: Measurements) -> float:
    return _PACED if m.finite_loss[-1] else _PACED_TO_NAN


def _weight_growth(m: Measurements) -> float:
    table = m.table("weight")
    if table is None or len(table.steps) < 2:
        return float("nan")
    total = table.total_l2
    return float(total[-1] / total[0]) if total[0] > 0 else float("nan")


def no_progress(m: Measurements) -> Answer:
    """The loss does not fall although there are gradients: steps far too small."""
    if m.n < 20 or not m.finite_loss.all() or no_measure(m) or m.skipped.mean() > 0.5:
        return None
    ratios = update_ratios(m)[1]
    typical = median(ratios)
    norms = m.grad_norm[np.isfinite(m.grad_norm)]
    if not np.isfinite(typical) or not len(norms) or not (norms > 0).any():
        return None
    total = float(ratios[np.isfinite(ratios)].mean() * m.n)
    if total > (_BY_EPSILON if _large_epsilon(m) is not None else 1e-3):
        return RuledOut(
            "no-progress",
            Sentence(
                "because a step changes the weights by {typical:.2g} of their norm, {total:.2g} in all",
                typical=typical,
                total=total,
            ),
        )
    if storage(m) in ("bf16", "fp16"):
        return None  # see stagnation
    quarter = max(m.n // 4, 1)
    begin, end = float(np.median(m.loss[:quarter])), float(np.median(m.loss[-quarter:]))
    if m.lr[-1] > 1.5 * median(m.lr):
        return None  # the rate is being warmed up
    if end < 0.9 * begin:
        return RuledOut(
            "no-progress",
            Sentence(
                "because the loss fell from {begin:.3g} to {end:.3g}",
                begin=begin,
                end=end,
            ),
        )
    if 0 <= begin < _LEARNT and end < _LEARNT and any(name in operations(m) for name in _OF_CROSS_ENTROPY):
        return RuledOut(
            "no-progress",
            Sentence(
                "because the cross entropy begins at {begin:.2g}, as of a trained network",
                begin=begin,
            ),
        )
    proof = Evidence(
        L_("|update| / |weight| x steps < 0.001 (0.1 by a large epsilon) and the loss falls by less than 10 %"),
        {"update_ratio": typical, "steps": m.n, "loss_first": begin, "loss_last": end},
        Sentence(
            "A step changes the weights by {typical:.2g} of their norm, {total:.2g} in {steps} steps; the loss went "
            "from {begin:.4g} to {end:.4g}.",
            typical=typical, total=total, steps=m.n, begin=begin, end=end,
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [_too_small(m, proof, grave=total < 1e-4)]


def _large_epsilon(m: Measurements) -> Evidence | None:
    """An epsilon of an adaptive optimizer far above the gradients: the steps are g / eps in place of g / |g|."""
    table, (name, eps) = m.table("gradient"), optimizer_of(m)
    size = median(table.stat("rms")) if table is not None else float("nan")
    if not 0 < _ABOVE * size < eps:
        return None
    return Evidence(
        "eps > 10 rms(g)", {"eps": eps, "rms": size},
        Sentence(
            "The epsilon of {name} is {eps:g}, the root mean square of a typical gradient {size:.2g}: the steps are "
            "about {size2:.1g} of what they are with an epsilon of 0.",
            name=name, eps=eps, size=size, size2=size / eps,
        ),
    )  # fmt: skip


def _too_small(m: Measurements, proof: Evidence, *, grave: bool) -> Finding:
    rate, limit = higher_rate(m), clip_limit(m)
    title = L_("The steps are too small to learn anything")
    if (epsilon := _large_epsilon(m)) is not None:
        blame = (
            blame_of_symptom(m) if narrow_range(m) else Blame(False, L_("the epsilon is larger than the gradients are"))
        )
        eps = 10.0 ** np.floor(np.log10(float(epsilon.values["rms"])) - 3)
        return Finding(
            "no-progress", "error" if grave else "warning",
            Sentence(
                "The steps are too small to learn anything: the epsilon {eps:g} of the optimizer is far above the "
                "gradients",
                eps=epsilon.values["eps"],
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof, epsilon),
            Sentence("Lower eps to {eps:.0e}, or multiply the loss by a constant.", eps=eps), 0.85, "docs/diagnosis.md",
            config_change={"optimizer.eps": float(eps)}, certainty="estimate", blame=blame,
        )  # fmt: skip
    fix = Sentence(
        "Raise the learning rate from {base_rate:.3g} to {rate:.3g}, then in smaller steps while the loss falls.",
        base_rate=base_rate(m),
        rate=rate,
    )
    if limit is not None:
        clipped = Evidence(
            L_("|g| the same within 2 % in > 80 % of the steps"), {"norm": limit},
            Sentence(
                "The gradient norm is {limit:.3g} in nearly all steps: gradients are clipped to it.",
                limit=limit,
            ), "grad_norm",
            m.series_of(m.grad_norm),
        )  # fmt: skip
        return Finding(
            "no-progress", "error" if grave else "warning", Sentence(
                "The steps are too small to learn anything: gradients are clipped to a norm of {limit:.3g}",
                limit=limit,
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof, clipped), L_(
                "Raise the norm to which gradients are clipped to 1."
            ),
            0.9, "docs/diagnosis.md", config_change={"train.clip_norm": 1.0}, blame=IN_ANY_FORMAT,
        )  # fmt: skip
    blame = blame_of_rate(m, median(update_ratios(m)[1]))
    return Finding(
        "no-progress", "error" if grave else "warning", title, int(m.steps[0]), int(m.steps[-1]), (proof,), fix,
        0.85, "docs/diagnosis.md", config_change={"optimizer.lr": rate} if rate > 0 else {}, certainty="estimate",
        blame=blame,
    )  # fmt: skip


def clip_limit(m: Measurements) -> float | None:
    """The norm to which gradients are clipped in more than 80 % of the steps that were taken; None where they are not.

    The recorded norm is that of the gradients as the optimizer gets them.
    """
    same = constant_norm(m.grad_norm[np.isfinite(m.grad_norm) & (m.grad_norm > 0) & ~m.skipped])
    return same.norm if same is not None and same.is_clipped else None


def over_fitting(m: Measurements) -> Answer:
    """The loss on the validation set rises while that of the training falls."""
    steps, values = m.run.series("val_loss")
    if len(values) < 4 or not np.isfinite(values).all() or no_measure(m):
        return None
    best = int(np.argmin(values))
    after = values[best:]
    rise = float(values[-1] - values[best])
    noise = float(np.std(np.diff(values))) if len(values) > 3 else 0.0
    if best > len(values) - 3 or rise < 2 * noise or rise < 0.1 * values[best]:
        return RuledOut(
            "over-fitting",
            Sentence(
                "because the validation loss is least in evaluation {best} of {value_count}",
                best=best + 1,
                value_count=len(values),
            ),
        )
    proof = Evidence(
        "val_loss_end - val_loss_min > 2 sd", {"least": float(values[best]), "last": float(values[-1]), "sd": noise},
        Sentence(
            "The validation loss was {value:.4g} at step {steps:.0f} and is {value2:.4g}, {after_count} evaluations "
            "later.",
            value=values[best], steps=steps[best], value2=values[-1], after_count=len(after) - 1,
        ),
        "val_loss", tuple(zip(steps.astype(int).tolist(), values.tolist(), strict=True)),
    )  # fmt: skip
    return [Finding("over-fitting", "info", L_("The model over-fits: the validation loss rises again"),
                    int(steps[best]), int(steps[-1]), (proof,),
                    L_("Stop earlier, add data or regularisation; no precision changes this."), 0.7,
                    "docs/diagnosis.md", blame=blame_of_symptom(m))]  # fmt: skip


RULES = (
    Rule("non-finite", "C", L_("Is the loss finite, and if not: why?"), non_finite),
    Rule("divergence", "C", L_("Did the training diverge?"), divergence),
    Rule("unbounded-loss", "C", L_("Is the loss bounded below?"), unbounded_loss),
    Rule("no-progress", "C", L_("Are the steps too small?"), no_progress),
    Rule("over-fitting", "C", L_("Does the model over-fit?"), over_fitting),
)
