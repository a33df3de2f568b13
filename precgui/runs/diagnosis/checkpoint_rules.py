"""Rules on a trained model: the figures of its scan are the proof; no weights are read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from precgui.formats.checkpoints.survey import WIDE, TensorSurvey
from precgui.formats.checkpoints.tensor import line_length
from precgui.formats.text import grouped
from precgui.runs.diagnosis.analysis import percent
from precgui.runs.diagnosis.effect_rules import EFFECT_RULES
from precgui.runs.diagnosis.findings import (
    BEYOND_RANGE,
    COMPARED,
    Blame,
    Diagnosis,
    Evidence,
    Finding,
    RuledOut,
    Undecided,
)
from precgui.runs.diagnosis.scanned_model import Answer, ScannedModel, and_others, model_finding
from precgui.runs.diagnosis.storage_rules import missing_scales, odd_groups, uncalibrated_scales, unequal_parts
from precgui.runs.models.effects import ModelEffects
from precgui.runs.models.model_file import ModelScan
from precgui.sanitize import visible_name
from precgui.sentences import L_, Sentence, together

FP16_OVERFLOW = 65520.0  # from here on FP16 rounds to infinity
FP16_FLUSHED = 2.0**-25  # up to here FP16 rounds to zero
_WIDE_KEYS = 4.0  # times the crest factor of values
_MOST_FLUSHED = 0.01  # of the numbers of a tensor
_VARIED = 64  # different 16-bit codes: fewer are constants, such as the weights of fresh norms
_KEYS = re.compile(r"(^|[._])(k_proj|key|wk|attn_k|to_k)(?=[._]|$)")
_VALUES = {"k_proj": "v_proj", "key": "value", "wk": "wv", "attn_k": "attn_v", "to_k": "to_v"}


def examine_scan(scan: ModelScan, effects: ModelEffects | None = None) -> Diagnosis:
    """Findings on a scanned model, the weightiest first, and what is ruled out; `effects`: what was measured of it."""
    model = ScannedModel(scan, effects)
    with np.errstate(all="ignore"):  # a file may hold any number
        answers = [judge(model) for judge in (CHECKPOINT_RULES | EFFECT_RULES).values()]
    findings = sorted((each for each in answers if isinstance(each, Finding)), key=lambda each: each.order)
    return Diagnosis(
        tuple(findings), tuple(each for each in answers if isinstance(each, RuledOut)),
        tuple(each for each in answers if isinstance(each, Undecided)), 1, Sentence(
            "{survey_count} tensors",
            survey_count=grouped(len(scan.surveys)),
        ),
    )  # fmt: skip


def not_finite(model: ScannedModel) -> Answer:
    """NaN or infinities among the weights."""
    bad = [each for each in model.scan.surveys if each.nonfinite]
    if not bad:
        return RuledOut(
            "nonfinite-weights",
            Sentence(
                "because none of {survey_count} tensors holds NaN or Inf",
                survey_count=len(model.surveys),
            ),
        )
    first, names = bad[0], [each.name for each in bad]
    proof = Evidence(
        "nan + inf > 0", {"nan": first.nan, "inf": first.pos_inf + first.neg_inf, "tensors": len(bad)},
        Sentence(
            "{name} holds {nan} NaN and {pos_inf} infinite numbers of {size}; {bad_count} of {survey_count} tensors "
            "hold such.",
            name=visible_name(first.name), nan=grouped(first.nan), pos_inf=grouped(first.pos_inf + first.neg_inf),
            size=grouped(first.size), bad_count=len(bad), survey_count=len(model.surveys),
        ),
    )  # fmt: skip
    return model_finding(
        "nonfinite-weights", "error", Sentence(
            "NaN or Inf in {name}{names}",
            name=visible_name(first.name), names=and_others(names),
        ), proof,
        L_("Take an earlier checkpoint, or download the file again and compare its checksum."), names,
    )  # fmt: skip


def outlier_columns(model: ScannedModel) -> Answer:
    """Input channels so wide that whole-number codes with a scale for each row lose to FP8."""
    wide = [each for each in model.scan.surveys if each.wide_columns]
    if not wide:
        return RuledOut(
            "outlier-columns",
            Sentence(
                "because no column is {wide:.0f} times as wide as the usual one",
                wide=WIDE,
            ),
        )
    loss = {each.name: model.sqnr_db(each, "e4m3fn/row") - model.sqnr_db(each, "int8/row") for each in wide}
    if all(math.isnan(value) for value in loss.values()):
        return Undecided("outlier-columns", L_("a scan in int8/row and e4m3fn/row"))
    hit = sorted((each for each in wide if loss[each.name] > 0), key=lambda each: -loss[each.name])
    if not hit:
        return RuledOut(
            "outlier-columns",
            Sentence(
                "because in none of {wide_count} tensors with wide columns INT8 loses to FP8",
                wide_count=len(wide),
            ),
        )
    worst, names = hit[0], [each.name for each in hit]
    columns = worst.wide_columns
    ratio = worst.columns[0][1] / worst.usual_column
    int8, fp8 = model.sqnr_db(worst, "int8/row"), model.sqnr_db(worst, "e4m3fn/row")
    listed = ", ".join(map(str, columns[:8]))
    proof = Evidence(
        L_("peak of a column > 4 x median of all, and SQNR(int8/row) < SQNR(e4m3fn/row)"),
        {"columns": listed, "ratio": ratio, "int8_db": int8, "e4m3fn_db": fp8, "tensors": len(hit),
         **({} if math.isnan(worst.wide_share) else {"share": worst.wide_share})},
        together(Sentence(
            "The widest of the columns {listed} of {name} is {ratio:.3g} times as wide as the usual one: INT8 with "
            "a scale for each row keeps {int8:.1f} dB, E4M3 {fp8:.1f} dB.",
            listed=listed, name=visible_name(worst.name), ratio=ratio, int8=int8, fp8=fp8,
        ), *_share_of_error(model, worst)),
    )  # fmt: skip
    return model_finding(
        "outlier-columns", "warning", Sentence(
            "Wide columns of {name}{names} spoil INT8",
            name=visible_name(worst.name), names=and_others(names),
        ), proof,
        L_(
            "Use e4m3fn with a scale for each row, small groups (int4/32, mxfp8_e4m3), or move the width into the "
            "inputs: precgui quantize --methods smooth,awq."
        ), names, blame=COMPARED,
    )  # fmt: skip


def _share_of_error(model: ScannedModel, worst: TensorSurvey) -> list[Sentence]:
    """The share of the error in INT8 that the wide columns make; empty for scans that did not look."""
    if math.isnan(worst.wide_share):
        return []
    return [
        Sentence(
            "{columns} of {inputs} columns make {share} of the error in INT8.",
            columns=len(worst.wide_columns), inputs=line_length(tuple(model.rows[worst.name]["shape"])),
            share=percent(worst.wide_share),
        )
    ]  # fmt: skip


def wide_keys(model: ScannedModel) -> Answer:
    """Key projections with a channel far wider than those of the values: a cache in 8 or 4 bits loses it."""
    ratios: dict[str, float] = {}
    for name, key in model.surveys.items():
        match = _KEYS.search(name)
        value = (
            model.surveys.get(f"{name[: match.start(2)]}{_VALUES[match[2]]}{name[match.end(2) :]}") if match else None
        )
        if value is not None and key.rms and value.rms and value.amax:
            ratios[name] = (key.amax / key.rms) / (value.amax / value.rms)
    if not ratios:
        return None
    names = sorted((name for name, ratio in ratios.items() if ratio > _WIDE_KEYS), key=lambda name: -ratios[name])
    if not names:
        name = max(ratios, key=ratios.__getitem__)
        return RuledOut(
            "wide-keys", Sentence(
                "because the peak over the root mean square of {name} is {ratio:.3g} times that of its values",
                name=visible_name(name), ratio=ratios[name],
            ),
        )  # fmt: skip
    worst = model.surveys[names[0]]
    crest = worst.amax / worst.rms
    proof = Evidence(
        L_("(amax / rms of K) > 4 x (amax / rms of V)"), {"amax_over_rms": crest, "ratio": ratios[names[0]]},
        Sentence(
            "The largest weight of {name} is {crest:.3g} times its root mean square, {ratio:.3g} times what it is "
            "for the values.",
            name=visible_name(names[0]), crest=crest, ratio=ratios[names[0]],
        ),
    )  # fmt: skip
    return model_finding(
        "wide-keys", "warning", Sentence(
            "Keys of {name}{names} are wider than values",
            name=visible_name(names[0]), names=and_others(names),
        ), proof,
        L_(
            "Keep keys with a scale for each channel, in e4m3fn, or in 16 bits, and measure both apart: precgui "
            "quantize --round k,v."
        ), names, blame=Blame(needs=L_("precgui quantize --round k,v")), certainty="estimate", confidence=0.7,
    )  # fmt: skip


def _count(each: TensorSurvey, chosen: Callable[[Any], Any]) -> float:
    values, counts = each.values()
    return float(counts[chosen(np.abs(values))].sum())


def beyond_fp16(model: ScannedModel) -> Answer:
    """Finite weights that FP16 turns into infinities."""
    wide = [each for each in model.scan.surveys if each.amax >= FP16_OVERFLOW]
    if not wide:
        top = max((each.amax for each in model.scan.surveys), default=0.0)
        return RuledOut(
            "beyond-fp16",
            Sentence(
                "because the largest weight is {top:.4g} and FP16 ends at 65504",
                top=top,
            ),
        )
    worst, names = max(wide, key=lambda each: each.amax), [each.name for each in wide]
    count = sum(_count(each, lambda sizes: sizes >= FP16_OVERFLOW) for each in wide)
    exact = all(each.is_exact for each in wide)
    proof = Evidence(
        "|w| >= 65520", {"count": count, "amax": worst.amax},
        (
            Sentence(
                "{count} finite weights in {wide_count} tensors become infinite in FP16; the largest is {amax:.4g} "
                "in {name}.",
                count=grouped(int(count)), wide_count=len(wide), amax=worst.amax, name=visible_name(worst.name),
            )
            if exact
            else Sentence(
                "At least {count} finite weights in {wide_count} tensors become infinite in FP16; the largest is "
                "{amax:.4g} in {name}.",
                count=grouped(int(count)), wide_count=len(wide), amax=worst.amax, name=visible_name(worst.name),
            )
        ),
    )  # fmt: skip
    return model_finding(
        "beyond-fp16", "warning", Sentence(
            "FP16 makes weights of {name}{names} infinite",
            name=visible_name(worst.name), names=and_others(names),
        ), proof,
        L_("Load the model in BF16 or FP32."), names, blame=BEYOND_RANGE, certainty="exact" if exact else "lower bound",
    )  # fmt: skip


def flushed(model: ScannedModel) -> Answer:
    """Weights so small that FP16 makes them zero."""
    shares = {
        each.name: _count(each, lambda sizes: (sizes > 0) & (sizes <= FP16_FLUSHED)) / max(each.size, 1)
        for each in model.scan.surveys
    }
    worst = max(shares, key=shares.__getitem__, default="")
    if not worst or shares[worst] <= _MOST_FLUSHED:
        return RuledOut(
            "flushed-in-fp16",
            Sentence(
                "because FP16 makes at most {worst} of a tensor zero",
                worst=percent(shares.get(worst, 0.0)),
            ),
        )
    names = [name for name, share in shares.items() if share > _MOST_FLUSHED]
    proof = Evidence(
        "0 < |w| <= 2^-25", {"share": shares[worst], "tensors": len(names)},
        Sentence(
            "FP16 makes {share} of {worst} zero, and more than {most_flushed} of {name_count} tensors.",
            share=percent(shares[worst]), worst=visible_name(worst), most_flushed=percent(_MOST_FLUSHED),
            name_count=len(names),
        ),
    )  # fmt: skip
    return model_finding(
        "flushed-in-fp16", "warning", Sentence(
            "FP16 makes weights of {worst}{names} zero",
            worst=visible_name(worst), names=and_others(names),
        ), proof,
        L_("Load the model in BF16 or FP32, or in FP8 with scales."), sorted(names, key=lambda name: -shares[name]),
        blame=BEYOND_RANGE,
    )  # fmt: skip


def duplicates(model: ScannedModel) -> Answer:
    """Tensors whose counts of codes, sums and widest columns are the same: tied weights that are stored twice."""
    alike: dict[Any, list[TensorSurvey]] = {}
    for each in model.scan.surveys:
        if each.codes.size >= _VARIED:
            shape = tuple(model.rows[each.name]["shape"])
            key = shape, each.mean, each.rms, each.columns, each.codes.tobytes(), each.counts.tobytes()
            alike.setdefault(key, []).append(each)
    same = [group for group in alike.values() if len(group) > 1]
    if not same:
        return RuledOut(
            "stored-twice",
            Sentence(
                "because no two of {survey_count} tensors have the same numbers",
                survey_count=len(model.surveys),
            ),
        )
    extra = sum(int(model.rows[each.name]["bytes"]) for group in same for each in group[1:])
    names = [each.name for group in same for each in group]
    first = ", ".join(visible_name(each.name) for each in same[0][:4])
    proof = Evidence(
        L_("equal shape, counts of codes, mean, root mean square, widest columns"),
        {"bytes": extra, "groups": len(same)},
        Sentence(
            "{first} hold each of {size} codes equally often; {extra} bytes are stored more than once.",
            first=first,
            size=grouped(same[0][0].codes.size),
            extra=grouped(extra),
        ),
    )
    return model_finding(
        "stored-twice", "info", Sentence(
            "{first} are one tensor stored {same_count} times",
            first=first, same_count=len(same[0]),
        ), proof,
        L_("Tie them and store one; a plan has to give them one format."), names, certainty="estimate", confidence=0.95,
    )  # fmt: skip


def wider_than_values(model: ScannedModel) -> Answer:
    """FP32 tensors all of whose numbers are BF16 numbers."""
    wide = [each for each in model.scan.surveys if model.rows[each.name]["dtype"] in ("fp32", "fp64")]
    if not wide:
        return None
    half = [each for each in wide if each.is_exact and each.codes.size >= _VARIED]
    if not half:
        return RuledOut(
            "wider-than-values",
            Sentence(
                "because none of {wide_count} FP32 tensors has BF16 numbers only",
                wide_count=len(wide),
            ),
        )
    names = [each.name for each in sorted(half, key=lambda each: -each.size)]
    saved = sum(int(model.rows[each.name]["bytes"]) - 2 * each.size for each in half)
    proof = Evidence(
        L_("the low 16 bits of every number are 0"), {"tensors": len(half), "of": len(wide), "bytes": saved},
        Sentence(
            "The low 16 bits of all numbers of {half_count} of {wide_count} FP32 tensors are zero; BF16 stores the "
            "same numbers in {saved} bytes less.",
            half_count=len(half), wide_count=len(wide), saved=grouped(saved),
        ),
    )  # fmt: skip
    return model_finding(
        "wider-than-values", "info", Sentence(
            "FP32 holds BF16 numbers in {name}{names}",
            name=visible_name(names[0]), names=and_others(names),
        ), proof,
        L_("Save them in BF16: nothing is lost."), names,
    )  # fmt: skip


CHECKPOINT_RULES: dict[str, Callable[[ScannedModel], Answer]] = {
    "nonfinite-weights": not_finite,
    "missing-scales": missing_scales,
    "outlier-columns": outlier_columns,
    "wide-keys": wide_keys,
    "beyond-fp16": beyond_fp16,
    "flushed-in-fp16": flushed,
    "uncalibrated-scales": uncalibrated_scales,
    "unequal-parts": unequal_parts,
    "stored-twice": duplicates,
    "wider-than-values": wider_than_values,
    "odd-groups": odd_groups,
}
