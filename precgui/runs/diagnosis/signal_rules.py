"""Group C: models that learn little since little of a loss comes to weights: dropout, bounded scores, cut samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from precgui.runs.diagnosis.analysis import percent
from precgui.runs.diagnosis.blame import blame_of_symptom
from precgui.runs.diagnosis.chance_rules import LITTLE, chance_of
from precgui.runs.diagnosis.findings import IN_ANY_FORMAT, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, text, whole
from precgui.sentences import L_, Sentence

_DROPOUT, _SCORES, _SAMPLE = "heavy-dropout", "bounded-scores", "cut-sample"
_FOREIGN = "foreign-sample"
_FEWEST_DROPOUTS = 2  # behind one another: 0.8 and 0.8 leave a number and what it is made of in 4 % of the cases
_FEWEST_STEPS = 2
_LEAST = 0.95  # of the loss of equal scores: less than a twentieth of it can ever be learnt


@np.errstate(all="ignore")
def heavy_dropout(m: Measurements) -> Answer:
    """Dropouts of 80 % and more in several places of a model that is hardly better than a constant."""
    found = chance_of(m)
    if found is None:
        return None
    rows = [row for row in m.fact_rows("heavy_dropouts") if whole(row, "step") == found.step]
    calls = sum(whole(row, "calls") for row in rows)
    validated = m.run.series("val_loss")[1]  # without dropout
    least = float(np.nanmin(validated)) / found.unit if np.isfinite(validated).any() else math.inf
    seen = min(found.loss, found.late, least) / found.constant
    if calls < _FEWEST_DROPOUTS or not seen >= LITTLE:
        return RuledOut(
            _DROPOUT,
            Sentence(
                "because {count} dropouts of 80 % or more were seen in a step, and the loss is {share} of that of a "
                "constant answer",
                count=calls, share=percent(seen),
            ),
        )  # fmt: skip
    largest = max(number(row, "probability") for row in rows)
    names = [text(row, "module") for row in rows if text(row, "module")]
    proof = Evidence(
        L_("2 dropouts or more with p >= 0.8 in a step, and loss >= 0.9 of that of the best constant answer"),
        {"p": largest, "dropouts": calls, "loss": found.loss, "constant": found.constant, "late": found.late},
        Sentence(
            "In step {step} {count} dropouts set {share} of the numbers to zero (modules: {modules}). The {kind} was "
            "{loss:.4g} up to that step and is {late:.4g} at the end, where the same answer to all inputs has "
            "{constant:.4g}.",
            step=found.step, count=calls, share=percent(largest), modules=", ".join(names) or L_("the model"),
            kind=found.kind, loss=found.loss, late=found.late, constant=found.constant,
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            _DROPOUT, "warning",
            Sentence(
                "Dropout sets {share} of the numbers to zero in {count} places, and the model is hardly better than "
                "one answer for all inputs",
                share=percent(largest), count=calls,
            ),
            found.step, int(m.steps[-1]), (proof,),
            Sentence(
                "The p of a dropout is the share that is dropped, not the share that is kept: set it to {kept:.2g}, or "
                "to 0.5 at most.",
                kept=1 - largest,
            ),
            0.8, "Srivastava et al. 2014", names[0] if names else "", tuple(names), certainty="estimate",
            blame=blame_of_symptom(m),
        )
    ]  # fmt: skip


def bounded_scores(m: Measurements) -> Answer:
    """Scores of a cross entropy that cannot differ enough for the loss to fall."""
    rows = [row for row in m.fact_rows("bounded_logits") if whole(row, "count") >= _FEWEST_STEPS]
    if not m.own_loop or not m.n or not rows:
        return None
    row = max(rows, key=_floor)
    classes, least, step = whole(row, "classes"), number(row, "least"), whole(row, "step")
    if not _floor(row) >= _LEAST:
        return RuledOut(
            _SCORES,
            Sentence(
                "because scores of {classes} classes, which are between -{size:.3g} and {size:.3g} by construction, "
                "allow a cross entropy of {least:.3g}",
                classes=classes, size=number(row, "size"), least=least,
            ),
        )  # fmt: skip
    proof = Evidence(
        L_("log(1 + (classes - 1) exp(-2 s)) >= 0.95 log(classes); s: |factor| of products of normalised vectors"),
        {"size": number(row, "size"), "factor": number(row, "factor"), "classes": classes, "least": least,
         "equal": math.log(classes), "loss": number(row, "loss"), "step": step},
        Sentence(
            "In step {step} the scores of a cross entropy of {classes} classes were products of vectors of the length "
            "1, times {factor:.3g}: none is beyond {size:.3g}. However the vectors lie, the loss cannot be below "
            "{least:.4g}; equal scores have {equal:.4g}.",
            step=step, classes=classes, factor=number(row, "factor"), size=number(row, "size"), least=least,
            equal=math.log(classes),
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            _SCORES, "warning",
            Sentence(
                "The scores of a cross entropy are bounded so that it cannot fall below {least:.3g}", least=least
            ),
            step, int(m.steps[-1]), (proof,),
            Sentence(
                "Divide the products of normalised vectors by the temperature, where they are multiplied by "
                "{factor:.3g} now: usual temperatures are 0.05 to 0.5.",
                factor=number(row, "factor"),
            ),
            0.95, "Wang and Liu 2021, the temperature of contrastive losses", certainty="exact", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _floor(row: Mapping[str, Any]) -> float:
    """The least loss that the scores allow, of that of equal scores."""
    classes = whole(row, "classes")
    return number(row, "least") / math.log(classes) if classes > 1 else 0.0


def cut_sample(m: Measurements) -> Answer:
    """A sample whose distribution learns from nothing but a divergence."""
    answer = _of_samples(
        m, "cut_samples", _SAMPLE,
        L_("because no sample was seen that keeps the gradient of a loss from its distribution"),
        L_("loss = f(layers(sample)) + g(parameters of its distribution), and the sample has no gradient"),
        lambda seen: Sentence(
            "In {row_count} of the steps that were looked at, the last one step {step}, a sample of the shape {shape} "
            "was drawn from a distribution whose parameters are computed by layers. It went through further layers to "
            "a loss without a gradient, and the parameters had no part in that loss but by a term of their own.",
            **seen,
        ),
        L_("A sample without a gradient keeps the loss from the layers that compute its distribution"),
        L_(
            "Draw it with rsample() in place of sample(): it computes mean + deviation * noise and has a gradient for "
            "both."
        ),
        "Kingma and Welling 2014",
    )  # fmt: skip
    if not isinstance(answer, list):
        return answer
    where = text(_seen(m, "cut_samples")[0], "module")
    return [replace(each, module=where, tensors=(where,) if where else ()) for each in answer]


def foreign_sample(m: Measurements) -> Answer:
    """A policy gradient of an action that another one got the reward for."""
    return _of_samples(
        m, "foreign_samples", _FOREIGN,
        L_("because no probability of a sample was seen to be weighed with what another sample got"),
        L_("log p(b) x f(a), where a and b are independent samples of p: its gradient has the mean zero"),
        lambda seen: Sentence(
            "In {row_count} of the steps that were looked at, the last one step {step}, two samples of the shape "
            "{shape} were drawn from one distribution. The logarithm of the probability of one of them is "
            "multiplied by numbers that were computed from the other one, and not from it.",
            **seen,
        ),
        L_("The gradient is that of the probability of another sample than the one that was rewarded"),
        L_("Draw once, and take the logarithm of that sample: action = policy.sample(), policy.log_prob(action)."),
        "Williams 1992; tianshou issue 397",
    )  # fmt: skip


def _of_samples(
    m: Measurements, fact: str, rule: str, why_not: str, formula: str, proof: Callable[[Mapping[str, Any]], Sentence],
    title: str, fix: str, source: str,
) -> Answer:  # fmt: skip
    """The finding of samples that were seen in two steps, in the words of a rule."""
    rows = _seen(m, fact)
    if not m.own_loop or not m.n or not m.fact("census"):
        return None
    if not rows:
        return RuledOut(rule, why_not)
    step, count = whole(rows[0], "step"), whole(rows[0], "count")
    seen = {"row_count": count, "step": step, "shape": str(rows[0].get("shape"))}
    evidence = Evidence(formula, {"step": step, "count": count}, proof(seen), "loss", m.series_of(m.loss))
    return [
        Finding(
            rule, "warning", title, step, int(m.steps[-1]), (evidence,), fix, 0.9, source, certainty="exact",
            blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _seen(m: Measurements, fact: str) -> list[Mapping[str, Any]]:
    return [row for row in m.fact_rows(fact) if whole(row, "count") >= _FEWEST_STEPS]


RULES = (
    Rule(_DROPOUT, "C", L_("Do dropouts leave enough to learn from?"), heavy_dropout),
    Rule(_SCORES, "C", L_("Can scores differ enough for the loss to fall?"), bounded_scores),
    Rule(_SAMPLE, "C", L_("Do samples let a gradient through?"), cut_sample),
    Rule(_FOREIGN, "C", L_("Is the probability that of the sample that was rewarded?"), foreign_sample),
)
