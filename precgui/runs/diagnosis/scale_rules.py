"""Group A, the loss scale: how it moves, and which steps it costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from precgui.runs.diagnosis.analysis import Streak, narrow_range, percent, power, streaks
from precgui.runs.diagnosis.blame import has_another_scaler
from precgui.runs.diagnosis.causes import LONG, non_finite_cause
from precgui.runs.diagnosis.findings import BEYOND_RANGE, IN_ANY_FORMAT, UNDECIDED, Cause, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, whole
from precgui.sentences import L_, Sentence

_FEWEST_SKIPS = 5
_RUNAWAY = 2.0**60
_LONG_WARM_UP, _NEARLY_ALL, _MOST_SKIPPED = 0.4, 0.8, 0.5  # of the steps
_SAME_FACTOR = 1.02  # of two quotients of rounded losses


def scale_collapse(m: Measurements) -> Answer:
    """Steps skipped in a row without an end, while the scale falls below every overflow."""
    if not m.loops_scale:
        return None
    longest = max(streaks(m), key=lambda each: each.length, default=None)
    if longest is None:
        return RuledOut("scale-collapse", Sentence("because none of {steps} steps was skipped", steps=m.n))
    low, high = float(m.scale[longest.last]), float(m.scale[longest.first])
    enough = 24 if m.run.status == "running" else LONG
    endless = longest.last == m.n - 1 and longest.length >= enough
    if not endless and low >= 1:
        values = {"count": longest.length, "step": m.steps[longest.first], "high": power(high), "low": power(low)}
        return RuledOut(
            "scale-collapse",
            Sentence(
                "because the longest run of skipped steps is {count} (from step {step}, scale {high} to {low}) and "
                "steps were taken after it",
                **values,
            )
            if longest.last < m.n - 1
            else Sentence(
                "because the longest run of skipped steps is only {count} (from step {step}, scale {high} to {low})",
                **values,
            ),
        )
    if not endless:
        return RuledOut(
            "scale-collapse",
            Sentence(
                "because steps were taken after the {length} skipped ones",
                length=longest.length,
            ),
        )
    if low > 0.99 * high:
        return None  # a static scale, see scale_too_high
    return [_collapse(m, longest)]


def _collapse(m: Measurements, streak: Streak) -> Finding:
    cause = non_finite_cause(m, streak.first)
    low, high = float(m.scale[streak.last]), float(m.scale[streak.first])
    proof = Evidence(
        L_("skipped steps in a row up to the last step >= 8 and log2(scale) falls by one each"),
        {"skipped_in_a_row": streak.length, "scale_first": high, "scale_last": low},
        Sentence(
            "{length} steps in a row were skipped up to the last one, while the scale fell from {high} to {low}.",
            length=streak.length,
            high=power(high),
            low=power(low),
        ),
        *m.log_of(Sentence("loss scale"), m.scale, 2),
    )
    enough = low < 2.0**-10
    return Finding(
        "scale-collapse",
        "error",
        Sentence("The loss scale halves for ever: {short}", short=cause.short),
        int(m.steps[streak.first]),
        int(m.steps[streak.last]),
        (proof, *cause.evidence),
        cause.fix,
        0.95 if enough else 0.7,
        "Micikevicius et al. 2018; pytorch issues 99640 and 40497",
        cause.module,
        cause.tensors,
        config_change=cause.config_change,
        certainty=cause.certainty,
        blame=cause.blame,
    )


def warm_up(m: Measurements) -> Answer:
    """Skipped steps of a scaler that looks for its scale: healthy, unless they are a large part of the run."""
    result = streaks(m)
    if not m.loops_scale or not result or result[0].last >= m.n - 1:
        return None
    first = result[0]
    if first.first > 3 or first.length < 2:
        return None
    high, low = float(m.scale[first.first]), float(m.scale[first.last + 1])
    if first.length > 100 or low < 1 or high <= low:
        return None
    share = first.length / max(m.n, m.run.total_steps, 1)
    proof = Evidence(
        L_("skips end once scale < safe scale; a fault above 40 % of the steps"),
        {"skipped": first.length, "scale_first": high, "scale_taken": low, "share": share},
        Sentence(
            "{length} steps ({share}) from {high} down to {low}, then step {steps} was taken.",
            length=first.length,
            share=percent(share),
            high=power(high),
            low=power(low),
            steps=m.steps[first.last + 1],
        ),
        *m.log_of(Sentence("loss scale"), m.scale, 2),
    )  # fmt: skip
    long = share > _LONG_WARM_UP
    if not long and m.skipped[first.last + 1 :].mean() > _LONG_WARM_UP:
        return None  # a search that ended, in a run that is lost all the same: nothing to call healthy
    title = (
        Sentence("{share} of the steps are lost until the loss scale is low enough", share=percent(share))
        if long
        else (Sentence("The loss scale found its size after {length} skipped steps: healthy", length=first.length))
    )
    return [
        Finding(
            "scale-too-high" if long else "warm-up",
            "error" if share > _NEARLY_ALL else "warning" if long else "info", title, int(m.steps[first.first]),
            int(m.steps[first.last]), (proof,), Sentence("Start at {low} to save these steps.", low=power(low)),
            0.95, L_("apex and DeepSpeed start at 2^16 to 2^32"), config_change={"scaling.initial_scale": low},
            blame=BEYOND_RANGE if long else IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def scale_too_high(m: Measurements) -> Answer:
    """All steps are skipped at one scale that never falls, or the run ends before the scale has fallen far enough."""
    if not m.n:
        return None
    if not m.loops_scale:
        return _by_hand(m)
    skipped = int(m.skipped.sum())
    high, low = float(m.scale.max()), float(m.scale.min())
    if skipped < m.n or m.n < (24 if m.run.status == "running" else 2) or (high > low and low < 1):
        return (
            None
            if skipped == m.n
            else RuledOut(
                "scale-too-high",
                Sentence(
                    "because {steps} of {steps2} steps were taken",
                    steps=m.n - skipped,
                    steps2=m.n,
                ),
            )
        )
    cause = non_finite_cause(m, 0)
    if cause.rule != "scale":
        return None  # see scale_collapse
    static = low > 0.99 * high
    proof = Evidence(
        L_("skipped steps = steps"),
        {"skipped": skipped, "steps": m.n, "scale_first": float(m.scale[0]), "scale_last": float(m.scale[-1])},
        Sentence(
            "{skipped} of {steps} steps were skipped at scales from {high} to {low}, with a finite loss.",
            skipped=skipped,
            steps=m.n,
            high=power(high),
            low=power(low),
        ),
        *m.log_of(Sentence("loss scale"), m.scale, 2),
    )
    return [
        Finding(
            "scale-too-high", "error",
            Sentence(
                "No step was taken: the loss scale of {low} lets every gradient overflow",
                low=power(low if static else high),
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof, *cause.evidence),
            L_("Use dynamic loss scaling.") if static else L_("Start with a lower scale, or train for longer."),
            0.9 if static else 0.7, "Micikevicius et al. 2018",
            config_change={"scaling.mode": "dynamic", "scaling.initial_scale": 2.0**16}, certainty="estimate",
            blame=BEYOND_RANGE,
        )
    ]  # fmt: skip


def _by_hand(m: Measurements) -> Answer:
    """A loop without a scaler that skips all steps, or most: their gradients are not finite although the loss is.

    A fixed factor on the loss does that. Where some steps are taken, it has to be known.
    """
    table = m.table("gradient")
    if not m.own_loop or m.n < 8 or not m.skipped.mean() > _MOST_SKIPPED or table is None or not narrow_range(m):
        return None
    if has_another_scaler(m):  # so the factor is not fixed; see unused_scaler
        return None
    skipped = np.isin(table.steps, m.steps[m.skipped])
    if not m.finite_loss[m.skipped].all() or not skipped.any() or not np.array_equal(table.bad.any(1), skipped):
        return None
    all_of_them, factor = bool(m.skipped.all()), _fixed_factor(m)
    if not all_of_them and factor is None:
        return None
    flowing = m.table("activation_gradient")
    infinite = bool(table.infinite.any()) or (flowing is not None and bool(flowing.infinite.any()))
    count, recorded = int(m.skipped.sum()), int(skipped.sum())
    proof = Evidence(
        L_("loss finite, gradients not finite in every recorded step that was not taken, finite in the others"),
        {"skipped": count, "steps": m.n, "recorded_steps": recorded} | ({"factor": factor} if factor else {}),
        Sentence(
            "None of {steps} steps was taken; the loss is finite in all, gradients are not finite in each of "
            "{step_count} recorded steps, and no scaler was given to the recorder.",
            steps=m.n, step_count=recorded,
        )
        if all_of_them else Sentence(
            "{skipped} of {steps} steps were not taken; the loss is finite in them, gradients are not finite in each "
            "of {step_count} recorded ones of them, and the backward pass began at {factor} times the loss.",
            skipped=count, steps=m.n, step_count=recorded, factor=power(factor or 1.0),
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "scale-too-high", "error",
            L_("No step was taken: the fixed scale of the loss lets every gradient overflow")
            if all_of_them else Sentence(
                "{share} of the steps are skipped: the fixed scale of the loss lets gradients overflow",
                share=percent(float(m.skipped.mean())),
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_(
                "Lower the number that the loop multiplies the loss by, or use torch.amp.GradScaler, which lowers "
                "it by itself."
            ), 0.8, "Micikevicius et al. 2018", certainty="estimate",
             blame=BEYOND_RANGE if infinite else UNDECIDED,
        )
    ]  # fmt: skip


def _fixed_factor(m: Measurements) -> float | None:
    """The number by which a loop multiplies its loss, where the backward passes that were looked at have the same."""
    losses = dict(zip(m.steps.tolist(), m.loss.tolist(), strict=True))
    factors = [
        number(row, "loss") / losses[step]
        for row in m.fact_rows("exact_steps")
        if (step := whole(row, "step")) in losses and losses[step] and number(row, "loss")
    ]
    same = bool(factors) and max(factors) < _SAME_FACTOR * min(factors)
    return min(factors) if same and min(factors) >= 2 else None


def repeated_skips(m: Measurements) -> Answer:
    """Steps skipped at a scale at which others were taken: something else than the scale is at work."""
    if not m.loops_scale or not m.skipped.any():
        return None
    taken = ~m.skipped
    if not taken.any():
        return None
    best = np.maximum.accumulate(np.where(taken, m.scale, 0.0))
    probing = np.diff(m.scale, prepend=m.scale[0]) > 0  # the step after the scale rose
    after_growth = probing | np.concatenate(([False], (probing & m.skipped)[:-1]))
    odd = m.skipped & (m.scale <= best / 2) & ~after_growth & ~_overflows(m)
    count, share = int(odd.sum()), float(odd.sum() / m.n)
    if count < _FEWEST_SKIPS or share < 0.05:
        return RuledOut(
            "repeated-skips",
            Sentence(
                "because only {count} of {steps} steps were skipped at a scale of half or less of one that had worked",
                count=count,
                steps=m.n,
            ),
        )
    place = int(np.flatnonzero(odd)[0])
    if (m.n - 1) in np.flatnonzero(odd) and m.skipped[place:].all():
        return None  # a collapse
    cause = _not_of_the_scale(m, non_finite_cause(m, place))
    proof = Evidence(
        L_("skipped at scale <= (largest scale of a taken step) / 2, share of steps > 0.05"),
        {"skipped": count, "steps": m.n, "share": share},
        Sentence(
            "{count} of {steps} steps ({share}) were skipped at scales that had worked before.",
            count=count,
            steps=m.n,
            share=percent(share),
        ),
        *m.log_of(Sentence("loss scale"), m.scale, 2),
    )
    return [
        Finding(
            "repeated-skips", "error" if share > 0.2 or m.skipped.mean() > _LONG_WARM_UP else "warning",
            Sentence(
                "{share} of the steps are skipped, and not because of the scale: {short}",
                share=percent(share), short=cause.short,
            ),
            int(m.steps[place]), int(m.steps[np.flatnonzero(odd)[-1]]), (proof, *cause.evidence),
            cause.fix, 0.85, "pytorch issue 40497", cause.module, cause.tensors,
            config_change=cause.config_change, certainty=cause.certainty, blame=cause.blame,
        )
    ]  # fmt: skip


def _not_of_the_scale(m: Measurements, cause: Cause) -> Cause:
    """The cause of a step skipped at a scale that others took: a lower scale does not mend it."""
    if cause.rule != "scale":
        return cause
    where = cause.module or L_("the loss")
    return replace(
        cause, short=Sentence("gradients overflow in {where} at scales that other steps took", where=where),
        blame=UNDECIDED, config_change={},
        fix=Sentence(
            "Compute {where} in FP32 or BF16, or clip what it divides by: in these steps a derivative is far larger "
            "than in the others, and no scale mends that.",
            where=where,
        ),
    )  # fmt: skip


def _overflows(m: Measurements) -> NDArray[np.bool_]:
    """Steps with a finite loss whose recorded gradients hold Inf: a large gradient, as a lower scale would have taken.

    Gradients of very different sizes skip steps at scales that worked for others; the scaler answers them.
    """
    table = m.table("gradient")
    if table is None:
        return np.zeros(m.n, bool)
    known = np.isin(m.steps, table.steps[table.bad.any(1)])
    infinite = np.isin(m.steps, table.steps[table.infinite.any(1)])
    usual = bool(infinite.sum() > known.sum() / 2)  # of those that are recorded; the others are taken to be alike
    return m.finite_loss & (infinite | (~known & usual))


def scale_runaway(m: Measurements) -> Answer:
    """A scale that grows without end, because nothing ever overflows."""
    if not m.loops_scale or not m.n:
        return None
    last = float(m.scale[-1])
    norms = m.grad_norm[np.isfinite(m.grad_norm)]
    dead = len(norms) > 0 and bool((norms[-min(20, len(norms)) :] == 0).all())
    if last < _RUNAWAY:
        return RuledOut("scale-runaway", Sentence("because the scale ends at {last}", last=power(last)))
    proof = Evidence(
        "scale > 2^60", {"scale": last, "last_norm": float(norms[-1]) if len(norms) else float("nan")},
        Sentence(
            "The scale has reached {last}; the last gradient norm is {norm:.3g}.",
            last=power(last), norm=norms[-1] if len(norms) else 0,
        ),
        *m.log_of(Sentence("loss scale"), m.scale, 2),
    )  # fmt: skip
    return [
        Finding(
            "scale-runaway", "error" if dead else "warning",
            L_("The loss scale grows without end, since all gradients are zero") if dead
            else L_("The loss scale grows without end"),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_(
                "Look for a cut in the graph: a detach, a frozen model, a loss that does not depend on the weights."
            ),
            0.9, "pytorch issue 98828", blame=IN_ANY_FORMAT if dead else UNDECIDED,
        )
    ]  # fmt: skip


RULES = (
    Rule("scale-collapse", "A", L_("Does the loss scale halve for ever?"), scale_collapse),
    Rule("scale-too-high", "A", L_("Is every step skipped because of the scale?"), scale_too_high),
    Rule("repeated-skips", "A", L_("Are steps skipped for another reason than the scale?"), repeated_skips),
    Rule("warm-up", "A", L_("Did the scaler look for its scale?"), warm_up),
    Rule("scale-runaway", "A", L_("Does the scale grow without end?"), scale_runaway),
)
