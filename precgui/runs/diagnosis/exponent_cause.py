"""An exponential of learned numbers as the cause of a step that is not finite: nothing bounds what goes into it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from precgui.runs.diagnosis.analysis import update_ratios
from precgui.runs.diagnosis.blame import blame_of_symptom
from precgui.runs.diagnosis.cause import Cause
from precgui.runs.diagnosis.findings import Blame, Evidence
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rate_cause import HUGE_UPDATE
from precgui.runs.recorded_facts import number, text
from precgui.sentences import L_, Sentence

OVERFLOW = "exponential-overflow"
_LARGEST = {"fp16": 65504.0, "bf16": 3.39e38, "fp32": 3.4028e38, "fp64": 1.797e308}
_NEARLY = 0.92  # of the logarithm of the largest number: its products with other numbers overflow
_IN_FP32 = Blame(False, L_("the exponential of the same numbers is beyond the range of FP32, too"))


def of_exponent(m: Measurements, place: int) -> Cause | None:
    """The output of a module, or a parameter, goes into an exponential unbounded, and was beyond its range.

    Not after an update as large as a third of the weights, which makes any number large.
    """
    step = int(m.steps[place])
    rows = [row for row in m.fact_rows("exponents") if number(row, "step") == step and text(row, "format") in _LARGEST]
    row = max(rows, key=lambda each: number(each, "high") / _limit(each), default=None)
    if row is None or not number(row, "high") > _NEARLY * _limit(row):
        return None
    steps, ratios = update_ratios(m)
    before = ratios[(steps < step) & np.isfinite(ratios)]
    if len(before) and before.max() >= HUGE_UPDATE:
        return None
    low, module, limit = str(row.get("format")).upper(), str(row.get("module") or ""), _limit(row)
    name, line, high = module or str(row.get("parameter") or ""), str(row.get("line")), number(row, "high")
    proof = Evidence(
        L_("exp(x) of the output of a layer or of a parameter, x > 0.92 log(largest number of the format)"),
        {"step": step, "largest": high, "least": number(row, "low"), "limit": limit, "line": line},
        Sentence(
            "In step {step} the numbers that go into exp at {line}, from {name}, reached from {low:.4g} to {high:.4g}; "
            "exp is beyond {format} from {limit:.4g} on.",
            step=step, line=line, name=name, low=number(row, "low"), high=high, format=low, limit=limit,
        ),
        "loss", m.series_of(m.loss, m.finite_loss),
    )  # fmt: skip
    return Cause(
        OVERFLOW,
        Sentence("exp of {name} overflows {format} in step {step}, at {line}: nothing bounds what goes into it",
                 name=name, format=low, step=step, line=line),
        L_(
            "Bound what goes into exp (clamp it, such as a log-variance to -10 to 10, or take softplus in place of "
            "exp; of scores take the maximum off first), let its layer begin near zero, and warm the rate up."
        ),
        (proof,), module, confidence=0.9, tensors=() if module else (name,), blame=_blame(m, high),
    )  # fmt: skip


def _limit(row: Mapping[str, Any]) -> float:
    return math.log(_LARGEST[str(row.get("format"))])


def _blame(m: Measurements, high: float) -> Blame:
    """No format where FP32 does not hold it, either; FP16 ends first, but nothing says that FP32 would never."""
    return _IN_FP32 if high > math.log(_LARGEST["fp32"]) else blame_of_symptom(m)
