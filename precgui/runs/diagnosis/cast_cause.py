"""Why a step is not finite: a cast to FP8, or of data to FP16, that made Inf or NaN out of finite numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precgui.formats.registry import get
from precgui.runs.diagnosis import origin
from precgui.runs.diagnosis.analysis import percent
from precgui.runs.diagnosis.blame import blame_of
from precgui.runs.diagnosis.findings import BEYOND_RANGE, COMPARED, Cause, Evidence
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.number_formats import DIGITS
from precgui.runs.recorded_facts import fp32_repetition, number, text, whole
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


def casts_of_data(m: Measurements) -> list[Mapping[str, Any]]:
    """The casts of data to FP16 that made Inf, as they were seen in a watched step."""
    return [row for row in m.fact_rows("lost_values") if row.get("operation") == "overflowing_cast"]


def of_data(m: Measurements, proof: Evidence) -> Cause | None:
    """The cause of a step whose model gets Inf: in a watched step it got as many as a cast of data to FP16 made."""
    inputs = [(whole(row, "step"), whole(row, "numbers"), whole(row, "infinite"), whole(row, "nan"))
              for row in m.fact_rows("broken_batches")]  # fmt: skip
    casts = [row for row in casts_of_data(m)
             if (whole(row, "step"), whole(row, "numbers"), whole(row, "infinite"), 0) in inputs]  # fmt: skip
    if not casts:
        return None
    row = casts[0]
    share, largest, limit = number(row, "share"), number(row, "largest"), float(get("fp16").max_finite)
    cast = Evidence(
        L_("the operand of a cast to FP16 is finite and without a graph, its result is Inf"),
        {"step": whole(row, "step"), "largest": largest, "limit": limit, "share": share},
        Sentence(
            "In step {step} a cast to FP16 makes Inf of {share} of finite numbers, which reach {largest:.6g}; FP16 "
            "ends at {limit:.0f}. The model gets {count} Inf in that step, as many as the cast made.",
            step=whole(row, "step"), share=percent(share), largest=largest, limit=limit, count=whole(row, "infinite"),
        ),
    )  # fmt: skip
    return Cause(
        RULE, Sentence("a cast of data to FP16 makes Inf of numbers up to {largest:.4g}", largest=largest),
        L_(
            "Keep these numbers in FP32 or cast them to BF16, or bring them into range (other units, a logarithm, a "
            "mean and a spread) before the cast."
        ), (cast, proof), str(row.get("module") or ""), confidence=0.9, blame=BEYOND_RANGE,
    )  # fmt: skip


def narrow_data(m: Measurements, step: int) -> Evidence | None:
    """Why 16 bits may have made the batch of a step Inf or NaN before the model got it; None where nothing says so.

    By the digits of its finite numbers, else by a cast of data that was seen in another step.
    """
    formula = L_("the finite numbers of a batch are those of 16 bits, or a cast of data to or from 16 bits was seen")
    held = next((low for row in origin.broken_batches(m, step) if (low := text(row, "format")) in DIGITS), "")
    if held:
        return Evidence(
            formula, {"step": step, "format": held},
            Sentence(
                "The finite numbers that the model gets in step {step} are all numbers of {format}.",
                step=step, format=held.upper(),
            ),
        )  # fmt: skip
    row = next((row for row in m.fact_rows("narrow_casts") if text(row, "format") in DIGITS), None)
    if row is None:
        return None
    held, seen = text(row, "format"), whole(row, "step")
    return Evidence(
        formula, {"step": seen, "format": held},
        Sentence("In step {step} the loop casts data to or from {format}.", step=seen, format=held.upper()),
    )  # fmt: skip


def beyond_16_bits(low: Evidence) -> str:
    """The cure of a batch that 16 bits may have made Inf or NaN."""
    if low.values["format"] != "fp16":
        return L_("In BF16 differences of nearly equal numbers are 0, and what is divided by them is Inf or NaN.")
    return L_(
        "FP16 makes Inf of finite numbers beyond 65504 and 0 of those below 3e-8: look at them before the cast, and "
        "keep them in FP32 or BF16."
    )


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
