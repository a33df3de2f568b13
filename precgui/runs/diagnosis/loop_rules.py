"""Group D, the order of a loop with a scaler: unscale, clip, step, update, schedule."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from precgui.runs.diagnosis.analysis import ALIKE, constant_norm, is_adaptive, median, percent, power
from precgui.runs.diagnosis.findings import IN_ANY_FORMAT, Evidence, Finding, RuledOut, Undecided
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.sentences import L_, Sentence, together


def clip_before_unscale(m: Measurements) -> Answer:
    """Gradients clipped while still multiplied by the scale: the norm times the scale is always the same."""
    taken = ~m.skipped & np.isfinite(m.grad_norm) & (m.grad_norm > 0)
    if not m.own_loop or not m.loops_scale:
        return None
    scaled, own = constant_norm(m.grad_norm[taken] * m.scale[taken]), constant_norm(m.grad_norm[taken])
    if scaled is None or own is None:
        return None
    limit, at_limit, own_limit = scaled.norm, scaled.share, own.norm
    scales = np.unique(m.scale[taken])
    decided = scaled.is_clipped and (
        own.share < at_limit - 0.1 if len(scales) > 1 and own.share < 0.99 else _rounder(limit, own_limit)
    )
    if not decided or limit > 1000:
        return RuledOut(
            "clip-before-unscale",
            Sentence(
                "because the norm times the scale is within {alike} of {limit:.3g} in only {at_limit} of the steps",
                alike=percent(ALIKE), limit=limit, at_limit=percent(at_limit),
            )
            if not scaled.is_clipped else Sentence(
                "because the norm itself is clipped to {own_limit:.3g}, whatever the scale",
                own_limit=own_limit,
            ),
        )  # fmt: skip
    proof = _clip_proof(m, taken, limit, at_limit)
    adaptive = is_adaptive(m)
    return [
        Finding(
            "clip-before-unscale", "warning" if adaptive else "error", L_(
                "Gradients are clipped before they are unscaled"
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof,), L_(
                "Call scaler.unscale_(optimizer) before clip_grad_norm_."
            ),
            0.95,
            "torch.amp documentation, gradient clipping; pytorch/examples issue 1196", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _clip_proof(m: Measurements, taken: NDArray[np.bool_], limit: float, at_limit: float) -> Evidence:
    """The share of steps at the limit, and the numbers of one step, whose product is what is printed."""
    scaled = m.grad_norm[taken] * m.scale[taken]
    at = int(np.argmin(np.abs(scaled / limit - 1)))
    norm, scale = float(m.grad_norm[taken][at]), float(m.scale[taken][at])
    return Evidence(
        L_("|g| * scale = max_norm in > 80 % of the steps"), {"max_norm": limit, "share": at_limit,
        "scale": scale, "norm": norm, "step": int(m.steps[taken][at])},
        Sentence(
            "In {at_limit} of the steps the gradient norm times the scale is within {alike} of {limit:.4g}. In step "
            "{steps} norm {norm:.4g} times scale {scale} is {norm2:.4g}: it was clipped to {limit:.3g} before it "
            "was divided by the scale.",
            at_limit=percent(at_limit), alike=percent(ALIKE), limit=limit, steps=m.steps[taken][at], norm=norm,
            scale=power(scale), norm2=norm * scale,
        ),
        L_("gradient norm times the loss scale"), m.series_of(m.grad_norm * m.scale), limit,
    )  # fmt: skip


def _rounder(one: float, other: float) -> bool:
    """Whether the first number has fewer digits: a limit set by a person has one or two."""
    return _digits(one) < _digits(other)


def _digits(value: float) -> int:
    return (
        next((count for count in range(1, 7) if abs(float(f"{value:.{count - 1}e}") / value - 1) < 2e-3), 7)
        if value > 0
        else 7
    )


def gradients_not_unscaled(m: Measurements) -> Answer:
    """The optimizer stepped on gradients that were still multiplied by the loss scale."""
    if not m.own_loop or not m.loops_scale or not m.n:
        return None
    loop = m.fact("loop")
    past, still_scaled = loop.get("past_scaler"), loop.get("still_scaled")
    reported = [each.step for each in m.of_kind("nonfinite_gradient")]
    taken_bad = ~m.skipped & ~np.isfinite(m.grad_norm) & np.isin(m.steps, reported)
    constant = bool((m.scale == m.scale[0]).all())
    if past is False or (past and m.skipped.any()):
        return RuledOut(
            "gradients-not-unscaled", L_("because steps were made by scaler.step() or after scaler.unscale_()")
        )
    if still_scaled is False:
        scale = power(median(m.scale))
        return RuledOut(
            "gradients-not-unscaled",
            Sentence(
                "because the loop divides by the scale itself: gradients at the step are at most twice 1/{scale} of "
                "those that the backward pass delivered",
                scale=scale,
            ),
        )
    if not still_scaled and not (taken_bad.any() and constant):
        return Undecided("gradients-not-unscaled", L_("whether the loop has divided the gradients by the scale itself"))
    return [_not_unscaled(m, taken_bad, exact=bool(still_scaled))]


def _not_unscaled(m: Measurements, taken_bad: NDArray[np.bool_], *, exact: bool) -> Finding:
    finite = np.flatnonzero(np.isfinite(m.grad_norm))
    first = int(finite[0]) if len(finite) else 0  # all numbers are of this step
    norm, loss, scale = float(m.grad_norm[first]), float(m.loss[first]), float(m.scale[first])
    step = int(m.steps[np.flatnonzero(taken_bad)[0]]) if taken_bad.any() else int(m.steps[0])
    values = {"scale": power(scale), "norm": norm, "quotient": norm / scale, "loss": loss}
    sentences = [
        Sentence(
            "No step went through scaler.step() or after scaler.unscale_(), though the scale is {scale}; the first "
            "gradient norm is {norm:.4g}, divided by the scale {quotient:.3g}, at a loss of {loss:.3g}.",
            **values,
        )
        if exact
        else Sentence(
            "The scale is {scale} in all steps; the first gradient norm is {norm:.4g}, divided by the scale "
            "{quotient:.3g}, at a loss of {loss:.3g}.",
            **values,
        )
    ]
    if taken_bad.any():
        sentences.append(Sentence("Step {step} was taken although its gradients are not finite.", step=step))
    proof = Evidence(
        L_("optimizer.step() called outside scaler.step(), loss multiplied by the scale"),
        {"scale": scale, "norm": norm, "norm_over_scale": norm / scale, "loss": loss},
        together(*sentences),
        "grad_norm", m.series_of(m.grad_norm),
    )  # fmt: skip
    harmless = is_adaptive(m) and not taken_bad.any() and bool(m.finite_loss.all())
    return Finding(
        "gradients-not-unscaled", "warning" if harmless else "error",
        L_("The optimizer steps on gradients that are still scaled"), step, int(m.steps[-1]), (proof,),
        L_("Call scaler.step(optimizer) and scaler.update() in place of optimizer.step()."),
        0.97 if exact else 0.8, "torch.amp documentation, typical mixed precision training", blame=IN_ANY_FORMAT,
    )  # fmt: skip


def skipped_but_changed(m: Measurements) -> Answer:
    """A step that the scaler skipped has changed the weights."""
    table = m.table("update")
    if not m.skipped.any() or table is None:
        return (
            RuledOut("skipped-but-changed", Sentence("because none of {steps} steps was skipped", steps=m.n))
            if m.loops_scale and not m.skipped.any()
            else None
        )
    partly = {each.step for each in m.of_kind("skipped_step") if each.message.startswith("some ")}
    rows = np.isin(table.steps, [step for step in m.steps[m.skipped] if step not in partly])
    with np.errstate(all="ignore"):
        changed = np.where(table.bad, 0.0, np.nan_to_num(table.stat("changed"))).max(1, initial=0)
    first_bad = np.arange(len(rows)) == (np.argmax(table.bad.any(1)) if table.bad.any() else -1)  # later ones follow
    broken = rows & ((changed > 0) | first_bad)
    if not broken.any():
        return RuledOut(
            "skipped-but-changed",
            Sentence(
                "because no weight changed in the {rows} skipped steps that were recorded",
                rows=int(rows.sum()),
            ),
        )
    row = int(np.flatnonzero(broken)[0])
    name = table.names[int(np.argmax(np.where(table.bad[row], 2.0, np.nan_to_num(table.stat("changed")[row]))))]
    bad = bool(table.bad[row, table.names.index(name)])
    proof = Evidence(
        L_("skipped = 1 and changed > 0"), {"step": int(table.steps[row]), "changed": float(changed[row]),
        "count": int(broken.sum())},
        Sentence(
            "The scaler skipped step {step}, yet {name} became NaN or Inf in it.", step=table.steps[row], name=name
        )
        if bad else Sentence(
            "The scaler skipped step {step}, yet {share} of the elements of {name} changed in it.",
            step=table.steps[row], name=name, share=percent(float(changed[row])),
        ),
        "skipped", m.series_of(m.skipped.astype(float)),
    )  # fmt: skip
    return [
        Finding(
            "skipped-but-changed", "error", L_(
                "Weights change in steps that the scaler skips: there is a second optimizer.step()"
            ),
            int(table.steps[row]), int(table.steps[-1]), (proof,), L_(
                "Remove optimizer.step(): scaler.step(optimizer) calls it."
            ), 0.97,
            "FlyEgle/MAE-pytorch issue 1", "", (name,), blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def scheduler_ahead(m: Measurements) -> Answer:
    """The learning rate went on in steps that were skipped."""
    if not m.own_loop or not m.skipped.any() or m.n < 3:
        return None
    inside = m.skipped[:-1]
    moves = np.diff(m.lr)
    moved = np.isfinite(moves) & (moves != 0)  # a rate that is not known is NaN
    usual = float(moved[~inside].mean()) if (~inside).any() else 0.0
    ahead = int((inside & moved).sum())
    if usual < 0.5 or ahead < 0.5 * inside.sum() or not ahead:
        return RuledOut(
            "scheduler-ahead",
            Sentence(
                "because the rate moved in {ahead} of {inside} skipped steps, and in {usual} of the others",
                ahead=ahead,
                inside=int(inside.sum()),
                usual=percent(usual),
            ),
        )
    first = int(np.flatnonzero(~m.skipped)[0]) if (~m.skipped).any() else m.n - 1
    rise = float(m.lr[first] / m.lr[0]) if m.lr[0] > 0 else 1.0
    share = ahead / m.n
    proof = Evidence(
        L_("count of skipped steps in which lr changed"), {"ahead": ahead, "steps": m.n, "lr_first": float(m.lr[0]),
        "lr_taken": float(m.lr[first])},
        Sentence(
            "The rate moved on in {ahead} of {inside} skipped steps ({share} of all): the first step that was "
            "taken, {steps}, had {lr:.3g} in place of {lr2:.3g}.",
            ahead=ahead, inside=int(inside.sum()), share=percent(share), steps=m.steps[first], lr=m.lr[first],
            lr2=m.lr[0],
        ),
        "lr", m.series_of(m.lr),
    )  # fmt: skip
    grave = share > 0.1 or rise > 3
    return [
        Finding(
            "scheduler-ahead", "warning" if grave else "info", L_(
                "The scheduler steps when the optimizer does not"
            ),
            int(m.steps[np.flatnonzero(m.skipped)[0]]), int(m.steps[-1]), (proof,),
            L_("Step the scheduler only when scaler.get_scale() has not fallen."), 0.9,
            "pytorch issues 44511 and 55585", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


RULES = (
    Rule("clip-before-unscale", "D", L_("Were gradients clipped before they were unscaled?"), clip_before_unscale),
    Rule("gradients-not-unscaled", "D", L_("Were gradients divided by the scale?"), gradients_not_unscaled),
    Rule("skipped-but-changed", "D", L_("Do skipped steps leave the weights alone?"), skipped_but_changed),
    Rule("scheduler-ahead", "D", L_("Does the scheduler wait for the optimizer?"), scheduler_ahead),
)
