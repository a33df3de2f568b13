"""Rules on a trained model: the figures of its scan are the proof; no weights are read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from precgui.events import Severity
from precgui.formats.checkpoints.survey import FIGURES, TensorSurvey
from precgui.formats.checkpoints.tensor import line_length
from precgui.formats.text import grouped
from precgui.runs.diagnosis.analysis import percent
from precgui.runs.diagnosis.findings import (
    BEYOND_RANGE,
    COMPARED,
    UNDECIDED,
    Blame,
    Certainty,
    Diagnosis,
    Evidence,
    Finding,
    RuledOut,
    Undecided,
)
from precgui.runs.models.model_file import ModelScan
from precgui.sanitize import visible_name

Answer = Finding | RuledOut | Undecided | None  # None: the question does not arise in this model
FP16_OVERFLOW = 65520.0  # from here on FP16 rounds to infinity
FP16_FLUSHED = 2.0**-25  # up to here FP16 rounds to zero
_WIDE = 4.0  # times the usual column, or the crest factor of values
_MOST_FLUSHED = 0.01  # of the numbers of a tensor
_VARIED = 64  # different 16-bit codes: fewer are constants, such as the weights of fresh norms
_MOST_NAMED = 32
_SQNR = FIGURES.index("sqnr_db")
_KEYS = re.compile(r"(^|[._])(k_proj|key|wk|attn_k|to_k)(?=[._]|$)")
_VALUES = {"k_proj": "v_proj", "key": "value", "wk": "wv", "attn_k": "attn_v", "to_k": "to_v"}
_CACHE_SCALE = re.compile(r"(^|[._])(k|v|kv)_scale$")
_PACKED = ("weight_packed", "qweight")
_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_SOURCE = "docs/diagnosis.md"


@dataclass(frozen=True)
class ScannedModel:
    """A scan with the look-ups that rules need."""

    scan: ModelScan

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        return {str(row["name"]): row for row in self.scan.tensors}

    @cached_property
    def surveys(self) -> dict[str, TensorSurvey]:
        return {each.name: each for each in self.scan.surveys}

    def sqnr_db(self, each: TensorSurvey, name: str) -> float:
        """Signal to noise of a tensor in a format; NaN where the scan has none."""
        names = [fmt.name for fmt in self.scan.formats]
        return float(each.figures[names.index(name), _SQNR]) if name in names else math.nan


def examine_scan(scan: ModelScan) -> Diagnosis:
    """Findings on a scanned model, the weightiest first, and what is ruled out."""
    model = ScannedModel(scan)
    with np.errstate(all="ignore"):  # a file may hold any number
        answers = [judge(model) for judge in CHECKPOINT_RULES.values()]
    findings = sorted((each for each in answers if isinstance(each, Finding)), key=lambda each: each.order)
    return Diagnosis(
        tuple(findings), tuple(each for each in answers if isinstance(each, RuledOut)),
        tuple(each for each in answers if isinstance(each, Undecided)), 1, f"{grouped(len(scan.surveys))} tensors",
    )  # fmt: skip


def _finding(
    rule: str, severity: Severity, title: str, proof: Evidence, fix: str, tensors: Iterable[str], *,
    blame: Blame = UNDECIDED, certainty: Certainty = "exact", confidence: float = 1.0,
) -> Finding:  # fmt: skip
    names = tuple(tensors)[:_MOST_NAMED]
    return Finding(
        rule, severity, title, 0, 0, (proof,), fix, confidence, _SOURCE, names[0] if names else "", names,
        certainty=certainty, blame=blame, scope="weights",
    )  # fmt: skip


def _others(names: Sequence[str]) -> str:
    """ " and 3 more tensors" behind the first one."""
    more = len(names) - 1
    return "" if more < 1 else " and 1 more tensor" if more == 1 else f" and {grouped(more)} more tensors"


def not_finite(model: ScannedModel) -> Answer:
    """NaN or infinities among the weights."""
    bad = [each for each in model.scan.surveys if each.nonfinite]
    if not bad:
        return RuledOut("nonfinite-weights", f"because none of {len(model.surveys)} tensors holds NaN or Inf")
    first, names = bad[0], [each.name for each in bad]
    proof = Evidence(
        "nan + inf > 0", {"nan": first.nan, "inf": first.pos_inf + first.neg_inf, "tensors": len(bad)},
        f"{visible_name(first.name)} holds {grouped(first.nan)} NaN and {grouped(first.pos_inf + first.neg_inf)} "
        f"infinite numbers of {grouped(first.size)}; {len(bad)} of {len(model.surveys)} tensors hold such.",
    )  # fmt: skip
    return _finding(
        "nonfinite-weights", "error", f"NaN or Inf in {visible_name(first.name)}{_others(names)}", proof,
        "Take an earlier checkpoint, or download the file again and compare its checksum.", names,
    )  # fmt: skip


def outlier_columns(model: ScannedModel) -> Answer:
    """Input channels so wide that whole-number codes with a scale for each row lose to FP8."""
    wide = [each for each in model.scan.surveys if any(peak > _WIDE * each.usual_column for _, peak in each.columns)]
    if not wide:
        return RuledOut("outlier-columns", f"because no column is {_WIDE:.0f} times as wide as the usual one")
    loss = {each.name: model.sqnr_db(each, "e4m3fn/row") - model.sqnr_db(each, "int8/row") for each in wide}
    if all(math.isnan(value) for value in loss.values()):
        return Undecided("outlier-columns", "a scan in int8/row and e4m3fn/row")
    hit = sorted((each for each in wide if loss[each.name] > 0), key=lambda each: -loss[each.name])
    if not hit:
        return RuledOut(
            "outlier-columns", f"because in none of {len(wide)} tensors with wide columns INT8 loses to FP8"
        )
    worst, names = hit[0], [each.name for each in hit]
    columns = [place for place, peak in worst.columns if peak > _WIDE * worst.usual_column]
    ratio = worst.columns[0][1] / worst.usual_column
    int8, fp8 = model.sqnr_db(worst, "int8/row"), model.sqnr_db(worst, "e4m3fn/row")
    listed = ", ".join(map(str, columns[:8]))
    proof = Evidence(
        "peak of a column > 4 x median of all, and SQNR(int8/row) < SQNR(e4m3fn/row)",
        {"columns": listed, "ratio": ratio, "int8_db": int8, "e4m3fn_db": fp8, "tensors": len(hit)},
        f"The widest of the columns {listed} of {visible_name(worst.name)} is {ratio:.3g} times as wide as the usual "
        f"one: INT8 with a scale for each row keeps {int8:.1f} dB, E4M3 {fp8:.1f} dB.",
    )  # fmt: skip
    return _finding(
        "outlier-columns", "warning", f"Wide columns of {visible_name(worst.name)}{_others(names)} spoil INT8", proof,
        "Use e4m3fn with a scale for each row, small groups (int4/32, mxfp8_e4m3), or move the width into the inputs: "
        "precgui quantize --methods smooth,awq.", names, blame=COMPARED,
    )  # fmt: skip


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
    names = sorted((name for name, ratio in ratios.items() if ratio > _WIDE), key=lambda name: -ratios[name])
    if not names:
        name = max(ratios, key=ratios.__getitem__)
        return RuledOut(
            "wide-keys", f"because the peak over the root mean square of {visible_name(name)} is {ratios[name]:.3g} "
            "times that of its values",
        )  # fmt: skip
    worst = model.surveys[names[0]]
    crest = worst.amax / worst.rms
    proof = Evidence(
        "(amax / rms of K) > 4 x (amax / rms of V)", {"amax_over_rms": crest, "ratio": ratios[names[0]]},
        f"The largest weight of {visible_name(names[0])} is {crest:.3g} times its root mean square, "
        f"{ratios[names[0]]:.3g} times what it is for the values.",
    )  # fmt: skip
    return _finding(
        "wide-keys", "warning", f"Keys of {visible_name(names[0])}{_others(names)} are wider than values", proof,
        "Keep keys with a scale for each channel, in e4m3fn, or in 16 bits, and measure both apart: precgui quantize "
        "--round k,v.", names, blame=Blame(needs="precgui quantize --round k,v"), certainty="estimate", confidence=0.7,
    )  # fmt: skip


def _count(each: TensorSurvey, chosen: Callable[[Any], Any]) -> float:
    values, counts = each.values()
    return float(counts[chosen(np.abs(values))].sum())


def beyond_fp16(model: ScannedModel) -> Answer:
    """Finite weights that FP16 turns into infinities."""
    wide = [each for each in model.scan.surveys if each.amax >= FP16_OVERFLOW]
    if not wide:
        top = max((each.amax for each in model.scan.surveys), default=0.0)
        return RuledOut("beyond-fp16", f"because the largest weight is {top:.4g} and FP16 ends at 65504")
    worst, names = max(wide, key=lambda each: each.amax), [each.name for each in wide]
    count = sum(_count(each, lambda sizes: sizes >= FP16_OVERFLOW) for each in wide)
    exact = all(each.is_exact for each in wide)
    proof = Evidence(
        "|w| >= 65520", {"count": count, "amax": worst.amax},
        f"{'' if exact else 'At least '}{grouped(int(count))} finite weights in {len(wide)} tensors become infinite in "
        f"FP16; the largest is {worst.amax:.4g} in {visible_name(worst.name)}.",
    )  # fmt: skip
    return _finding(
        "beyond-fp16", "warning", f"FP16 makes weights of {visible_name(worst.name)}{_others(names)} infinite", proof,
        "Load the model in BF16 or FP32.", names, blame=BEYOND_RANGE, certainty="exact" if exact else "lower bound",
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
            "flushed-in-fp16", f"because FP16 makes at most {percent(shares.get(worst, 0.0))} of a tensor zero"
        )
    names = [name for name, share in shares.items() if share > _MOST_FLUSHED]
    proof = Evidence(
        "0 < |w| <= 2^-25", {"share": shares[worst], "tensors": len(names)},
        f"FP16 makes {percent(shares[worst])} of {visible_name(worst)} zero, and more than {percent(_MOST_FLUSHED)} of "
        f"{len(names)} tensors.",
    )  # fmt: skip
    return _finding(
        "flushed-in-fp16", "warning", f"FP16 makes weights of {visible_name(worst)}{_others(names)} zero", proof,
        "Load the model in BF16 or FP32, or in FP8 with scales.", sorted(names, key=lambda name: -shares[name]),
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
        return RuledOut("stored-twice", f"because no two of {len(model.surveys)} tensors have the same numbers")
    extra = sum(int(model.rows[each.name]["bytes"]) for group in same for each in group[1:])
    names = [each.name for group in same for each in group]
    first = ", ".join(visible_name(each.name) for each in same[0][:4])
    proof = Evidence(
        "equal shape, counts of codes, mean, root mean square, widest columns", {"bytes": extra, "groups": len(same)},
        f"{first} hold each of {grouped(same[0][0].codes.size)} codes equally often; {grouped(extra)} bytes are stored "
        "more than once.",
    )  # fmt: skip
    return _finding(
        "stored-twice", "info", f"{first} are one tensor stored {len(same[0])} times", proof,
        "Tie them and store one; a plan has to give them one format.", names, certainty="estimate", confidence=0.95,
    )  # fmt: skip


def wider_than_values(model: ScannedModel) -> Answer:
    """FP32 tensors all of whose numbers are BF16 numbers."""
    wide = [each for each in model.scan.surveys if model.rows[each.name]["dtype"] in ("fp32", "fp64")]
    if not wide:
        return None
    half = [each for each in wide if each.is_exact and each.codes.size >= _VARIED]
    if not half:
        return RuledOut("wider-than-values", f"because none of {len(wide)} FP32 tensors has BF16 numbers only")
    names = [each.name for each in sorted(half, key=lambda each: -each.size)]
    saved = sum(int(model.rows[each.name]["bytes"]) - 2 * each.size for each in half)
    proof = Evidence(
        "the low 16 bits of every number are 0", {"tensors": len(half), "of": len(wide), "bytes": saved},
        f"The low 16 bits of all numbers of {len(half)} of {len(wide)} FP32 tensors are zero; BF16 stores the same "
        f"numbers in {grouped(saved)} bytes less.",
    )  # fmt: skip
    return _finding(
        "wider-than-values", "info", f"FP32 holds BF16 numbers in {visible_name(names[0])}{_others(names)}", proof,
        "Save them in BF16: nothing is lost.", names,
    )  # fmt: skip


def odd_groups(model: ScannedModel) -> Answer:
    """Matrices whose rows are no multiple of the group of a scanned format."""
    misfits: dict[str, list[str]] = {}
    matrices = [name for name in model.surveys if len(model.rows[name]["shape"]) > 1]
    for fmt in model.scan.formats:
        for name in matrices:
            if fmt.misfit(line_length(tuple(model.rows[name]["shape"]))):
                misfits.setdefault(fmt.name, []).append(name)
    if not misfits:
        groups = sum(fmt.whole_groups for fmt in model.scan.formats)
        return RuledOut("odd-groups", f"because all {len(matrices)} matrices fit the groups of {groups} formats")
    names = list(dict.fromkeys(name for group in misfits.values() for name in group))
    line = line_length(tuple(model.rows[names[0]]["shape"]))
    proof = Evidence(
        "inputs modulo group > 0", {"tensors": len(names), "inputs": line, "formats": ", ".join(misfits)},
        f"Rows of {visible_name(names[0])} have {line} numbers; {len(names)} of {len(matrices)} matrices do not fit "
        f"{', '.join(misfits)}.",
    )  # fmt: skip
    return _finding(
        "odd-groups", "info",
        f"Groups of {', '.join(misfits)} do not divide rows of {visible_name(names[0])}{_others(names)}", proof,
        "Choose a group that divides the inputs, or leave these layers as they are.", names,
    )  # fmt: skip


def uncalibrated_scales(model: ScannedModel) -> Answer:
    """Scales of a key and value cache that are all 1: nothing was calibrated."""
    scales = [each for name, each in model.surveys.items() if _CACHE_SCALE.search(name)]
    if not scales:
        return None
    if any(not each.amax == each.amin_nonzero == 1.0 or each.zeros for each in scales):
        return RuledOut("uncalibrated-scales", f"because {len(scales)} scales of the cache are not all 1")
    names = [each.name for each in scales]
    proof = Evidence("all scales = 1", {"scales": len(names)}, f"All {len(names)} scales of the cache are exactly 1.")
    return _finding(
        "uncalibrated-scales", "warning", "The scales of keys and values were never calibrated", proof,
        "Calibrate them on data of yours with the library that wrote the file, or leave the cache in 16 bits.", names,
    )  # fmt: skip


def missing_scales(model: ScannedModel) -> Answer:
    """Packed codes whose scales are not in the file."""
    packed = [name for name in model.rows if name.rpartition(".")[2] in _PACKED]
    stems = {name: name.rpartition(".")[0] for name in packed}
    lost = [
        name
        for name, stem in stems.items()
        if not any(f"{stem}.{part}" in model.rows for part in ("weight_scale", "scales"))
    ]
    if not packed or not lost:
        return None
    proof = Evidence(
        "packed codes without weight_scale or scales", {"tensors": len(lost), "packed": len(packed)},
        f"{len(lost)} of {len(packed)} packed tensors, first {visible_name(lost[0])}, have no scales beside them.",
    )  # fmt: skip
    return _finding(
        "missing-scales", "error", f"Scales of {visible_name(lost[0])}{_others(lost)} are missing", proof,
        "Download all files of the model, or quantise it again.", lost,
    )  # fmt: skip


def unequal_parts(model: ScannedModel) -> Answer:
    """Projections that servers compute as one product, in unequal formats."""
    unequal, groups = [], 0
    for name in model.rows:
        for first, *rest in _FUSED:
            if first not in name.split("."):
                continue
            family = [name, *(other for part in rest if (other := name.replace(first, part)) in model.rows)]
            groups += len(family) > 1
            kinds = [model.rows[each]["dtype"] for each in family]
            if len(set(kinds)) > 1:
                unequal.append((family, kinds))
    if not groups:
        return None
    if not unequal:
        return RuledOut("unequal-parts", f"because all {groups} groups of fused projections have one format each")
    family, kinds = unequal[0]
    listed = ", ".join(f"{visible_name(name)} in {kind}" for name, kind in zip(family, kinds, strict=True))
    proof = Evidence(
        "formats of q, k, v or of gate, up differ", {"groups": len(unequal), "of": groups},
        f"{listed}; {len(unequal)} of {groups} such groups are unequal.",
    )  # fmt: skip
    return _finding(
        "unequal-parts", "warning", f"{visible_name(family[0])} and its siblings have unequal formats", proof,
        "Give them one format: vLLM computes them as one product. precgui quantize --as vllm plans so.", family,
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
