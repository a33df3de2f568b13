"""Why a step is not finite: a cast to FP8 that made Inf or NaN out of finite numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precgui.formats.registry import get
from precgui.runs.diagnosis import origin
from precgui.runs.diagnosis.blame import blame_of
from precgui.runs.diagnosis.findings import COMPARED, Cause, Evidence
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.recorded_facts import fp32_repetition, number, text
from precgui.sentences import L_, Sentence, together

RULE = "overflowing-cast"
_FORMATS = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")


def of_cast(m: Measurements, place: int) -> Cause | None:
    """The cause of the step at a place in the signals, where a cast of that step was seen to overflow.

    Of a forward pass it must lead to what was not finite: the pass is finite in FP32, or the loss is from this cast on,
    or the first output that is not finite is that of its module.
    """
    step, is_finite = int(m.steps[place]), bool(m.finite_loss[place])
    rows = [row for row in m.fact_rows("finite_in_fp32") if row.get("step") == step]
    casts = [row for row in rows if row.get("use") == "cast" and bool(row.get("backward")) == is_finite]
    if is_finite:
        return next((_cause(m, step, row, "") for row in casts if text(row, "format") in _FORMATS), None)
    repeated = fp32_repetition(m.run, step)
    own, module = repeated.get("cast"), str(repeated.get("module") or "")
    if isinstance(own, Mapping) and repeated.get("finite") is True and text(own, "format") in _FORMATS:
        return _cause(m, step, own, module)
    from_there = any(row.get("use") == "loss" and text(row, "format") in _FORMATS for row in rows)
    for row in casts:
        module = str(row.get("module") or "")
        if text(row, "format") in _FORMATS and (from_there or origin.of_loss(m, place).module == module):
            return _cause(m, step, row, module)
    return None


def _cause(m: Measurements, step: int, row: Mapping[str, Any], module: str) -> Cause:
    stored, largest, scale = text(row, "format"), number(row, "value"), number(row, "scale")
    name, limit = stored.upper(), float(get(stored).max_finite)
    kind = "Inf" if stored == "e5m2" else "NaN"
    values: dict[str, float | int | str] = {"step": step, "largest": largest, "limit": limit, "format": name}
    sentences = [
        Sentence(
            "In step {step} a cast to {format} was given finite numbers up to {largest:.6g} and made {kind} of those "
            "beyond its largest number, {limit:.0f}.",
            step=step, format=name, largest=largest, kind=kind, limit=limit,
        )
    ]  # fmt: skip
    if scale > 0:
        values |= {"scale": scale, "fitting_scale": scale * limit / largest}
        sentences.append(
            Sentence(
                "They had been multiplied by {scale:.4g}; {fitting:.4g} would have fitted.",
                scale=scale, fitting=scale * limit / largest,
            )
        )  # fmt: skip
    proof = Evidence(L_("the operand of a cast to FP8 is finite, its result is not"), values, together(*sentences))
    in_model = module if module not in origin.WHOLE else ""
    title = (
        Sentence("a cast to {format} in {module} makes {kind} of numbers up to {largest:.4g} in step {step}",
                 format=name, module=in_model, kind=kind, largest=largest, step=step)
        if in_model
        else Sentence("a cast of gradients to {format} makes {kind} of numbers up to {largest:.4g} in step {step}",
                      format=name, kind=kind, largest=largest, step=step)
        if row.get("backward")
        else Sentence("a cast to {format} makes {kind} of numbers up to {largest:.4g} in step {step}",
                      format=name, kind=kind, largest=largest, step=step)
    )  # fmt: skip
    again = blame_of(m, step).evidence if not row.get("backward") else ()
    return Cause(
        RULE, title,
        Sentence(
            "Clamp to the largest number of {format} before the cast, x.clamp(-{limit:.0f}, {limit:.0f}), and take the "
            "scale from the largest magnitude of this very tensor, {limit:.0f} / x.abs().max().",
            format=name, limit=limit,
        ), (proof, *again), in_model, confidence=0.95, blame=COMPARED,
    )  # fmt: skip
