"""Group E: why a precision saved no time or memory, from the profile stored next to the run.

A run without a profile is not asked these questions: it takes `precgui profile RUN.h5` to answer them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from precgui.events import Severity
from precgui.planner.ledger import RESIDUAL_LIMIT, Ledger, mib
from precgui.runs.diagnosis.findings import Blame, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.speedup.profile_file import ledgers_of, profile_of
from precgui.runs.speedup.waterfall import Factor, Waterfall, waterfall
from precgui.sentences import L_, Sentence, together

_COSTLY = 0.10  # of the step: less is not worth a finding
_SAVED = 0.95  # times the memory of FP32: above this next to nothing is saved
_SLOW_CONFIDENCE, _CLOSED_CONFIDENCE = 0.6, 0.85
_FORMULAS = {
    "peak": L_("(g - G) / t > 0.10 where r < 1, g and G the time of products, r the ratio of peaks"),
    "products": L_("(g - G / r) / t > 0.10, g and G the time of products, r the ratio of peaks"),
    "alignment": L_("time that padding saves / t > 0.10, tried on the device"),
    "others": L_("(o - O) / t > 0.10, o and O the time of operations without products"),
    "casts": L_("time of casts / t > 0.10"),
    "gaps": L_("time between operations and of starting them / t > 0.10"),
    "data": L_("time of waiting for the next batch / t > 0.10"),
}
_TITLES = {
    "peak": L_("The format is slower than FP32 on this device"),
    "products": L_("Products gain less than the format allows"),
    "alignment": L_("Sizes of layers do not fit the kernels"),
    "others": L_("Operations without products became slower"),
    "casts": L_("Conversions between formats take much of the step"),
    "gaps": L_("The device waits for work"),
    "data": L_("The step waits for data"),
}
_NAMES = {
    "peak": "slow-format", "products": "products-below-peak", "alignment": "odd-sizes", "others": "slower-operations",
    "casts": "cast-tax", "gaps": "launch-bound", "data": "data-wait",
}  # fmt: skip
_OF_PRECISION = ("peak", "others", "casts")  # the others slow FP32 down as well


def _profile(m: Measurements) -> dict[str, Any] | None:
    """The kept profile, when it is of the precision that the run has."""
    document = profile_of(m.run.path)
    return document if document is not None and document["precision"] == m.precision else None


def _costly(m: Measurements, key: str) -> Answer:
    """Whether one factor of the speed-up's waterfall costs much of a step."""
    document = _profile(m)
    if document is None or m.precision == "fp32":
        return None
    account = waterfall(document)
    factor = next(each for each in account.factors if each.key == key)
    if factor.cost <= _COSTLY:
        return RuledOut(_NAMES[key], Sentence("because it costs {cost:.1%} of a step", cost=factor.cost))
    confidence = _CLOSED_CONFIDENCE if account.closes else _SLOW_CONFIDENCE
    return [_finding(m, factor, account, confidence)]


def _finding(m: Measurements, factor: Factor, account: Waterfall, confidence: float) -> Finding:
    severity: Severity = "warning" if account.observed < 1.5 else "info"
    low, high = account.interval or (math.nan, math.nan)
    values = {"cost": factor.cost, "factor": factor.value, "speedup": account.observed}
    values |= {"speedup_low": low, "speedup_high": high} if account.interval else {}
    text = Sentence(
        "{detail} That is {cost:.0%} of the step; the run is {speed_text} times as fast as FP32.",
        detail=factor.detail,
        cost=factor.cost,
        speed_text=account.speed_text,
    )
    text = together(text, Sentence("{caveat}.", caveat=account.caveat) if account.caveat else "")
    return Finding(
        _NAMES[factor.key], severity, _TITLES[factor.key], 1, m.n, (Evidence(_FORMULAS[factor.key], values, text),),
        factor.remedy, confidence, "Amdahl 1967; docs/payoff.md",
        config_change=dict(factor.offered), certainty="estimate",
        blame=Blame(factor.key in _OF_PRECISION, L_("times of the same step in both precisions were compared")),
    )  # fmt: skip


def _ledgers(m: Measurements) -> tuple[Mapping[str, Any], dict[str, Ledger]] | None:
    document = _profile(m)
    if document is None:
        return None
    return document["memory"], ledgers_of(document)


def no_memory_saved(m: Measurements) -> Answer:
    """The precision saves next to nothing of FP32's peak."""
    known = _ledgers(m)
    if known is None or not {"fp32", "predicted"} <= known[1].keys():
        return None
    fp32, own = known[1]["fp32"], known[1]["predicted"]
    ratio = own.total_bytes / max(fp32.total_bytes, 1)
    if ratio <= _SAVED:
        return RuledOut(
            "no-memory-saved",
            Sentence(
                "because the peak is {ratio:.2f} times that of FP32",
                ratio=ratio,
            ),
        )
    states = sum(own.parts[part] for part in ("weights", "gradients", "optimizer", "master", "cast_cache"))
    share = states / max(own.total_bytes, 1)
    proof = Evidence(
        L_("peak / peak of FP32 > 0.95"), {"ratio": ratio, "share_of_states": share},
        Sentence(
            "{difference} {share:.0%} of the peak, {states}, are weights, gradients and state of the optimizer, "
            "which autocast does not shrink.",
            difference=known[0].get("difference", ""), share=share, states=mib(states),
        ),
    )  # fmt: skip
    fix = L_(
        "A larger batch uses what is saved of activations; states shrink by 16-bit weights, an 8-bit optimizer or ZeRO."
    )
    return [
        Finding("no-memory-saved", "info", L_("The precision saves next to no memory"), 1, m.n, (proof,), fix, 0.9,
                "Rajbhandari et al. 2020", certainty="estimate",
                blame=Blame(False, L_("the parts of the memory are counted")))
    ]  # fmt: skip


def ledger_residual(m: Measurements) -> Answer:
    """A measured peak of memory that differs from the one predicted from shapes."""
    known = _ledgers(m)
    if known is None or not {"predicted", "measured"} <= known[1].keys():
        return None
    predicted, measured = known[1]["predicted"], known[1]["measured"]
    miss = (measured.total_bytes - predicted.total_bytes) / max(measured.total_bytes, 1)
    if abs(miss) <= RESIDUAL_LIMIT:
        return RuledOut("ledger-residual", Sentence("because the prediction is off by {miss:+.1%}", miss=miss))
    proof = Evidence(
        "|measured - predicted| / measured > 0.10",
        {"measured_bytes": measured.total_bytes, "predicted_bytes": predicted.total_bytes, "miss": miss},
        Sentence(
            "Measured {total_bytes}, predicted from shapes {total_bytes2}: {miss:+.0%}.",
            total_bytes=mib(measured.total_bytes),
            total_bytes2=mib(predicted.total_bytes),
            miss=miss,
        ),
    )
    fix = L_("Look in Inspect, Memory, for the part that differs: buffers of kernels, kept tensors, fragmentation.")
    return [
        Finding("ledger-residual", "info", L_("Part of the memory is not explained by shapes"), 1, m.n, (proof,), fix,
                0.9, "docs/payoff.md", certainty="estimate",
                blame=Blame(needs=L_("precgui profile RUN.h5 on a quiet device")))
    ]  # fmt: skip


RULES = (
    *(Rule(_NAMES[key], "E", f"{title}?", partial(_costly, key=key)) for key, title in _TITLES.items()),
    Rule("no-memory-saved", "E", L_("Does the precision save memory?"), no_memory_saved),
    Rule("ledger-residual", "E", L_("Is the peak what the shapes predict?"), ledger_residual),
)
