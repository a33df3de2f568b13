"""Formats with scales: FP8 with delayed scaling, casts that hide Inf, and the integer model of a quantised training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from precgui.runs.diagnosis import origin
from precgui.runs.diagnosis.analysis import percent
from precgui.runs.diagnosis.blame import blame_of, cure_of
from precgui.runs.diagnosis.findings import BEYOND_RANGE, TOO_FEW_DIGITS, Evidence, Finding, RuledOut, Undecided
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.nan_aware import largest, nonzero
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, rows_of, whole
from precgui.sentences import L_, Sentence

_SPIKE = 2.0  # of the largest value in the history: all above it saturates by an octave or more
_LOST_STEPS = 2
_KEPT, _FAR = 0.3, 0.83  # weights of one sign and mean magnitude, as good as one bit can be, are 0.6 of the norm away
_SEEN = 2  # watched steps
_CLIPPED, _LOST_NORM = 0.2, 0.3  # shares of the numbers other than zero, and of their norm
_MOSTLY = 0.5  # of the channels
_DRIFT = 1.2  # of the loss with rounded weights in FP32


def delayed_scale(m: Measurements) -> Answer:
    """Values beyond the largest one that delayed scaling remembers: they saturate, and the next steps underflow."""
    options = m.config.precision_options
    if not m.precision.startswith("fp8") or options.fp8_amax != "delayed":
        return None
    table = m.table("activation")
    if table is None or len(table.steps) < 3:
        return Undecided("delayed-scale", L_("outputs of modules in every step (record.activations_every = 1)"))
    amax = table.stat("amax")
    ratios = np.full(amax.shape, np.nan)
    for row in range(1, len(amax)):
        known = amax[:row][table.steps[:row] >= table.steps[row] - options.fp8_history]
        if len(known):
            with np.errstate(all="ignore"):
                ratios[row] = amax[row] / nonzero(largest(known, 0))
    most = largest(ratios, 1)
    share = float((most[np.isfinite(most)] > _SPIKE).mean()) if np.isfinite(most).any() else 0.0
    if share < 0.05:
        return RuledOut(
            "delayed-scale",
            Sentence(
                "because outputs exceed twice the largest one of {fp8_history} steps before in {share} of the "
                "recorded steps",
                fp8_history=options.fp8_history,
                share=percent(share),
            ),
        )
    row = int(np.nanargmax(most))
    name = table.names[int(np.nanargmax(ratios[row]))]
    proof = Evidence(
        L_("amax / max(amax of the history) > 2 in 5 % of the recorded steps"),
        {"share": share, "ratio": float(most[row]), "step": int(table.steps[row]), "history": options.fp8_history},
        Sentence(
            "In step {steps} the output of {name} is {most:.3g} times the largest of the recorded steps among the "
            "{fp8_history} before, from which its scale was taken.",
            steps=table.steps[row], name=name, most=most[row], fp8_history=options.fp8_history,
        ),
        L_("largest ratio to the history"), m.points_of(table.steps[1:], most[1:]), _SPIKE,
    )  # fmt: skip
    return [
        Finding(
            "delayed-scale", "warning", L_("Outputs exceed what delayed scaling of FP8 expects"), int(table.steps[0]),
            int(table.steps[-1]), (proof,), L_("Take the scale from the tensor itself."), 0.7,
            "TransformerEngine issue 1278", name, (name,), {"precision_options.fp8_amax": "current"}, "lower bound",
            blame=BEYOND_RANGE,
        )
    ]  # fmt: skip


def hidden_infinity(m: Measurements) -> Answer:
    """Outputs that hold NaN or +Inf in steps with a finite loss: something hides it, as a cast to E4M3 does."""
    table = m.table("activation")
    if table is None or not m.n:
        return None
    well = np.isfinite(m.at_loss(table.steps))
    bad = (np.nan_to_num(table.stat("nan")) + np.nan_to_num(table.stat("pos_inf"))) > 0
    often = (bad & well[:, None]).sum(0)
    places = [place for place, name in enumerate(table.names) if often[place] >= 2 and name not in origin.WHOLE]
    if not places:
        return RuledOut(
            "hidden-infinity",
            Sentence(
                "because no output holds NaN or Inf in {well} steps with a loss",
                well=int(well.sum()),
            ),
        )
    name = table.names[places[0]]
    row = int(np.flatnonzero(bad[:, places[0]] & well)[0])
    saturates = m.precision.startswith(("fp8", "mxfp8"))
    broken = [each for each in m.fact_rows("fp32_repetition") if each.get("finite") is True and _is_lost(m, each)]
    if len(broken) >= _LOST_STEPS:
        return [_lost(m, name, [whole(each, "step") for each in broken])]
    proof = Evidence(
        L_("count(NaN) + count(+Inf) of an output > 0 in 2 steps with a finite loss"),
        {"steps": int(often[places[0]]), "recorded_steps": int(well.sum()), "modules": len(places)},
        Sentence(
            "In {often} of {well} recorded steps the output of {name} holds NaN or +Inf and the loss is finite.",
            often=int(often[places[0]]), well=int(well.sum()), name=name,
        ),
    )  # fmt: skip
    return [
        Finding(
            "hidden-infinity", "warning" if saturates else "info", Sentence(
                "NaN or Inf of {name} is hidden behind it",
                name=name,
            ),
            int(table.steps[row]), int(table.steps[-1]), (proof,),
            L_("Check the output before it is cast: E4M3 turns Inf into 448.") if saturates
            else L_("Meant for masks of +Inf and rows that are left out; else examine this module."),
            0.6, "torch documentation, float8_e4m3fn", name, (name,),
        )
    ]  # fmt: skip


def _is_lost(m: Measurements, repeated: Mapping[str, Any]) -> bool:
    """Whether a step with a repetition had a finite loss, and gradients that no weight could take."""
    chosen = m.steps == repeated.get("step")
    return bool((m.finite_loss & (m.skipped | ~np.isfinite(m.grad_norm)))[chosen].any())


def _lost(m: Measurements, name: str, steps: list[int]) -> Finding:
    """NaN that the loss leaves out and the gradients do not, in passes that are finite in FP32."""
    decided = blame_of(m, steps[0])
    proof = Evidence(
        L_("outputs not finite, the same pass finite in FP32, loss finite, gradients not"), {"steps": len(steps)},
        Sentence(
            "In {step_count} steps ({steps}) the loss leaves out what is not finite in the outputs, and the gradients "
            "are not finite all the same.",
            step_count=len(steps), steps=", ".join(map(str, steps)),
        ),
    )  # fmt: skip
    return Finding(
        "hidden-infinity", "warning", Sentence(
            "NaN of {name} is left out of the loss and spoils the gradients of {step_count} steps",
            name=name, step_count=len(steps),
        ),
        steps[0], steps[-1], (proof, *decided.evidence), cure_of(m, decided), 0.85,
        "pytorch issue 41508", name, (name,), blame=decided,
    )  # fmt: skip


def coarse_quantiser(m: Measurements) -> Answer:
    """Weights that the loop rounds by itself, with a scale of which next to nothing of them is left."""
    rows = {str(row.get("tensor")): seen for row in m.fact_rows("rounded_weights") if (seen := _seen(row))}
    if not m.own_loop or not m.n or not rows:
        return None
    bad = {name: seen[-1] for name, seen in rows.items() if len(seen) >= _SEEN and all(map(_is_coarse, seen[-_SEEN:]))}
    if not bad:
        kept, error = min(seen[-1][0] for seen in rows.values()), max(seen[-1][1] for seen in rows.values())
        return RuledOut(
            "coarse-quantiser",
            Sentence(
                "because the roundings of the loop keep {kept} or more of the weights other than zero, with an "
                "error of at most {error} of their norm",
                kept=percent(kept),
                error=percent(error),
            ),
        )
    name = min(bad, key=lambda each: (bad[each][0], -bad[each][1]))
    kept, error, step = bad[name]
    lost = (
        Sentence("{kept} of the weights become zero", kept=percent(1 - kept))
        if kept < _KEPT
        else Sentence("the result is {error} of their norm off", error=percent(error))
    )
    proof = Evidence(
        L_("share of weights that stay other than zero < 0.3, or |q - w| / |w| > 0.83, in two watched steps"),
        {"kept": kept, "error": error, "step": step, "tensors": len(bad)},
        Sentence(
            "In step {step} the loop rounds {name} to integers: {kept} of its weights stay other than zero, and the "
            "error is {error} of their norm; so it is with {bad_count} of {row_count} rounded tensors.",
            step=step, name=name, kept=percent(kept), error=percent(error), bad_count=len(bad),
            row_count=len(rows),
        ),
    )  # fmt: skip
    return [
        Finding(
            "coarse-quantiser", "warning", Sentence(
                "The scale of a rounding does not fit {name}: {lost}",
                name=name, lost=lost,
            ),
            step, int(m.steps[-1]), (proof,),
            L_(
                "Choose the scale for each output channel (or block) from its largest magnitude, w.abs().amax(1) / "
                "7 for 4 bits, give it a lower bound, and treat outliers apart."
            ),
            0.85, "Jacob et al. 2018; Dettmers et al. 2022", name.rpartition(".")[0], tuple(bad)[:20],
            blame=BEYOND_RANGE,
        )
    ]  # fmt: skip


def lost_channels(m: Measurements) -> Answer:
    """Channels that a quantisation with one step for all of them leaves without any difference."""
    rows = [(row, seen) for row in m.fact_rows("lost_channels") if (seen := rows_of(row.get("steps")))]
    if not m.own_loop or not m.n or not rows:
        return None
    # In each watched step, from the first one on: otherwise a model may have learnt to need fewer channels.
    bad = [(row, seen[-1]) for row, seen in rows if len(seen) >= _SEEN and min(map(_share_lost, seen)) >= _MOSTLY]
    if not bad:
        share = max(_share_lost(seen[-1]) for _, seen in rows)
        return RuledOut(
            "lost-channels",
            Sentence(
                "because the roundings of the loop leave at most {share} of the channels without a difference",
                share=percent(share),
            ),
        )
    row, last = max(bad, key=lambda each: _share_lost(each[1]))
    module, step = str(row.get("module") or ""), whole(last, "step")
    lost, count, inside = whole(last, "lost"), whole(last, "channels"), module or L_("the model")
    place = (
        Sentence("weights in {module}", module=inside) if row.get("weights")
        else Sentence("activations in {module}", module=inside)
    )  # fmt: skip
    step_size, largest, usual = number(last, "step_size"), number(last, "largest"), number(last, "usual")
    proof = Evidence(
        L_("channels with several numbers before the rounding and one after it >= 1/2 of all, in each watched step"),
        {"lost": lost, "channels": count, "step": step, "step_size": step_size, "largest": largest, "usual": usual},
        Sentence(
            "In step {step} the {place} are rounded to multiples of {step_size:.4g}, which the largest number, "
            "{largest:.4g}, makes necessary: of {count} channels that hold numbers {lost} hold one and the same "
            "afterwards; half of these reach {usual:.4g} at most.",
            step=step, place=place, step_size=step_size, largest=largest, count=count, lost=lost, usual=usual,
        ),
    )  # fmt: skip
    return [
        Finding(
            "lost-channels", "warning", Sentence(
                "One rounding step for all {place} leaves {lost} of {count} channels without any difference",
                place=place, lost=lost, count=count,
            ), step, int(m.steps[-1]), (proof,),
            L_(
                "Take one step for each channel, from the largest magnitude along all other axes (x.abs().amax(0) / "
                "127), or bring the channels to one scale before the rounding, as a norm does."
            ),
            0.9, "Dettmers et al. 2022; Jacob et al. 2018", module, (module,) if module else (), blame=TOO_FEW_DIGITS,
        )
    ]  # fmt: skip


def _share_lost(seen: Mapping[str, Any]) -> float:
    return number(seen, "lost") / max(number(seen, "channels", 1.0), 1.0)


def clipped_in_quantisation(m: Measurements) -> Answer:
    """Activations that the loop rounds by itself, of which many lie far beyond the range of the rounding."""
    rows = m.fact_rows("quantised_values")
    if not m.own_loop or not m.n or not rows:
        return None
    row = max(rows, key=lambda each: number(each, "share") if number(each, "lost") > _LOST_NORM else -1.0)
    names = ("share", "lost", "largest", "lowest", "highest")
    share, lost, most, lowest, highest = (number(row, name) for name in names)
    if not (share > _CLIPPED and lost > _LOST_NORM):
        return RuledOut(
            "clipped-in-quantisation",
            Sentence(
                "because the roundings of the loop clip {share} of the activations by more than half of them",
                share=percent(share),
            ),
        )
    module, step = str(row.get("module") or ""), whole(row, "step")
    place = Sentence("activations in {module}", module=module or Sentence("the model"))
    unsigned = lowest >= 0
    proof = Evidence(
        L_("|clip(x) - x| > |x| / 2 for > 20 % of the x other than zero, and |clip(x) - x| > 0.3 |x| (norms)"),
        {"share": share, "lost": lost, "largest": most, "lowest": lowest, "highest": highest, "step": step},
        Sentence(
            "In step {step} the {place} are clipped to {lowest:.4g} to {highest:.4g} where they are rounded, and "
            "reach {most:.4g} in magnitude: {share} of those other than zero lose more than half of their size, "
            "{lost} of the norm is lost.",
            step=step, place=place, lowest=lowest, highest=highest, most=most, share=percent(share),
            lost=percent(lost),
        ),
    )  # fmt: skip
    why = L_("negative ones become zero") if unsigned and most <= 1.5 * highest else L_("its range is too small")
    return [
        Finding(
            "clipped-in-quantisation", "warning",
            Sentence(
                "A quantisation clips {share} of the {place}: {why}",
                share=percent(share), place=place, why=why,
            ), step, int(m.steps[-1]), (proof,),
            L_(
                "Take the scale from the largest magnitude that is present (448 / x.abs().max() for E4M3), not from "
                "the first batch; where values are negative, use a signed range (-127 to 127) or a zero point."
            ),
            0.85, "Jacob et al. 2018", module, (module,) if module else (), blame=BEYOND_RANGE,
        )
    ]  # fmt: skip


def _seen(row: Mapping[str, Any]) -> list[tuple[float, float, int]]:
    """Share that is kept, error and step of each watched step of a rounded tensor."""
    known = rows_of(row.get("steps"))
    return [(number(each, "kept", 1.0), number(each, "error"), whole(each, "step")) for each in known]


def _is_coarse(seen: tuple[float, float, int]) -> bool:
    kept, error, _ = seen
    return kept < _KEPT or error > _FAR


def integer_drift(m: Measurements) -> Answer:
    """An integer model that is worse than the one that was trained with rounding in FP32."""
    facts = m.environment.get("quantised")
    result = facts.get("evaluation") if isinstance(facts, Mapping) else None
    fake, integer = (_loss(result, name) for name in ("fake", "integer"))
    if fake is None or integer is None:
        return (
            Undecided("integer-drift", L_("the integer model (qat.save_to)")) if m.precision.endswith("-qat") else None
        )
    ratio = integer / max(fake, 1e-12)
    if ratio < _DRIFT or integer - fake < 0.02:
        return RuledOut(
            "integer-drift",
            Sentence(
                "because the integer model has a loss of {integer:.4g}, the trained {fake:.4g}",
                integer=integer,
                fake=fake,
            ),
        )
    proof = Evidence(
        L_("loss of the integer model / loss with rounding in FP32 > 1.2"), {"integer": integer, "fake": fake},
        Sentence(
            "The integer model has a loss of {integer:.4g} on the validation set, the model as it was trained, with "
            "rounding in FP32, {fake:.4g}.",
            integer=integer, fake=fake,
        ),
    )  # fmt: skip
    last = int(m.steps[-1]) if m.n else 0
    return [
        Finding(
            "integer-drift", "warning", L_("The integer model is worse than the model that was trained"), last, last,
            (proof,), L_("Switch observers off and freeze norms earlier, or quantise each channel by itself."), 0.9,
            "torchao issue 2138", config_change={"qat.observers_off_after_epoch": 1, "qat.freeze_bn_after_epoch": 1},
            blame=TOO_FEW_DIGITS,
        )
    ]  # fmt: skip


def _loss(evaluation: Any, name: str) -> float | None:
    own = evaluation.get(name) if isinstance(evaluation, Mapping) else None
    value = own.get("loss") if isinstance(own, Mapping) else None
    return float(value) if isinstance(value, int | float) and np.isfinite(value) else None


RULES = (
    Rule("coarse-quantiser", "B", L_("Do weights survive the loop's own rounding?"), coarse_quantiser),
    Rule("lost-channels", "B", L_("Does one rounding step fit all channels?"), lost_channels),
    Rule("clipped-in-quantisation", "A", L_("Do activations fit the loop's own rounding?"), clipped_in_quantisation),
    Rule("delayed-scale", "A", L_("Do values exceed what delayed scaling expects?"), delayed_scale),
    Rule("hidden-infinity", "A", L_("Is Inf hidden behind a cast?"), hidden_infinity),
    Rule("integer-drift", "D", L_("Is the integer model as good as the trained one?"), integer_drift),
)
