"""Data, positions and indices that a format cannot tell apart, or that leave its range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precgui.runs.diagnosis.analysis import percent
from precgui.runs.diagnosis.findings import COMPARED, TOO_FEW_DIGITS, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.number_formats import DIGITS, half_ulp
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, text, whole
from precgui.sentences import L_, Sentence, together

_FEWEST_STEPS = 2  # in which a rounding was seen
_WHOLE = DIGITS | {"fp32": 24, "fp64": 53}  # whole numbers up to 2 to this power are distinct
_MERGED = 0.25  # share of whole numbers that are no longer distinct
_RADIANS = 0.25
_BY_HAND, _BEFORE, _SCORES, _BOUNDED = "coarse rounding", "short_data", "coarse_scores", "bounded_sum"


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


def vanished_values(m: Measurements) -> Answer:
    """Data, targets or weights of samples that a cast to FP16 makes zero."""
    rows = m.fact_rows("lost_values")
    bad = [row for row in rows if row.get("format") == "fp16" and row.get("operation") == "cast"]
    bounded = [row for row in rows if row.get("operation") == _BOUNDED and number(row, "count") >= _FEWEST_STEPS]
    if not m.own_loop or not m.n or not (bad or bounded):
        return None
    if not bad:
        return [_bounded_sum(m, max(bounded, key=lambda each: number(each, "share")))]
    row = max(bad, key=lambda each: number(each, "share"))
    share, largest, module = number(row, "share"), number(row, "largest"), str(row.get("module") or "")
    proof = Evidence(
        L_("fp16(x) = 0 for x != 0, in > 50 % of the elements of a cast whose largest is below 2^-14"),
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


def _bounded_sum(m: Measurements, row: Mapping[str, Any]) -> Finding:
    """Sums of exponentials that are 0 in FP16, in whose place a lower bound or an epsilon is used."""
    share, step, stored = number(row, "share"), whole(row, "step"), str(row.get("format")).upper()
    made = str(row.get("made_by"))
    proof = Evidence(
        L_("sum of exponentials = 0 in 16 bits, in FP32 above the lower bound that takes its place, in > 10 %"),
        {"share": share, "step": step, "operation": made},
        Sentence(
            "In step {step} {share} of the sums of the results of {operation} in {stored} are 0 and are raised to a "
            "lower bound before they are divided by, or their logarithm is taken; in FP32 they are more than twice "
            "that bound.",
            step=step, share=percent(share), operation=made, stored=stored,
        ),
    )  # fmt: skip
    return Finding(
        "vanished-values", "warning",
        Sentence(
            "{share} of the sums of exponentials vanish in {stored}, and a lower bound is taken for them",
            share=percent(share), stored=stored,
        ),
        step, int(m.steps[-1]), (proof,),
        L_(
            "Subtract the largest argument of each row before the exponential (torch.logsumexp, softmax), or compute "
            "exponentials and their sums in FP32: FP16 makes exp(x) zero below x = -17.3."
        ), 0.85, "Higham 2002, Accuracy and Stability, section 2.1", str(row.get("module") or ""),
        certainty="exact", blame=COMPARED,
    )  # fmt: skip


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
    scores = [row for row in rows if row.get("operation") == _SCORES and number(row, "count") >= _FEWEST_STEPS]
    if not m.own_loop or not m.n or not (bad or by_hand or before or scores):
        return None
    if scores:
        return [_of_scores(m, max(scores, key=lambda each: number(each, "share")))]
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


def _of_scores(m: Measurements, row: Mapping[str, Any]) -> Finding:
    """Returns, fitness or losses of samples that a rounding makes alike before they are compared with each other."""
    ratio, mean, spread, step = (number(row, key) for key in ("share", "mean", "spread", "step"))
    stored = str(row.get("format")).upper()
    proof = Evidence(
        L_("rms(round(x) - x) / sd(x) > 0.25 and |mean(x)| > 8 sd(x), of numbers that are then sorted, subtracted from "
           "each other or divided by their spread"),
        {"ratio": ratio, "mean": mean, "sd": spread, "levels": whole(row, "levels"), "step": int(step)},
        Sentence(
            "In step {step} scores around {mean:.6g} with a standard deviation of {spread:.3g} are rounded to {stored} "
            "and then compared with each other: the error is {ratio:.2g} times that deviation, and {count:.0f} "
            "different numbers are left.",
            step=int(step), mean=mean, spread=spread, stored=stored, ratio=ratio, count=number(row, "levels"),
        ),
    )  # fmt: skip
    return Finding(
        "coarse-data", "warning",
        Sentence("A rounding to {stored} takes away most of what scores differ by, before they are compared",
                 stored=stored),
        int(step), int(m.steps[-1]), (proof,),
        L_(
            "Keep returns, rewards and losses of samples in FP32 until they are compared, or subtract their mean "
            "before the rounding."
        ), 0.85, "Higham 2002, Accuracy and Stability, section 1.7",
        str(row.get("module") or ""), certainty="exact", blame=COMPARED,
    )  # fmt: skip


RULES = (
    Rule("merged-positions", "B", L_("Are positions and indices distinct?"), merged_positions),
    Rule("vanished-values", "A", L_("Do numbers vanish in FP16?"), vanished_values),
    Rule("coarse-data", "B", L_("Have data and targets the digits of their differences?"), coarse_data),
    Rule("wrapped-integers", "A", L_("Do integers stay in their range?"), wrapped_integers),
)
