"""Group B, digits that single operations lose: in sums and differences, inside an optimizer, and in large
outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from precgui.runs.diagnosis import origin
from precgui.runs.diagnosis.analysis import epsilons, growth, median, optimizer_of, percent
from precgui.runs.diagnosis.findings import COMPARED, TOO_FEW_DIGITS, Blame, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.number_formats import DIGITS, half_ulp
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, text, texts, whole
from precgui.sentences import L_, Sentence

_SWALLOWED = 0.5  # share of the elements of a sum
_LOOP = "(loop)"  # in place of a module
_TERMS = 6.0  # additions in one pass of a module: fewer are no integration
_LOST_TERMS = 0.1  # share of a sum at places of an index
_DAMAGED, _GRAVE = 0.2, 0.5  # share of the results of an optimizer
_EPSILON = 1e-5  # with this or more, second moments that are zero in FP16 divide by nothing small
_LEVELS = 4.0  # distances between numbers that the outputs spread over
_OF_ELEMENTS, _FEWEST_ROWS = 0.2, 2  # of the parameters whose gradients are lost, and steps in which a loss was seen
_FEWEST_OF_LBFGS = 12  # steps
_STILL, _AT_MINIMUM = 3, 1e-3  # losses that are the same; gradient norm at a minimum, of the first ones
_OFFSET = 32.0  # mean over standard deviation of the outputs


def swallowed_additions(m: Measurements) -> Answer:
    """Small terms are added up in 16 bits, and each is below half an ulp of the sum."""
    if not m.own_loop or not m.n:
        return None
    outside = m.fact_rows("loop_additions")
    found = _scattered(m, outside)
    return [found] if found is not None else _one_after_another(m, outside)


def _one_after_another(m: Measurements, outside: Sequence[Mapping[str, Any]]) -> Answer:
    """Terms that are added to a state, one after another."""
    counted = m.fact("census").get("additions")
    rows: dict[str, Any] = dict(counted) if isinstance(counted, Mapping) else {}
    sums = [row for row in outside if "operation" not in row]
    rows |= {_LOOP: sums[0]} if sums else {}
    if not rows:
        return None
    known = {str(name): row for name, row in rows.items() if isinstance(row, Mapping) and number(row, "elements") > 0}
    bad = {name: row for name, row in known.items()
           if number(row, "swallowed") > _SWALLOWED and number(row, "per_pass") >= _TERMS}  # fmt: skip
    if not bad:
        most = max((number(row, "swallowed") for row in known.values()), default=0.0)
        return RuledOut(
            "swallowed-additions",
            Sentence(
                "because at most {most} of the elements of the sums of a module in 16 bits stay as they were, or it "
                "adds fewer than {terms:.0f} terms",
                most=percent(most),
                terms=_TERMS,
            ),
        )
    name = max(bad, key=lambda each: number(bad[each], "swallowed"))
    share, terms, stored = number(bad[name], "swallowed"), number(bad[name], "per_pass"), str(bad[name].get("format"))
    in_loop = name == _LOOP
    module = "" if in_loop or name in origin.WHOLE else name
    proof = Evidence(
        L_("x + y = x for y != 0, in > 50 % of the elements and >= 6 additions of a pass"),
        {"share": share, "terms": terms, "half_ulp": half_ulp(stored) if stored in DIGITS else 0.0},
        Sentence(
            "In the first step the loop added {terms:.0f} terms in {stored}, and {share} of the elements stayed as "
            "they were: what was added is below half an ulp of the sum.",
            terms=terms, stored=stored.upper(), share=percent(share),
        )
        if in_loop else Sentence(
            "In the first step {module} added {terms:.0f} terms in each pass in {stored}, and {share} of the elements "
            "stayed as they were: what was added is below half an ulp of the sum.",
            module=name, terms=terms, stored=stored.upper(), share=percent(share),
        ),
    )  # fmt: skip
    return [
        Finding(
            "swallowed-additions", "warning", Sentence(
                "{share} of what {where} adds up in {stored} is lost",
                share=percent(share), where=L_("the loop") if in_loop else name, stored=stored.upper(),
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_("Keep the sum in FP32 (x = x.float() before the first addition), and only the terms in 16 bits."),
            0.85, "Higham 2002, Accuracy and Stability, section 4.2", module,
            certainty="exact", blame=COMPARED,
        )
    ]  # fmt: skip


def _scattered(m: Measurements, outside: Sequence[Mapping[str, Any]]) -> Finding | None:
    """Terms that are added at places of an index, as counts of neighbours, and of which a share is lost."""
    counted = m.fact("census").get("scattered")
    known = [(str(name), row) for name, row in counted.items()] if isinstance(counted, Mapping) else []
    known += [(_LOOP, row) for row in outside if "operation" in row]
    bad = [(name, row) for name, row in known if isinstance(row, Mapping) and number(row, "swallowed") > _LOST_TERMS]
    if not bad:
        return None
    name, row = max(bad, key=lambda each: number(each[1], "swallowed"))
    share, terms = number(row, "swallowed"), number(row, "elements")
    exact, value = number(row, "exact"), number(row, "value")
    stored, operation, where = (
        str(row.get("format")),
        str(row.get("operation")),
        L_("the loop") if name == _LOOP else name,
    )
    proof = Evidence(
        L_("sum of |result - result in FP32| > 10 % of the sum of all |terms|, the same terms and places"),
        {"share": share, "terms": terms, "exact": exact, "value": value},
        Sentence(
            "{operation}() in {where} adds {terms:.0f} terms in {stored}; {share} of what they amount to is lost, "
            "since terms are below half an ulp of their sum: a sum of {exact:.6g} in FP32 is {value:.6g}.",
            operation=operation, where=where, terms=terms, stored=stored.upper(), share=percent(share),
            exact=exact, value=value,
        ),
    )  # fmt: skip
    return Finding(
        "swallowed-additions", "warning", Sentence(
            "{share} of what {where} adds up in {stored} is lost",
            share=percent(share), where=where, stored=stored.upper(),
        ),
        int(m.steps[0]), int(m.steps[-1]), (proof,),
        Sentence(
            "Count and add up in FP32: give {operation}() a result and terms that are float().",
            operation=operation,
        ), 0.9,
        "Higham 2002, Accuracy and Stability, section 4.2",
        "" if name == _LOOP or name in origin.WHOLE else name, certainty="exact", blame=COMPARED,
    )  # fmt: skip


def optimizer_in_fp16(m: Measurements) -> Answer:
    """Operations of an optimizer whose results are below or beyond the range of FP16."""
    lost = m.fact("census").get("optimizer_loss")
    if not m.own_loop or not isinstance(lost, Mapping) or not m.n:
        return None
    share, operation, worst = number(lost, "share"), str(lost.get("operation")), number(lost, "operation_share")
    if not max(share, worst / 2) > _DAMAGED:
        return RuledOut(
            "optimizer-in-fp16",
            Sentence(
                "because {share} of the FP16 results of the optimizer are out of its range",
                share=percent(share),
            ),
        )
    name, eps = optimizer_of(m)[0], min(epsilons(m), default=0.0)
    if "adam" in name.lower() and eps >= _EPSILON:
        return RuledOut(
            "optimizer-in-fp16",
            Sentence(
                "because eps = {eps:g} of {name} is far above the second moments that FP16 cannot hold, {worst} of "
                "the results of {operation}",
                eps=eps,
                name=name,
                worst=percent(worst),
                operation=operation,
            ),
        )
    proof = Evidence(
        L_("|fp16(x) - x| > |x| / 64, of the results of the optimizer in the first step"),
        {"share": share, "operation_share": worst, "operation": operation},
        Sentence(
            "In the first step {share} of the optimizer's results in FP16 are zero, subnormal or Inf where FP32 "
            "holds them, of a single operation ({operation}) up to {worst}.",
            share=percent(share), operation=operation, worst=percent(worst),
        ),
    )  # fmt: skip
    return [
        Finding(
            "optimizer-in-fp16", "error" if max(share, worst) > _GRAVE else "warning",
            L_("The optimizer computes in FP16, whose range its numbers leave"), int(m.steps[0]), int(m.steps[-1]),
            (proof,), L_("Convert the gradient first (p.grad.float()) and keep the optimizer's state in FP32."),
            0.9, "Micikevicius et al. 2018, section 3.1", blame=COMPARED,
        )
    ]  # fmt: skip


@np.errstate(all="ignore")
def coarse_outputs(m: Measurements) -> Answer:
    """Outputs in 16 bits so large that their differences, and the loss, are of the size of an ulp."""
    table = m.table("activation")
    if not m.own_loop or table is None or not m.n:
        return None
    place = next((at for at, name in enumerate(table.names) if name == "(model)"), None)
    if place is None or table.formats[place] not in DIGITS:
        return None
    stored, late = table.formats[place], table.steps > m.steps[m.n // 2]
    rms, mean = median(table.stat("rms")[late, place]), abs(median(table.stat("mean")[late, place]))
    if not np.isfinite(rms) or not rms > 0:
        return None
    ulp, spread = 2 * half_ulp(stored, rms), float(np.sqrt(max(rms**2 - mean**2, 0.0)))
    finite = m.loss[m.finite_loss]
    loss = median(np.abs(finite[-max(len(finite) // 4, 1) :])) if len(finite) else float("nan")
    if not (spread < _LEVELS * ulp and mean > _OFFSET * spread and 0 < loss < max(ulp, ulp**2)):
        return RuledOut(
            "coarse-outputs",
            Sentence(
                "because the outputs ({stored}, rms {rms:.3g}) spread over {spread:.3g} of their ulps, or the loss "
                "is above one",
                stored=stored.upper(),
                rms=rms,
                spread=spread / ulp,
            ),
        )
    proof = Evidence(
        L_("sd(outputs) < 4 ulp, mean > 32 sd, loss < max(ulp, ulp^2)"),
        {"rms": rms, "sd": spread, "ulp": ulp, "loss": loss},
        Sentence(
            "The outputs of the model are {stored} numbers near {mean:.4g}, one {ulp:.3g} from the next; their "
            "standard deviation is {spread:.3g} and the loss at the end {loss:.3g}: differences are rounded away.",
            stored=stored.upper(), mean=mean, ulp=ulp, spread=spread, loss=loss,
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "coarse-outputs", "warning", Sentence(
                "The outputs are too large for the digits of {stored}",
                stored=stored.upper(),
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_(
                "Compute the last layer in FP32 (outside autocast, on inputs.float()), or predict differences or "
                "normalised values."
            ),
            0.7, "docs/diagnosis.md", certainty="estimate", blame=TOO_FEW_DIGITS,
        )
    ]  # fmt: skip


def lbfgs_in_16_bits(m: Measurements) -> Answer:
    """L-BFGS on a forward pass in 16 bits, which stands still far from a minimum: it needs differences of gradients."""
    table, result = m.table("activation"), growth(m, m.n) if m.n >= _FEWEST_OF_LBFGS and m.finite_loss.all() else None
    if not m.own_loop or table is None or result is None or "lbfgs" not in optimizer_of(m)[0].lower():
        return None
    stored = next((each for each in table.formats if each in DIGITS), "")
    same = m.n - int(np.flatnonzero(m.loss != m.loss[-1])[-1]) - 1 if (m.loss != m.loss[-1]).any() else m.n
    if not stored or same < _STILL or not result.norm_ratio > _AT_MINIMUM:
        return RuledOut(
            "lbfgs-in-16-bits",
            L_("because all outputs have the digits of FP32") if not stored
            else Sentence(
                "because only the last {same} losses are the same, or the gradient norm is that of a minimum",
                same=same,
            ),
        )  # fmt: skip
    proof = Evidence(
        L_("L-BFGS, outputs in 16 bits, the last 3 or more losses the same, |g| > 0.001 |g_1|"),
        {"same": same, "loss": float(m.loss[-1]), "norm_ratio": result.norm_ratio, "half_ulp": half_ulp(stored)},
        Sentence(
            "The last {same} losses are all {loss:.4g}: no step is accepted any more, though the gradient norm is "
            "{norm_ratio:.2g} times that of the first steps. L-BFGS divides differences of gradients, each off by "
            "about {stored:.1g} of its size in {stored2}, by those of weights, and compares losses as coarse.",
            same=same, loss=m.loss[-1], norm_ratio=result.norm_ratio, stored=half_ulp(stored),
            stored2=stored.upper(),
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "lbfgs-in-16-bits", "warning", Sentence(
                "L-BFGS stands still: its curvature is noise of {stored}",
                stored=stored.upper(),
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_(
                "Compute the closure in FP32, without autocast and with FP32 weights; in 16 bits use Adam or SGD."
            ),
            0.7, "Nocedal and Wright 2006, section 6.1; torch.optim.LBFGS documentation", certainty="estimate",
            blame=Blame(needs=L_("the same run in FP32")),
        )
    ]  # fmt: skip


_SOURCE = "Higham 2002, Accuracy and Stability, section 1.7"
_USES = {  # of a difference without digits: the clause, and the fix
    "divisor": (
        L_("is divided by, or its root or logarithm is taken"),
        L_("Compute it in FP32 from values in FP32 (x.float()), and a variance as the mean of (x - mean)^2."),
    ),
    "amplified": (
        L_("is multiplied by 1000 or more, or divided by as small a number"),
        L_(
            "Take a larger distance between the points (for a second difference some eps^(1/4) of x), derivatives "
            "by autograd, or FP64."
        ),
    ),
    L_("rounded data"): (
        L_("is what the training reads of data that a cast had rounded"),
        L_("Subtract the offset first, in the format of the data, and cast the result."),
    ),
    L_("large data"): (
        L_("is of data beyond 2^24, where FP32 holds no fractions and not each whole number"),
        L_("Keep such data (time stamps, identities) in int64 or FP64, subtract there, and cast the result."),
    ),
}


def cancelled_digits(m: Measurements) -> Answer:
    """Differences of nearly equal numbers, with one digit or two, that are used where digits matter."""
    rows = [row for row in m.fact_rows("cancellation") if text(row, "use") in _USES]
    often = [row for row in m.fact_rows("cancellation") if whole(row, "count") >= _FEWEST_ROWS]
    compared = [row for row in often if text(row, "use") == "rounded_difference"]
    ratios = [row for row in often if text(row, "use") == "rounded_ratio" and text(row, "format") in DIGITS]
    if not m.own_loop or not m.n:
        return None
    if compared:
        return [_off(m, compared[0])]
    if ratios:
        return [_ratio(m, max(ratios, key=lambda row: number(row, "share")))]
    if not rows:
        return RuledOut(
            "cancelled-digits", L_(
                "because no difference of a few ulps is a divisor, amplified, or data in the steps seen"
            )
        ) if m.fact("census") else None  # fmt: skip
    return [_cancelled(m, rows[0])]


def _off(m: Measurements, row: Mapping[str, Any]) -> Finding:
    """A difference that was compared with that of the numbers before a cast."""
    error, step, stored, module = (
        number(row, "share"),
        whole(row, "step"),
        text(row, "format").upper(),
        row.get("module"),
    )
    proof = Evidence(
        L_("rms((fl(a) - fl(b)) - (a - b)) > 0.5 rms(a - b), in two watched steps"),
        {"error": error, "step": step, "elements": number(row, "elements"), "format": text(row, "format")},
        Sentence(
            "In step {step} a difference of data that had been cast to {stored} is {error} of its size off the "
            "difference of the same numbers before the cast, and a product or a loss reads it.",
            step=step, stored=stored, error=percent(error),
        ),
    )  # fmt: skip
    return Finding(
        "cancelled-digits", "warning", _title(module, stored), step, int(m.steps[-1]), (proof,),
        L_(
            "Take the difference in the format that the data had before the cast (FP32, FP64, int64), and cast the "
            "result."
        ),
        0.9, _SOURCE, str(module or ""), blame=COMPARED,
    )  # fmt: skip


def _ratio(m: Measurements, row: Mapping[str, Any]) -> Finding:
    """The exponential of a difference with log-probabilities in too few digits."""
    off, step, held, module = number(row, "share"), whole(row, "step"), text(row, "format"), row.get("module")
    largest = max(number(row, "largest"), 1.0)
    apart = 2 * half_ulp(held, largest)
    proof = Evidence(
        L_("rms of the rounding error of log-probabilities > 0.25, where differences with them are that small"),
        {"error": off, "step": step, "elements": number(row, "elements"), "format": held, "largest": largest},
        Sentence(
            "In step {step} ratios are the exponential of a difference with numbers that were rounded to {stored}: "
            "these reach {largest:.4g}, where two numbers of {stored} are {apart:.3g} apart. That puts the logarithms "
            "of the ratios {off:.2g} off (rms), and the differences are not much larger.",
            step=step, stored=held.upper(), largest=largest, apart=apart, off=off,
        ),
    )  # fmt: skip
    return Finding(
        "cancelled-digits", "warning", _title(module, held.upper()), step, int(m.steps[-1]), (proof,),
        L_(
            "Add up log-probabilities in FP32 and keep them there (log_probs.float()), those of the old policy, too."
        ),
        0.85, _SOURCE, str(module or ""), blame=TOO_FEW_DIGITS,
    )  # fmt: skip


def _title(module: Any, stored: str) -> str:
    where = L_("The loop") if module is None else str(module) or L_("The model")
    return Sentence(
        "{where} uses differences of nearly equal numbers, whose digits {stored} has rounded away",
        where=where, stored=stored,
    )  # fmt: skip


def _cancelled(m: Measurements, row: Mapping[str, Any]) -> Finding:
    share, step, stored, use = number(row, "share"), whole(row, "step"), str(row.get("format")), text(row, "use")
    module = row.get("module")
    clause, fix = _USES[use]
    proof = Evidence(
        L_("|a - b| <= 2 eps max(|a|, |b|) in > 50 % of the elements"),
        {"share": share, "step": step, "elements": number(row, "elements"), "use": use},
        Sentence(
            "In step {step} {share} of the elements of a difference in {stored} are at most two eps of their "
            "operands, so that rounding the operands has left them a digit or two; the difference {clause}.",
            step=step, share=percent(share), stored=stored.upper(), clause=clause,
        ),
    )  # fmt: skip
    return Finding(
        "cancelled-digits", "warning", _title(module, stored.upper()), step, int(m.steps[-1]), (proof,), fix, 0.85,
        _SOURCE, str(module or ""), certainty="estimate", blame=TOO_FEW_DIGITS,
    )  # fmt: skip


def rounded_gradients(m: Measurements) -> Answer:
    """Gradients that the loop itself rounds before the step, so coarsely that some parameters get zeros for theirs."""
    rows = m.fact_rows("gradient_edits")
    if not m.own_loop or not m.n:
        return None
    bad = [row for row in rows if number(row, "share") > _OF_ELEMENTS]
    if len(bad) < _FEWEST_ROWS:
        return RuledOut(
            "rounded-gradients", L_(
                "because no gradient of a fifth of the parameters was rounded to zeros between the backward pass "
                "and the step in the steps seen"
            ),
        ) if m.fact("census") else None  # fmt: skip
    row, steps = bad[-1], [whole(each, "step") for each in bad]
    names = texts(row, "tensors")
    levels, largest, threshold = number(row, "levels"), number(row, "largest"), number(row, "threshold")
    how = "FP16" if row.get("format") == "fp16" else Sentence("{levels:.0f} magnitudes", levels=levels)
    proof = Evidence(
        L_("|g(rounded to 0)| > 0.5 |g| of a parameter, though autograd delivered it, and a threshold decides"),
        {"parameters": number(row, "parameters"), "share": number(row, "share"), "lost": number(row, "lost"),
         "levels": levels, "largest": largest, "threshold": threshold},
        Sentence(
            "In steps {steps} the optimizer got gradients rounded to {how}: all below about {threshold:.3g} became 0, "
            "where the largest is {largest:.3g}. Of {number:.0f} of {number2:.0f} parameters ({names}) up to "
            "{number3} of what the backward pass delivered is gone.",
            steps=", ".join(map(str, steps[:6])), how=how, threshold=threshold, largest=largest,
            number=number(row, "parameters"), number2=number(row, "of"), names=", ".join(names[:4]),
            number3=percent(number(row, "lost")),
        ),
    )  # fmt: skip
    return [
        Finding(
            "rounded-gradients", "warning",
            Sentence(
                "The loop rounds gradients of {number} of the elements to zeros before the step",
                number=percent(number(row, "share")),
            ),
            steps[0], int(m.steps[-1]), (proof,),
            L_(
                "Give each tensor (or block) a scale of its own, add what rounding has left out to the next "
                "gradient (error feedback), or round stochastically."
            ), 0.85,
            "Seide et al. 2014, 1-bit SGD; Alistarh et al. 2017, QSGD", names[0].rpartition(".")[0] if names else "",
            names, certainty="estimate", blame=COMPARED,
        )
    ]  # fmt: skip


RULES = (
    Rule("lbfgs-in-16-bits", "B", L_("Has L-BFGS the digits of its differences?"), lbfgs_in_16_bits),
    Rule("rounded-gradients", "B", L_("Does the optimizer get the gradients that were computed?"), rounded_gradients),
    Rule("swallowed-additions", "B", L_("Do small terms arrive in sums?"), swallowed_additions),
    Rule("optimizer-in-fp16", "B", L_("Do the optimizer's numbers fit into their format?"), optimizer_in_fp16),
    Rule("cancelled-digits", "B", L_("Have differences the digits that their use needs?"), cancelled_digits),
    Rule("coarse-outputs", "B", L_("Have the outputs enough digits for their differences?"), coarse_outputs),
)
