"""Group C: terms of a loss that have no gradient, reach nothing or outweigh others, and targets behind an episode."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from precgui.runs.diagnosis.analysis import percent
from precgui.runs.diagnosis.chance_rules import LITTLE
from precgui.runs.diagnosis.findings import IN_ANY_FORMAT, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, text, texts, whole
from precgui.sentences import L_, Sentence

_UNUSED, _UNEVEN, _TARGETS = "unused-terms", "uneven-terms", "targets-without-end"
_FLAT = "term-without-gradient"
_AS_WRITTEN = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "_to_copy": "long()"}
_OUTWEIGHS = 10.0  # times the weight of a number of the fit
_LATE = 100  # a step in which a training has had time
_SMALL = 0.01  # of the fit, were their numbers of equal weight: a term that the training has driven to nothing
_SAME = 1e-5  # relative, between two values of one loss
_UNLIKE = 0.5  # of the rewards at ends lie beyond 98 % of those elsewhere
_FEWEST_ENDS, _FEWEST_STEPS = 8, 2
_OF_A_STATE = 4  # transitions to each state that is reached: states come again
_BY_CHANCE, _FEWEST_REWARDED = 1e-3, 4  # that states were missed; transitions with rewards that no others have
_MASK = L_(
    "Multiply the value of the next state by 1 - done: reward + discount * (1 - done) * value. Only where "
    "nothing but a time limit ends an episode are targets without a mask right."
)


@np.errstate(all="ignore")
def uneven_terms(m: Measurements) -> Answer:
    """A mean beside a sum: outputs are no better than a constant, and the other term is next to nothing."""
    rows = [row for row in m.fact_rows("loss_terms") if isinstance(row.get("terms"), list)]
    if not m.own_loop or not rows or number(rows[-1], "step") < _LATE:
        return None
    row = rows[-1]
    step = whole(row, "step")
    known = next((each for each in m.fact_rows("constant_answers") if whole(each, "step") == step), None)
    terms = [each for each in row["terms"] if isinstance(each, Mapping)]
    fits = [each for each in terms if _is_fit(each, known)]
    others = [each for each in terms if not any(each is fit for fit in fits)]
    if len(fits) != 1 or not others or known is None or known.get("void") or not number(known, "constant") > 0:
        return None
    fit, other = fits[0], max(others, key=lambda each: number(each, "weight"))
    ratio = number(other, "weight") / number(fit, "weight") if number(fit, "weight") > 0 else math.nan
    share = number(known, "loss") / number(known, "constant")
    size = ratio * abs(number(fit, "value"))
    left = abs(number(other, "value")) / size if size > 0 else math.nan
    if not (ratio >= _OUTWEIGHS and share >= LITTLE and left < _SMALL):
        return RuledOut(
            _UNEVEN,
            Sentence(
                "because a number of the largest other term counts {ratio:.3g} times as much as one of the fit, which "
                "is {share} of that of a constant, and with equal weights the term would be {left} of it",
                ratio=ratio, share=percent(share), left=percent(left),
            ),
        )  # fmt: skip
    proof = Evidence(
        L_("weight of a number of a term / weight of a number of the fit >= 10, a fit of 0.9 of that of the best "
           "constant answer or more, and a term that is < 0.01 of it with equal weights"),
        {"ratio": ratio, "fit": number(known, "loss"), "constant": number(known, "constant"),
         "term": number(other, "value"), "step": step},
        Sentence(
            "In step {step} each of {fit_count} numbers of the fit counted {fit_weight:.3g}, each of {term_count} of "
            "the other term {term_weight:.3g}, {ratio:.3g} times as much. With equal weights this term would be {left} "
            "of the fit, and the fit ({fit:.4g}) is no better than the same answer to all inputs ({constant:.4g}).",
            step=step, fit_count=whole(fit, "numbers"), fit_weight=number(fit, "weight"),
            term_count=whole(other, "numbers"), term_weight=number(other, "weight"), ratio=ratio,
            left=percent(left), fit=number(known, "loss"), constant=number(known, "constant"),
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            _UNEVEN, "warning",
            Sentence(
                "A term of the loss outweighs the fit: one of its numbers counts {ratio:.2g} times as much", ratio=ratio
            ),
            step, int(m.steps[-1]), (proof,),
            L_(
                "Reduce both terms in the same way: sum both over a sample and divide both by the number of samples, "
                "such as mse_loss(reduction='sum') / len(x) beside the sum of the divergence / len(x). A mean over "
                "all pixels makes the fit smaller by their number."
            ),
            0.85, "Kingma and Welling 2014; MMVAE pull request 19", certainty="estimate", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _is_fit(term: Mapping[str, Any], known: Mapping[str, Any] | None) -> bool:
    """Whether a term compares outputs with targets: as a loss of torch, or by hand with the same value as one that was
    compared with a constant."""
    loss = number(known, "loss") if known is not None else 0.0
    return term.get("is_fit") is True or (loss > 0 and abs(number(term, "value") / loss - 1) < _SAME)


@np.errstate(all="ignore")
def targets_without_end(m: Measurements) -> Answer:
    """Targets of values that are rewards and the discounted value of the next state, also where an episode ends."""
    flagged = _beside_flags(m)
    if not m.own_loop or (flagged is not None and flagged[0].is_problem):
        return flagged
    return _never_left(m) or flagged


def _beside_flags(m: Measurements) -> list[Finding] | None:
    """Flags of ends that the step computes, and that nothing reads."""
    rows = m.fact_rows("bootstrapped_targets")
    if len(rows) < _FEWEST_STEPS:
        return None
    ends, samples = (sum(whole(row, name) for row in rows) for name in ("ends", "samples"))
    if ends < _FEWEST_ENDS or not samples > ends:
        return None
    at_ends = sum(whole(row, "ends") * number(row, "reward_at_ends") for row in rows) / ends
    others = [whole(row, "samples") - whole(row, "ends") for row in rows]
    elsewhere = sum(count * number(row, "reward_elsewhere") for count, row in zip(others, rows, strict=True))
    elsewhere /= samples - ends
    unusual = sum(number(row, "unusual") for row in rows) / ends
    differs = unusual > _UNLIKE
    proof = Evidence(
        L_("rewards + discount * values of the next states, without a mask, beside flags of each sample that the step "
           "computes and no operation reads"),
        {"ends": ends, "samples": samples, "discount": number(rows[0], "discount"),
         "reward_at_ends": at_ends, "reward_elsewhere": elsewhere, "unusual": unusual},
        Sentence(
            "In {count} steps that were looked at {ends} of {samples} transitions were flagged (0 or 1), and nothing "
            "read the flags: their targets have the value of a next state as well, times {discount:g}. Their rewards "
            "are {at_ends:.3g} on average, those of the others {elsewhere:.3g}, and {unusual} of them lie beyond 98 % "
            "of those.",
            count=len(rows), ends=ends, samples=samples, discount=number(rows[0], "discount"), at_ends=at_ends,
            elsewhere=elsewhere, unusual=percent(unusual),
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            _TARGETS, "warning" if differs else "info",
            L_("Targets of values go on behind the end of an episode: the flags of its end are not used"),
            whole(rows[0], "step"), int(m.steps[-1]), (proof,), _MASK,
            0.85 if differs else 0.5, "Mnih et al. 2015; pytorch-rl issue 2", certainty="estimate", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _never_left(m: Measurements) -> list[Finding] | None:
    """States of a replay that transitions lead to and none begins with: they end an episode, and count as others do."""
    row = next(iter(m.fact_rows("unleft_states")), None)
    if row is None or whole(row, "count") < _FEWEST_STEPS:
        return None
    samples, states, unleft = (whole(row, name) for name in ("samples", "states", "unleft"))
    ending, rewarded = whole(row, "unleft_samples"), whole(row, "rewarded_samples")
    often = states > unleft > 0 and samples >= _OF_A_STATE * states and 2 * ending <= samples
    if not often or rewarded < max(_FEWEST_REWARDED, ending / 4):
        return None
    # If such states were left as often as they are reached, n samples of them were all of one kind with 2^-n.
    ways = math.lgamma(states + 1) - math.lgamma(unleft + 1) - math.lgamma(states - unleft + 1)
    chance = math.exp(min(ways - ending * math.log(2), 0.0))
    if not chance < _BY_CHANCE:
        return None
    proof = Evidence(
        L_("rewards + discount * values of the next states, without a mask, and next states in which no transition "
           "begins, to some of which rewards lead that lie beyond all others"),
        {"samples": samples, "states": states, "unleft": unleft, "unleft_samples": ending, "rewarded": rewarded,
         "reward": number(row, "reward"), "reward_elsewhere": number(row, "reward_elsewhere"), "chance": chance},
        Sentence(
            "In {count} steps that were looked at {samples} transitions led to {states} different states. In {unleft} "
            "of these, which {ending} of the transitions led to, none begins: an episode ends there. {rewarded} of the "
            "transitions had rewards there that lie beyond those of all others, and their targets have the value of "
            "such a state as well.",
            count=whole(row, "count"), samples=samples, states=states, unleft=unleft, ending=ending, rewarded=rewarded,
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            _TARGETS, "warning",
            L_(
                "Targets of values go on behind the end of an episode: they have the value of states that are never "
                "left"
            ),
            whole(row, "step"), int(m.steps[-1]), (proof,), _MASK,
            0.85, "Mnih et al. 2015; pytorch-rl issue 2", certainty="estimate", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def unused_terms(m: Measurements) -> Answer:
    """A part of a loss whose gradients never come to the parameters that the optimizer of its pass holds."""
    rows = m.fact_rows("unused_terms")
    if not m.own_loop or not m.n or not m.fact("census"):
        return None
    if len(rows) < _FEWEST_STEPS:
        return RuledOut(_UNUSED, L_("because no part of a loss was seen whose gradients no optimizer uses"))
    row, steps = rows[-1], [whole(each, "step") for each in rows]
    terms, reaches = whole(row, "terms"), ", ".join(texts(row, "reaches"))
    proof = Evidence(
        L_(
            "parameters that a term of a loss reaches: none of the optimizer that steps after its backward pass, and "
            "their own optimizer steps with gradients of another pass, made when these were None"
        ),
        {"terms": terms, "unused": whole(row, "unused"), "steps": len(rows)},
        Sentence(
            "In steps {steps} a backward pass began with a loss of {terms} terms, after which {optimizer} stepped. One "
            "of these terms has gradients for parameters of another optimizer only ({reaches}), which were cleared "
            "before that one used them: this term changes nothing.",
            steps=", ".join(map(str, steps[:5])), terms=terms, optimizer=text(row, "optimizer"), reaches=reaches,
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            _UNUSED, "warning", L_("A part of the loss reaches none of the parameters that are updated with it"),
            steps[0], int(m.steps[-1]), (proof,),
            L_(
                "Look for detach(), torch.no_grad(), .data or .item() between these parameters and this part of the "
                "loss: a generator learns from discriminator(fake), not from discriminator(fake.detach())."
            ),
            0.9, "docs/diagnosis.md", certainty="exact", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def term_without_gradient(m: Measurements) -> Answer:
    """A part of a loss that compares indices, comparisons or roundings of outputs, or detached ones, with targets."""
    rows = [row for row in m.fact_rows("terms_without_gradient") if whole(row, "count") >= _FEWEST_STEPS]
    if not m.own_loop or not m.n or not m.fact("census"):
        return None
    if not rows:
        return RuledOut(
            _FLAT, L_("because no part of a loss was seen that compares numbers without a gradient with targets")
        )
    row = max(rows, key=lambda each: abs(number(each, "value")))
    step, value, rest, line = whole(row, "step"), number(row, "value"), number(row, "rest"), text(row, "line")
    operation = _AS_WRITTEN.get(text(row, "operation"), text(row, "operation"))
    is_detached = operation == "detach"
    values = Sentence(
        "In {row_count} of the steps that were looked at, the last one step {step}, the backward pass began with a sum "
        "of {value:.4g}, which was computed by {operation} at {line}, and {rest:.4g}, which has a gradient.",
        row_count=whole(row, "count"), step=step, value=value, operation=operation, line=line, rest=rest,
    ) if "rest" in row else Sentence(
        "In {row_count} of the steps that were looked at, the last one step {step}, the backward pass began with "
        "{value:.4g}, which was computed by {operation} at {line}, and with nothing else.",
        row_count=whole(row, "count"), step=step, value=value, operation=operation, line=line,
    )  # fmt: skip
    proof = Evidence(
        L_(
            "loss = f(outputs by way of an index, comparison, rounding or detach(), targets) + g(outputs): the "
            "gradient of f is zero for all weights"
        ),
        {"value": value, "rest": rest, "step": step, "count": whole(row, "count")}, values,
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            _FLAT, "warning",
            Sentence("A part of the loss has no gradient: {operation} keeps it from the weights", operation=operation),
            step, int(m.steps[-1]), (proof,),
            L_(
                "Compute this part of the loss from outputs with a gradient: leave out the detach() between the "
                "model and the loss."
            ) if is_detached
            else L_(
                "Compute this part of the loss from outputs with a gradient: probabilities or their expected value in "
                "place of argmax, a sigmoid in place of a threshold, the number in place of its rounding. A figure "
                "that is only to be reported does not belong in the sum."
            ),
            0.9, "pytorch issue 1339; Deep_Hierarchical_Classification issue 6", certainty="exact",
            blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


RULES = (
    Rule(_FLAT, "C", L_("Has each part of a loss a gradient?"), term_without_gradient),
    Rule(_UNUSED, "C", L_("Does each part of a loss reach parameters that are updated with it?"), unused_terms),
    Rule(_UNEVEN, "C", L_("Do all numbers of a loss count alike?"), uneven_terms),
    Rule(_TARGETS, "C", L_("Do targets of values end with the episode?"), targets_without_end),
)
