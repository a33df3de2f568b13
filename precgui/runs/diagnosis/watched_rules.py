"""Rules on operations that a few steps of a loop were seen to run: updates of stored numbers, whole numbers, losses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from precgui.runs.diagnosis import origin
from precgui.runs.diagnosis.analysis import percent
from precgui.runs.diagnosis.digit_rules import compensated
from precgui.runs.diagnosis.findings import COMPARED, IN_ANY_FORMAT, TOO_FEW_DIGITS, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.number_formats import DIGITS, half_ulp
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, text, whole
from precgui.sentences import L_, Sentence, as_given, recased, together

_SOME, _OF_OPTIMIZER = Sentence("a tensor of the loop"), Sentence("of the optimizer")
_LOST = 0.5  # share of the elements that an update leaves as they were
_LOST_OF_WEIGHTS = 0.7  # of weights that an optimizer widens and rounds back: the largest elements always arrive
_FEWEST_STEPS = 2  # in which an update was seen
_GAP = 0.03  # between an average and what it follows, relative
_SAME_WAY = 0.3  # cosine of the updates of two steps that were seen
_BY_CHANCE, _MOST_BY_CHANCE = 4.0, 0.7  # standard deviations of the cosine, and the cosine that is always enough
_PAIRS = 2  # of steps
_WAY = 0.02  # relative change that all lost updates together would have made
_RARE = 0.5  # share of the steps
_WHOLE = DIGITS | {"fp32": 24, "fp64": 53}  # whole numbers up to 2 to this power are distinct
_MERGED = 0.25  # share of whole numbers that are no longer distinct
_RADIANS = 0.25
_MOST_STEPS_SHOWN = 4
_BY_HAND, _BEFORE = "coarse rounding", "short_data"


def lost_updates(m: Measurements) -> Answer:
    """Averages, targets, merged weights, running statistics: updates that rounding to 16 bits swallows."""
    rows = [row for row in m.fact_rows("stored_updates") if _steps(row)]
    if not m.own_loop or not m.n or not rows:
        return None
    if overflown := [row for row in rows if row.get("format") == "fp16" and number(_steps(row)[-1], "infinite") > 0]:
        return [_overflown(m, overflown[0])]
    bad = [row for row in rows if _is_lost(m, row)]
    if not bad:
        most = max(number(_steps(row)[-1], "swallowed") for row in rows)
        return RuledOut(
            "lost-updates",
            Sentence(
                "because at most {most} of the elements of {row_count} kinds of updates of numbers stored in 16 "
                "bits are swallowed, or what they follow is within 3 % or does not go one way",
                most=percent(most),
                row_count=len(rows),
            ),
        )
    return [_lost(m, max(bad, key=lambda row: number(_steps(row)[-1], "swallowed")))]


def _steps(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    steps = row.get("steps")
    return [each for each in steps if isinstance(each, Mapping)] if isinstance(steps, list) else []


def _is_lost(m: Measurements, row: Mapping[str, Any]) -> bool:
    seen = _steps(row)
    if text(row, "format") not in DIGITS or (len(seen) < _FEWEST_STEPS and not _is_rare(row)):
        return False
    if row.get("optimizer"):
        typical = sorted(number(each, "swallowed") for each in seen[1:])[(len(seen) - 1) // 2]
        return typical > _LOST_OF_WEIGHTS and compensated(m) is None
    if not number(seen[-1], "swallowed") > _LOST:
        return False
    last = seen[-1]
    if weight := _weight(row):
        is_away = number(last, "intended") / weight > _GAP
        return is_away and all(_goes_on(each) for each in seen[1:][-_PAIRS:])
    return number(last, "intended") * _updates(m, row) > (half_ulp(text(row, "format")) / 2 if _is_rare(row) else _WAY)


def _goes_on(step: Mapping[str, Any]) -> bool:
    """Whether an update goes the way of the one before, more than noise does: the cosine of two random vectors of n
    elements has a standard deviation of 1 / sqrt(n), and of few large elements a larger one."""
    by_chance = min(_BY_CHANCE / math.sqrt(max(number(step, "elements"), 1.0)), _MOST_BY_CHANCE)
    return number(step, "direction") > max(_SAME_WAY, by_chance)


def _updates(m: Measurements, row: Mapping[str, Any]) -> float:
    """How often the run makes an update: as often as up to the last step that was seen, where that is known."""
    last = _steps(row)[-1]
    return m.n * number(last, "writes") / number(last, "step") if last.get("writes") else m.n


def _is_rare(row: Mapping[str, Any]) -> bool:
    """Whether an update is made in few steps: what many steps have learnt is added at once."""
    last = _steps(row)[-1]
    return 0 < number(last, "writes") <= _RARE * number(last, "step")


def _weight(row: Mapping[str, Any]) -> float:
    """Of the new value in an average, in the last step that was seen; 0 where it is a sum."""
    return number(_steps(row)[-1], "weight")


def _lost(m: Measurements, row: Mapping[str, Any]) -> Finding:
    seen, stored = _steps(row), text(row, "format").upper()
    share, last, weight = number(seen[-1], "swallowed"), whole(seen[-1], "step"), _weight(row)
    name = str(row.get("tensor") or "")
    what, fix = _kind(row, name, stored)
    lost = (
        Sentence("{share} in step {step}", share=percent(number(each, "swallowed")), step=whole(each, "step"))
        for each in seen[-_MOST_STEPS_SHOWN:]
    )
    listed = together(*lost, between=", ")
    follows = (
        Sentence(
            ", although what it follows is {intended} away",
            intended=percent(number(seen[-1], "intended") / weight),
        )
        if weight
        else ""
    )
    proof = Evidence(
        L_("x + update, rounded, = x for update != 0, in > 50 % of the elements (70 % of weights)"),
        {"share": share, "step": last, "tensors": whole(row, "tensors") or 1,
         "intended": number(seen[-1], "intended"), "half_ulp": half_ulp(text(row, "format")), "weight": weight,
         "direction": number(seen[-1], "direction")},
        Sentence(
            "The updates of {what} ({stored}, {operation}) leave {listed} of the elements as they were{follows}.",
            what=what, stored=stored, operation=row.get("operation"), listed=listed, follows=follows,
        ),
        L_("share of the elements that an update leaves as they were"),
        tuple((whole(each, "step"), number(each, "swallowed")) for each in seen),
    )  # fmt: skip
    return Finding(
        "lost-updates", "error" if share > 0.9 else "warning",
        Sentence(
            "{share} of the updates of {what} are lost in the rounding of {stored}",
            share=percent(share), what=what, stored=stored,
        ),
        whole(seen[0], "step"), int(m.steps[-1]), (proof,), fix, 0.9,
        "Zamirai et al. 2020, Revisiting BFloat16 Training; diffae issue 16", str(row.get("module") or ""),
        (name,) if name else (), certainty="estimate", blame=COMPARED,
    )  # fmt: skip


def _overflown(m: Measurements, row: Mapping[str, Any]) -> Finding:
    """A sum or an average in FP16 that has become Inf."""
    name = str(row.get("tensor") or "")
    first = next(each for each in _steps(row) if number(each, "infinite") > 0)
    share = number(first, "infinite")
    proof = Evidence(
        L_("an element of what the loop updates in FP16 is Inf"), {"share": share, "step": whole(first, "step")},
        Sentence(
            "In step {step} {share} of {name} (FP16, {operation}) are Inf.",
            step=whole(first, "step"), share=percent(share), name=name or _SOME, operation=row.get("operation"),
        ),
    )  # fmt: skip
    return Finding(
        "lost-updates", "error",
        Sentence(
            "{name}, which the loop updates in FP16, overflows",
            name=recased(as_given(name) if name else _SOME, "upper"),
        ),
        whole(first, "step"), int(m.steps[-1]), (proof,),
        L_("Keep sums, squares and running statistics in FP32: FP16 ends at 65504."), 0.9,
        "Micikevicius et al. 2018", str(row.get("module") or ""), certainty="estimate", blame=COMPARED,
    )  # fmt: skip


def _kind(row: Mapping[str, Any], name: str, stored: str) -> tuple[str, str]:
    """The tensors that are updated, as a clause, and the fix."""
    count = whole(row, "tensors") or 1
    named = name or _SOME
    if count > 1:
        named = Sentence("{name} and {count} more", name=named, count=count - 1)
    if row.get("optimizer"):
        return (
            Sentence(
                "the weights ({name} and {count} more), which each step widens, changes and rounds back",
                name=name or _OF_OPTIMIZER,
                count=count - 1,
            )
            if count > 1
            else Sentence(
                "the weights ({name}), which each step widens, changes and rounds back", name=name or _OF_OPTIMIZER
            ),
            Sentence(
                "Make the FP32 copy (master weights) of the {stored} weights once, keep it from step to step, and "
                "round only what the model reads; or round stochastically.",
                stored=stored,
            ),
        )
    last = _steps(row)[-1]
    is_void = bool(last.get("void"))
    if row.get("operation") == "mul":
        return (
            Sentence("{name} by a decay, whose factor is 1 in {format},", name=named, format=stored)
            if is_void
            else Sentence("{name} by a decay", name=named),
            Sentence(
                "Compute the factor of the decay in FP32 or with numbers of Python, and keep what it makes smaller "
                "(or a master copy) in FP32: a change by {last:.3g} is below half an ulp of {stored}.",
                last=number(last, "intended"),
                stored=stored,
            ),
        )
    if is_void or _weight(row):
        return _kind_of_average(row, named, stored, is_void=is_void)
    if _is_rare(row):
        return (
            Sentence(
                "{name}, written in {written:.0f} of {steps:.0f} steps,",
                name=named,
                written=number(last, "writes"),
                steps=number(last, "step"),
            ),
            Sentence(
                "Keep an FP32 copy of what is merged into (weights, sums), add to that copy, and round it to "
                "{stored} for the model: each addition is mostly below half an ulp of {stored}.",
                stored=stored,
            ),
        )
    return (
        Sentence("{name}, which the loop adds to,", name=named),
        Sentence(
            "Keep it in FP32 while it is added to (merged weights, sums, averages and counts), and round a copy to "
            "{stored}.",
            stored=stored,
        ),
    )


def _kind_of_average(row: Mapping[str, Any], names: str, stored: str, *, is_void: bool) -> tuple[str, str]:
    """The same of a moving average; `is_void`: its factor is 1 in the format."""
    if is_void:
        return (
            Sentence(
                "the moving average or target copy ({names}), whose factor is 1 in {stored},",
                names=names,
                stored=stored,
            ),
            Sentence(
                "Keep the factor of the average as a number of Python or in FP32, and the average in FP32: all "
                "factors from 1 - 2^-{digit} on are 1 in {stored}.",
                digit=DIGITS[text(row, "format")] + 1,
                stored=stored,
            ),
        )
    return (
        Sentence("the moving average or target copy ({names})", names=names),
        Sentence(
            "Keep the average (a target network, a running statistic) in FP32: {weight:.3g} of the difference is "
            "below half an ulp of {stored}.",
            weight=_weight(row),
            stored=stored,
        ),
    )


def merged_positions(m: Measurements) -> Answer:
    """Positions, time steps or indices that a float format has merged before they are used, in whatever format."""
    rows = m.fact_rows("integers")
    if not m.own_loop or not m.n or not rows:
        return None
    bad = [row for row in rows if text(row, "format") in _WHOLE and _is_merged(row)]
    if not bad:
        return RuledOut(
            "merged-positions", L_(
                "because 16 bits merge less than a quarter of the positions that were seen, and their angles are "
                "off by less than 0.25 rad"
            ),
        )  # fmt: skip
    row = max(bad, key=lambda each: (number(each, "merged"), _angle_error(each)))
    stored, merged, step = text(row, "format"), number(row, "merged"), whole(row, "step")
    error, module = max(_angle_error(each) for each in bad), str(row.get("module") or "")
    texts = [
        Sentence(
            "In step {step} numbers that were held in {stored} are used as positions or indices",
            step=step,
            stored=stored.upper(),
        )
    ]
    if merged > 0:
        texts.append(
            Sentence(
                "{merged} of the whole numbers up to {number:.0f} are not distinct",
                merged=percent(merged),
                number=number(row, "largest"),
            )
        )
    if error > 0:
        texts.append(
            Sentence(
                "an angle computed from them is off by up to {error:.2g} rad, in whatever format it is computed",
                error=error,
            )
        )
    limit = 2 ** _WHOLE[stored]
    proof = Evidence(
        L_(
            "merged whole numbers > 25 %, or half an ulp of the angle > 0.25 rad, or an index beyond the exact "
            "numbers"
        ),
        {"merged": merged, "largest": number(row, "largest"), "radians_off": error, "exact_up_to": limit},
        Sentence("{reasons}.", reasons=together(*texts, between="; ")),
    )  # fmt: skip
    return [
        Finding(
            "merged-positions", "warning",
            Sentence(
                "{merged} of the positions are merged in {format}, which holds whole numbers up to {limit}",
                merged=percent(merged), format=stored.upper(), limit=limit,
            )
            if merged > 0 else Sentence(
                "Positions are rounded in {format}, which holds whole numbers up to {limit}",
                format=stored.upper(), limit=limit,
            ),
            step, int(m.steps[-1]), (proof,),
            L_(
                "Keep positions, time steps and indices in int64 or FP32 from where they are made (also in buffers, "
                "which model.to(bfloat16) casts), and convert only the result."
            ) if stored in DIGITS else L_(
                "Keep indices and numbers of items in int64 from where they are made: in a tensor of their own beside "
                "the table of numbers, or numbered anew from 0."
            ), 0.85,
            "gpt-neox issue 1003; transformers issue 29285", module, certainty="estimate", blame=TOO_FEW_DIGITS,
        )
    ]  # fmt: skip


def _is_merged(row: Mapping[str, Any]) -> bool:
    if row.get("use") == "index":
        return True
    return _angle_error(row) > _RADIANS or (row.get("kind") == "ramp" and number(row, "merged") > _MERGED)


def _angle_error(row: Mapping[str, Any]) -> float:
    radians = number(row, "radians")
    return half_ulp(text(row, "format"), radians) if radians > 0 else 0.0


def broadcast_loss(m: Measurements) -> Answer:
    """A loss of outputs [B, 1] and targets [B]: the mean over all pairs, whose least is at the mean of the targets."""
    rows = m.fact_rows("broadcast_loss")
    if not m.own_loop or not m.n:
        return None
    if not rows:
        return RuledOut("broadcast-loss", L_("because no loss of a column and a vector was seen")) if (
            m.fact("census")
        ) else None  # fmt: skip
    row, count = rows[0], whole(rows[0], "samples")
    proof = Evidence(
        L_("operands [B, 1] and [B] of a loss, one with a gradient: result [B, B]"),
        {"samples": count, "step": whole(row, "step"), "operation": str(row.get("operation"))},
        Sentence(
            "In step {number} {operation} gets shapes [{count}, 1] and [{count}]: broadcasting compares each of "
            "{count} outputs with each of {count} targets.",
            number=whole(row, "step"), operation=row.get("operation"), count=count,
        ),
    )  # fmt: skip
    return [
        Finding(
            "broadcast-loss", "warning",
            Sentence(
                "The loss compares each output with each target: shapes [{count}, 1] and [{count}]",
                count=count,
            ),
            whole(row, "step"), int(m.steps[-1]), (proof,),
            L_(
                "Give both the same shape: outputs.squeeze(-1), or targets.unsqueeze(-1). In any precision the mean "
                "over all pairs is least where every output is the mean of the targets."
            ),
            0.9, "torch.nn.functional.mse_loss documentation, its warning", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


_LOSSES = {
    "log_softmax": (L_("cross entropy"), "softmax"),
    "log_sigmoid_forward": (L_("the logarithm of a sigmoid"), "sigmoid"),
    "binary_cross_entropy_with_logits": (L_("binary cross entropy with logits"), "sigmoid"),
}


def applied_twice(m: Measurements) -> Answer:
    """Probabilities that a loss takes for scores: it applies softmax or sigmoid to what already went through one."""
    rows = [row for row in m.fact_rows("applied_twice") if text(row, "operation") in _LOSSES]
    if not m.own_loop or not m.n:
        return None
    if not rows:
        return RuledOut("applied-twice", L_("because no loss was seen to take probabilities for scores")) if (
            m.fact("census")
        ) else None  # fmt: skip
    row, step = rows[0], whole(rows[0], "step")
    loss, own = _LOSSES[text(row, "operation")]
    function, module = str(row.get("function")), str(row.get("module") or "")
    proof = Evidence(
        Sentence("operand of {operation} = {function}(x)", operation=text(row, "operation"), function=function),
        {"step": step, "function": function, "loss": loss},
        (
            Sentence(
                "In step {step} {loss} gets the result of a {function} of {module}, and applies a {own} to it.",
                step=step,
                loss=loss,
                function=function,
                module=module,
                own=own,
            )
            if module not in origin.WHOLE
            else Sentence(
                "In step {step} {loss} gets the result of a {function}, and applies a {own} to it.",
                step=step,
                loss=loss,
                function=function,
                own=own,
            )
        ),
    )
    return [
        Finding(
            "applied-twice", "warning",
            Sentence(
                "The loss applies a {own} to the result of a {function}: it takes probabilities for scores",
                own=own, function=function,
            ),
            step, int(m.steps[-1]), (proof,),
            Sentence(
                "Give the loss the scores before the {function} (and apply it for predictions only): of numbers "
                "between 0 and 1 it cannot make a probability near 1, in any precision.",
                function=function,
            ),
            0.9, "torch.nn.CrossEntropyLoss and BCEWithLogitsLoss documentation", module, blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def vanished_values(m: Measurements) -> Answer:
    """Data, targets or weights of samples that a cast to FP16 makes zero."""
    rows = m.fact_rows("lost_values")
    bad = [row for row in rows if row.get("format") == "fp16" and row.get("operation") == "cast"]
    if not m.own_loop or not m.n or not bad:
        return None
    row = max(bad, key=lambda each: number(each, "share"))
    share, largest, module = number(row, "share"), number(row, "largest"), str(row.get("module") or "")
    proof = Evidence(
        L_("fp16(x) = 0 for x != 0, in > 50 % of the elements of a cast"),
        {"share": share, "largest": largest, "step": whole(row, "step"), "operation": str(row.get("operation"))},
        Sentence(
            "In step {number} {share} of the numbers that a cast to FP16 rounds become zero; the largest of them is "
            "{largest:.3g}, and FP16 ends at 6e-8.",
            number=whole(row, "step"), share=percent(share), largest=largest,
        ),
    )  # fmt: skip
    return [
        Finding(
            "vanished-values", "warning", Sentence(
                "{share} of the numbers that are cast to FP16 vanish",
                share=percent(share),
            ),
            whole(row, "step"), int(m.steps[-1]), (proof,),
            L_("Keep these numbers in FP32 or BF16, or scale them (in other units) before the cast."),
            0.85, "Micikevicius et al. 2018, section 3.2", module, certainty="exact", blame=COMPARED,
        )
    ]  # fmt: skip


def wrapped_integers(m: Measurements) -> Answer:
    """Labels, indices or pixels beyond the range of their integer format, which begins again at its other end."""
    rows = m.fact_rows("lost_values")
    bad = [row for row in rows if str(row.get("operation")).startswith("wrapped")]
    if not m.own_loop or not m.n or not bad:
        return None
    row = max(bad, key=lambda each: number(each, "share"))
    share, stored, module = number(row, "share"), str(row.get("format")), str(row.get("module") or "")
    operation, largest = str(row.get("operation")).removeprefix("wrapped "), number(row, "largest")
    proof = Evidence(
        L_("integer result != exact result, in > 1 % of the elements"),
        {"share": share, "largest": largest, "step": whole(row, "step"), "operation": operation},
        Sentence(
            "In step {number} {share} of the results of a {operation} in {stored} are not the exact ones, whose "
            "magnitudes reach {largest:.6g}: they wrap around.",
            number=whole(row, "step"), share=percent(share), operation=operation, stored=stored,
            largest=largest,
        ),
    )  # fmt: skip
    return [
        Finding(
            "wrapped-integers", "warning", Sentence(
                "{share} of the numbers wrap around the range of {stored}",
                share=percent(share), stored=stored,
            ),
            whole(row, "step"), int(m.steps[-1]), (proof,),
            L_("Convert to int64 or FP32 before the operation, and keep labels and indices in int64."), 0.85,
            "torch.Tensor.to documentation", module, certainty="exact", blame=COMPARED,
        )
    ]  # fmt: skip


def coarse_data(m: Measurements) -> Answer:
    """Data or targets whose rounding error is of the size of their spread: large numbers that differ by little."""
    rows = m.fact_rows("lost_values")
    bad = [row for row in rows if row.get("operation") == "coarse cast"]
    by_hand = [row for row in rows if row.get("operation") == _BY_HAND and number(row, "count") >= _FEWEST_STEPS]
    before = [row for row in rows if row.get("operation") == _BEFORE and number(row, "count") >= _FEWEST_STEPS]
    if not m.own_loop or not m.n or not (bad or by_hand or before):
        return None
    if not bad and not by_hand:
        return [_rounded_before(m, max(before, key=lambda each: number(each, "share")))]
    if not bad:
        return [_rounded_by_hand(m, max(by_hand, key=lambda each: number(each, "share")))]
    row = max(bad, key=lambda each: number(each, "share"))
    ratio, stored, step = number(row, "share"), str(row.get("format")).upper(), whole(row, "step")
    proof = Evidence(
        L_("rms(cast(x) - x) / sd(x) > 0.25, of a column"),
        {"ratio": ratio, "largest": number(row, "largest"), "step": step},
        Sentence(
            "In step {step} a cast of data to {stored} (magnitudes up to {number:.6g}) makes an error of "
            "{ratio:.2g} times the standard deviation of a column.",
            step=step, stored=stored, number=number(row, "largest"), ratio=ratio,
        ),
    )  # fmt: skip
    return [
        Finding(
            "coarse-data", "warning", Sentence(
                "A cast to {stored} rounds away most of what data or targets differ by",
                stored=stored,
            ), step,
            int(m.steps[-1]), (proof,),
            L_(
                "Subtract the mean (or the first value, as of time stamps) in the format of the data, divide by the "
                "spread, and cast the result."
            ), 0.85, "Higham 2002, Accuracy and Stability, section 1.7",
            str(row.get("module") or ""), certainty="exact", blame=COMPARED,
        )
    ]  # fmt: skip


def _rounded_before(m: Measurements, row: Mapping[str, Any]) -> Finding:
    """Data that came into the loop with fewer digits than they differ by."""
    stored, step, column = str(row.get("format")).upper(), whole(row, "step"), whole(row, "column")
    proof = Evidence(
        L_("|mean| > 8 sd and half of the distance of two numbers > 0.43 sd, of a column of data that were made before "
           "the step and are all numbers of one format"),
        {"ratio": number(row, "share"), "mean": number(row, "mean"), "spread": number(row, "spread"),
         "levels": number(row, "levels"), "distance": number(row, "distance"), "step": step},
        Sentence(
            "In step {step} all data are numbers of {stored}. Column {column}, around {mean:.6g}, has {levels} "
            "different ones, {distance:.3g} apart, and a standard deviation of {spread:.3g}.",
            step=step, stored=stored, column=column, mean=number(row, "mean"), levels=whole(row, "levels"),
            distance=number(row, "distance"), spread=number(row, "spread"),
        ),
    )  # fmt: skip
    return Finding(
        "coarse-data", "warning",
        Sentence(
            "Data were rounded to {stored} before the loop: column {column} has {levels} different numbers left",
            stored=stored, column=column, levels=whole(row, "levels"),
        ),
        step, int(m.steps[-1]), (proof,),
        L_(
            "Keep the data in FP32 or FP64 until the mean is taken off (or the first value, as of time stamps) and "
            "they are divided by their spread; round the result."
        ), 0.8, "Higham 2002, Accuracy and Stability, section 1.7", str(row.get("module") or ""),
        certainty="estimate", blame=TOO_FEW_DIGITS,
    )  # fmt: skip


def _rounded_by_hand(m: Measurements, row: Mapping[str, Any]) -> Finding:
    """Numbers in FP32 that the loop or a module rounds by itself, by their bits or to a grid."""
    ratio, mean, spread, step = (number(row, key) for key in ("share", "mean", "spread", "step"))
    proof = Evidence(
        L_("rms(round(x) - x) / sd(x) > 0.25 (0.5 of activations) and |mean(x)| > 8 sd(x), of a column"),
        {"ratio": ratio, "mean": mean, "sd": spread, "levels": whole(row, "levels"), "step": int(step)},
        Sentence(
            "In step {step} numbers around {mean:.6g} with a standard deviation of {spread:.3g} are rounded before a "
            "product: the error is {ratio:.2g} times that deviation, and {count:.0f} different numbers are left.",
            step=int(step), mean=mean, spread=spread, ratio=ratio, count=number(row, "levels"),
        ),
    )  # fmt: skip
    return Finding(
        "coarse-data", "warning",
        Sentence(
            "A rounding of numbers around {mean:.6g} takes away most of what they differ by",
            mean=mean,
        ),
        int(step), int(m.steps[-1]), (proof,),
        L_(
            "Subtract the mean, or put a zero point there, before the rounding: digits are spent on the offset, and "
            "none is left for the differences."
        ), 0.8, "Higham 2002, Accuracy and Stability, section 1.7",
        str(row.get("module") or ""), certainty="exact", blame=COMPARED,
    )  # fmt: skip


RULES = (
    Rule("lost-updates", "B", L_("Do updates of averages, targets and merged weights arrive?"), lost_updates),
    Rule("merged-positions", "B", L_("Are positions and indices distinct?"), merged_positions),
    Rule("vanished-values", "A", L_("Do numbers vanish in FP16?"), vanished_values),
    Rule("coarse-data", "B", L_("Have data and targets the digits of their differences?"), coarse_data),
    Rule("wrapped-integers", "A", L_("Do integers stay in their range?"), wrapped_integers),
    Rule("applied-twice", "C", L_("Does the loss get scores, not probabilities?"), applied_twice),
    Rule("broadcast-loss", "C", L_("Does the loss compare each output with its own target?"), broadcast_loss),
)
