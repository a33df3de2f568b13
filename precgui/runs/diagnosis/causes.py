"""Why a step was not finite: one cause, by the first bad tensor, by Inf or NaN, and by the steps before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.runs.diagnosis import loss_suspects, origin
from precgui.runs.diagnosis.analysis import (
    FP16_LARGEST,
    narrow_range,
    power,
    replay,
    streaks,
)
from precgui.runs.diagnosis.blame import (
    beside_fp64,
    blame_of,
    blame_of_beginning,
    blame_of_epsilon,
    blame_of_symptom,
    computes_in_16_bits,
    cure_of_epsilon,
    epsilon_evidence,
    epsilon_row,
    finite_loss,
    infinite_derivatives,
    low_formats,
    low_operations,
    made_by,
    undefined_in,
    vanished_epsilon,
)
from precgui.runs.diagnosis.broken_derivatives import broken_derivative, line_that_16_bits_broke
from precgui.runs.diagnosis.cast_cause import beyond_16_bits, casts_of_data, narrow_data, of_cast, of_data
from precgui.runs.diagnosis.findings import BEYOND_RANGE, COMPARED, UNDECIDED, Blame, Cause, Evidence
from precgui.runs.diagnosis.forward_cause import culprit, of_exponent, of_forward
from precgui.runs.diagnosis.fp32_outlook import held_against_fp32
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.number_formats import DIGITS, format_of
from precgui.runs.diagnosis.origin import Origin
from precgui.runs.diagnosis.rate_cause import of_rate
from precgui.runs.diagnosis.weights_cause import of_update, of_weights
from precgui.runs.recorded_facts import rows_of, text, whole
from precgui.sentences import L_, Sentence, together

LONG = 8  # skipped steps in a row that are no search for the scale any more, where nothing follows
_BEYOND = 2.0**24  # a loss scale with which FP16 overflows in any model
_PRODUCT_OPERATIONS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "dot", "mv", "linear")
_BEFORE_CAST = Blame(needs=L_("the data of this step before they are cast to 16 bits"), certainty="estimate")
_NAMES = {"bf16": "BF16", "fp16": "FP16"}


def non_finite_cause(m: Measurements, place: int) -> Cause:
    """The cause of a step whose loss or gradients are not finite; `place` is its place in the signals.

    The precision is that of the step, where a schedule changes it; the steps before are looked at whatever theirs was.
    """
    if len(m.phases) > 1:
        step = int(m.steps[place])
        m = m.as_in(step)
        place = int(np.flatnonzero(m.steps == step)[0])
    return held_against_fp32(m, int(m.steps[place]), _cause_of(m, place))


def _cause_of(m: Measurements, place: int) -> Cause:
    for judge in (of_exponent, of_rate, of_weights, of_update, _of_given, of_cast):
        cause = judge(m, place)
        if cause is not None:
            return cause
    if m.finite_loss[place]:
        if origin.is_batch_broken(m, step := int(m.steps[place])):
            return _of_data(m, Origin(step, "data", part="inputs"))
        return _of_backward(m, place)
    result = origin.of_loss(m, place)
    if result.place == "data":
        return _of_data(m, result)
    if result.place == "input":
        return _of_input(m, result)
    if result.place == "forward":
        return of_forward(m, result)
    if result.place == "loss" or (result.place == "unknown" and finite_loss(m, result.step)):
        return _of_loss_itself(m, place, result)
    decided = blame_of(m, result.step)
    return Cause(
        "undefined-operation", Sentence(
            "NaN or Inf from step {step} on, in a place that is not recorded",
            step=result.step,
        ),
        L_("Record outputs of modules, or replay the step."), decided.evidence,
        confidence=0.5, certainty=decided.certainty, blame=decided,
    )  # fmt: skip


def _of_given(m: Measurements, place: int) -> Cause | None:
    """A tensor that was there before the forward pass, no weight, holds NaN or Inf: a mask, a schedule, a target."""
    step = int(m.steps[place])
    rows = [row for row in m.fact_rows("exact_steps") if row.get("step") == step]
    given = [each for row in rows for each in rows_of(row.get("given"))]
    if not given:
        return None
    first, low = given[0], _ran_in_16_bits(m) or text(given[0], "format") in DIGITS
    sizes = first.get("shape")
    size = " x ".join(str(each) for each in sizes) if isinstance(sizes, list) else ""
    shape, module = size or L_("a number"), str(first.get("module") or "")
    line = str(first.get("line"))
    read = Sentence("{line} in {module}", line=line, module=module) if module else line
    proof = Evidence(
        L_("NaN or Inf in a tensor that was there before the forward pass; all weights are finite"),
        {"step": step, "shape": shape, "line": line},
        Sentence(
            "In step {step} a tensor of {shape}, made before the forward pass and read first at {read}, holds {kind}.",
            step=step, shape=shape, read=read, kind="NaN" if first.get("nan") else "Inf",
        ),
    )  # fmt: skip
    fix = L_("Look at how these numbers are made: inputs, targets, masks, a schedule.")
    in_low = L_("In 16 bits 1 - x, products near 1 and sums near 1 are exactly 1, and what divides by them is Inf.")
    if (overflow := _overflows_by_itself(m, rows, step)) is not None:
        return replace(overflow, evidence=(*overflow.evidence, proof))
    if (cast := of_data(m, proof)) is not None:
        return cast
    blame, vanished = UNDECIDED if low or casts_of_data(m) else blame_of_beginning(m), vanished_epsilon(m)
    if vanished is not None and not any(whole(row, "step") == step for row in m.fact_rows("broken_batches")):
        blame = blame_of_epsilon(vanished)
        fix = L_("Divide in FP32, where the epsilon that is added to the divisor is not zero.")
    return Cause(
        "data-not-finite",
        Sentence("numbers that are read at {read} hold NaN or Inf", read=read),
        together(fix, in_low if low and blame is UNDECIDED else ""),
        (proof, *blame.evidence),
        module,
        confidence=0.95,
        certainty=blame.certainty,
        blame=blame,
    )


def _ran_in_16_bits(m: Measurements) -> bool:
    """Whether anything did, the loop's own operations between the steps of the model included."""
    return computes_in_16_bits(m) or bool(m.fact_rows("finite_in_fp32") or m.fact_rows("narrow_casts"))


def _overflows_by_itself(m: Measurements, rows: Sequence[Mapping[str, Any]], step: int) -> Cause | None:
    """A product of the forward pass that made Inf in FP16 out of finite numbers, whatever else was read."""
    causes = [each for row in rows if isinstance(each := row.get("cause"), Mapping) and each.get("blame") is True]
    place = causes[0].get("first_nonfinite") if causes and narrow_range(m) else None
    if not isinstance(place, Mapping) or place.get("backward"):
        return None
    name, line = str(place.get("operation")).partition(".")[0], str(place.get("line"))
    if name not in _PRODUCT_OPERATIONS:
        return None
    proof = Evidence(
        L_("a product in FP16 that is not finite, of finite numbers; finite in FP64"),
        {"step": step, "operation": name, "line": line},
        Sentence(
            "In step {step} {operation} at {line} gave Inf in FP16 out of finite numbers; in FP64 its result is "
            "finite.",
            step=step, operation=name, line=line,
        ),
    )  # fmt: skip
    return Cause(
        "forward-overflow", Sentence("a product at {line} overflows FP16 in step {step}", line=line, step=step),
        L_(
            "Compute this product in FP32 or BF16, or scale its operands down; so, too, the numbers made before the "
            "loop."
        ),
        (proof,), str(place.get("module") or ""), {"precision": "bf16-amp"}, confidence=0.95, blame=COMPARED,
    )  # fmt: skip


def _of_data(m: Measurements, origin: Origin) -> Cause:
    proof = Evidence(
        L_("count of NaN and Inf in the batch > 0"),
        {"step": origin.step, "part": origin.part},
        Sentence("The {part} of step {step} hold NaN or Inf.", part=origin.part, step=origin.step),
    )
    short = Sentence("the {part} of step {step} hold NaN or Inf", part=origin.part, step=origin.step)
    fix = (
        L_(
            "Clean the data: drop or mask these samples; and look at what the loop computes of them before the model, "
            "such as a division by a deviation of 0."
        )
        if m.own_loop and origin.part == "inputs"
        else L_("Clean the data: drop or mask these samples.")
    )
    low = narrow_data(m, origin.step) if m.own_loop else None
    if low is None:
        blame = UNDECIDED if m.own_loop and _ran_in_16_bits(m) else blame_of_beginning(m)
        return Cause("data-not-finite", short, fix, (proof,), confidence=0.99, blame=blame)
    if (cast := of_data(m, proof)) is not None:
        return cast
    fix = together(fix, beyond_16_bits(low))
    return Cause("data-not-finite", short, fix, (proof, low), confidence=0.99, blame=_BEFORE_CAST)


def _of_input(m: Measurements, origin: Origin) -> Cause:
    """The first module's output is bad and its weights are not: so is its input, or its input is beyond FP16.

    Where the same pass is finite in FP32, what the model was given is finite: operations before the module made it.
    """
    if text(culprit(m, origin.step), "operation") not in ("", "_to_copy"):
        return of_forward(m, origin)
    decided, low = blame_of(m, origin.step), narrow_range(m)
    proof = Evidence(
        L_("first module: output not finite, weights finite"), {"step": origin.step, "module": origin.module},
        Sentence(
            "In step {step} the output of {module}, the first module, is not finite; its weights were.",
            step=origin.step, module=origin.module,
        ),
    )  # fmt: skip
    if decided.answer is True and not low:
        return Cause(
            "undefined-operation",
            Sentence(
                "operations in 16 bits before {module} make NaN or Inf in step {step}",
                module=origin.module, step=origin.step,
            ),
            Sentence(
                "Compute what comes before {module} in FP32: suspect is a sum, a square or a product beyond 65504, or "
                "a division by what is 0 in 16 bits.",
                module=origin.module,
            ),
            (proof, *decided.evidence), origin.module, confidence=0.85, certainty=decided.certainty, blame=decided,
        )  # fmt: skip
    before = narrow_data(m, origin.step) if decided.answer is False else None
    if before is not None:
        if (cast := of_data(m, proof)) is not None:
            return cast
        decided = _BEFORE_CAST
    return Cause(
        "data-not-finite",
        Sentence("the inputs of step {step} hold NaN or Inf, or are beyond FP16", step=origin.step)
        if decided.answer is not False and low else Sentence(
            "the inputs of step {step} hold NaN or Inf",
            step=origin.step,
        ),
        together(
            L_("Look at the inputs of this step; normalise or clean them."),
            beyond_16_bits(before) if before is not None else "",
        ),
        (proof, *decided.evidence) if before is None else (proof, before),
        origin.module, confidence=0.85, certainty=decided.certainty, blame=decided,
    )  # fmt: skip


def _of_loss_itself(m: Measurements, place: int, origin: Origin) -> Cause:
    """All outputs are finite, so the loss function or the targets are at fault; or none is recorded."""
    infinite = bool(np.isinf(m.loss[place]))
    recorded = origin.place == "loss"
    proof = Evidence(
        L_("outputs finite, loss not") if recorded else L_("loss not finite"),
        {"step": origin.step, "loss": float(m.loss[place])},
        (
            Sentence(
                "In step {step} all recorded outputs are finite, the loss is {loss}.",
                step=origin.step, loss=m.loss[place],
            )
            if recorded
            else Sentence("In step {step} the loss is {loss}.", step=origin.step, loss=m.loss[place])
        ),
    )  # fmt: skip
    before = np.abs(m.loss[:place][m.finite_loss[:place]])
    low, why = _format_of_loss(m, before)
    row = finite_loss(m, origin.step)
    if row.get("kind") == "overflow":
        return _loss_overflows(m, origin.step, row, proof)
    if infinite and low == "fp16" and len(before) >= 3 and before.max() > FP16_LARGEST / 64:
        return Cause(
            "forward-overflow",
            Sentence(
                "the loss is computed in FP16 and overflows in step {step}",
                step=origin.step,
            ),
            L_("Convert the outputs first (outputs.float()), or take a mean in place of a sum."), (proof,),
            confidence=0.9, certainty="estimate", blame=BEYOND_RANGE,
        )  # fmt: skip
    decided, names = blame_of(m, origin.step), low_operations(m)
    vanished = epsilon_evidence(m) if decided.answer is None and low == "fp16" else None
    if vanished is not None and vanished_epsilon(m) is not None:
        decided = blame_of_epsilon(vanished)
    elif vanished is not None:
        decided = replace(decided, evidence=(*decided.evidence, vanished))
    fix = _cure_of_loss(m, row, vanished, in_16_bits=decided.answer is not False and (why is not None or bool(names)))
    returned = _returned(m.loss[place], origin.step, low if why is not None else "", recorded=recorded)
    rows = loss_suspects.suspects(m, origin.step) if recorded and not row and vanished is None else []
    seen = (*((why,) if why is not None else ()), *loss_suspects.evidence_of(rows, origin.step))
    return Cause(
        "undefined-operation", loss_suspects.named(returned, rows, origin.step), loss_suspects.cure(fix, rows),
        (proof, *seen, *decided.evidence),
        confidence=0.8,
        certainty=decided.certainty, blame=decided,
    )  # fmt: skip


def _cure_of_loss(m: Measurements, row: Mapping[str, Any], vanished: Evidence | None, *, in_16_bits: bool) -> str:
    """`row`: where 16 bits broke the loss, if that was seen; `vanished`: an epsilon that is zero."""
    if row:
        return Sentence(
            "Compute it in FP32 from before {made_by}, whose small results are 0 (or, near 1, are 1) in 16 bits.",
            made_by=made_by(row),
        )
    if vanished is not None:
        return cure_of_epsilon(epsilon_row(m))
    if in_16_bits:
        return Sentence(
            "Convert the outputs first, loss_function(outputs.float(), targets): suspect is {undefined_in}.",
            undefined_in=undefined_in(m)[0],
        )
    return L_(
        "Look at the targets of this step and at the loss: a mean over no element, the deviation of a single one, "
        "log(0) or 0 / 0."
    )


def _returned(loss: float, step: int, low: str, *, recorded: bool) -> str:
    """The loss that is not finite, as a clause; `low` is the format that it is computed in, `recorded` of outputs."""
    where = L_("the loss function")
    if low:
        where = Sentence("the loss function, which computes in {name},", name=_NAMES[low])
    if recorded:
        return Sentence("{where} returns {loss} in step {step} for finite outputs", where=where, loss=loss, step=step)
    return Sentence("{where} returns {loss} in step {step}", where=where, loss=loss, step=step)


def _loss_overflows(m: Measurements, step: int, row: Mapping[str, Any], proof: Evidence) -> Cause:
    """An operation of the loss, or of the model, whose result is beyond FP16, as was seen."""
    decided, low = blame_of(m, step), str(row.get("format")).upper()
    return Cause(
        "forward-overflow", Sentence(
            "the loss overflows {low} in step {step}, in {made_by}",
            low=low, step=step, made_by=made_by(row),
        ),
        L_("Convert the outputs first (outputs.float()), or take a mean in place of a sum."),
        (proof, *decided.evidence), str(row.get("made_in") or ""), confidence=0.95, certainty=decided.certainty,
        blame=BEYOND_RANGE,
    )  # fmt: skip


def _format_of_loss(m: Measurements, before: NDArray[np.float64]) -> tuple[str, Evidence | None]:
    """The format in which the loss is computed, '' where nothing says 16 bits: by the digits of the losses before, and
    where there are none by operations of the first step that are undefined for some numbers."""
    low = format_of(before) if len(before) >= 3 else ""
    if low in _NAMES:
        text = Sentence(
            "The {before_count} losses before are numbers of {name}.",
            before_count=len(before),
            name=_NAMES[low],
        )
        return low, Evidence(
            L_("loss = round_16(loss) in all steps before"), {"steps": len(before), "format": low}, text
        )
    names = low_operations(m)
    if low or not names:
        return "", None
    low = next(iter(sorted(low_formats(m))))
    text = Sentence("In the first step {names} ran in {name}.", names=", ".join(names[:5]), name=_NAMES[low])
    return low, Evidence(L_("operations in 16 bits that are undefined for some numbers"), {"format": low}, text)


def _of_backward(m: Measurements, place: int) -> Cause:
    """The cause where the loss is finite and gradients are not."""
    step, scale = int(m.steps[place]), float(m.scale[place])
    if (broken := origin.of_finite_loss(m, step)) is not None:
        return of_forward(m, broken)
    result = origin.of_gradients(m, step)
    lowest = min((float(m.scale[each.last]) for each in streaks(m) if each.first <= place <= each.last), default=scale)
    kind = {True: L_("with Inf"), False: L_("NaN only"), None: L_("unknown")}[result.infinite]
    proof = Evidence(
        L_("loss finite, gradients not"), {"step": step, "scale": scale, "lowest_scale": lowest, "kind": kind},
        Sentence(
            "In step {step} the loss is finite and gradients are not ({kind}), first between {module} and {before}; "
            "scale {scale}, later down to {lowest}.",
            step=step, kind=kind, module=result.module, before=result.before, scale=power(scale), lowest=power(lowest),
        )
        if result.module and result.before else Sentence(
            "In step {step} the loss is finite and gradients are not ({kind}), first in {module}; scale {scale}, later "
            "down to {lowest}.",
            step=step, kind=kind, module=result.module or L_("the loss"), scale=power(scale), lowest=power(lowest),
        ),
    )  # fmt: skip
    beyond = lowest > _BEYOND and narrow_range(m)  # Inf - Inf and 0 * Inf are NaN
    if m.loops_scale and lowest >= 1 and (result.infinite is not False or beyond):
        return Cause(
            "scale",
            Sentence("the gradients times {scale} overflow FP16", scale=power(scale)),
            L_("Let the scaler lower the scale."),
            (proof,),
            result.module,
            {"scaling.mode": "dynamic"},
            certainty="estimate",
            blame=BEYOND_RANGE,
        )
    in_loss = result.place == "loss"
    edges = infinite_derivatives(m) if in_loss or not result.module else ()
    decided = beside_fp64(m, step) or blame_of_symptom(m, needs=replay(m, step))
    named = broken_derivative(m, step, outputs_are_finite=origin.are_outputs_finite(m, step))
    if named is not None and decided.answer is not True:
        decided = named.blame or decided
    if named is not None and (decided.answer is not True or named.blame is not None):
        return Cause(
            "undefined-operation", named.short, named.fix, (proof, named.evidence, *decided.evidence), named.module,
            confidence=0.9, certainty=named.certainty, blame=decided,
        )  # fmt: skip
    cure = _cure_of_derivative(edges, may_overflow=narrow_range(m) and result.infinite is not False)
    return _of_derivative(m, result, proof, decided, cure)


def _of_derivative(m: Measurements, result: Origin, proof: Evidence, decided: Blame, cure: str) -> Cause:
    """The derivative of the loss, or of a module, is not finite, and no watched step says why."""
    step, in_loss = result.step, result.place == "loss"
    if line := line_that_16_bits_broke(m, step):
        short = Sentence("the derivative of the operation at {line} is not finite in step {step}", line=line, step=step)
        low = L_("Compute this line in FP32 (.float() before it, or autocast disabled around it).")
        return Cause(
            "undefined-operation", short, together(low, cure), (proof, *decided.evidence),
            "" if in_loss else result.module, confidence=0.9, certainty=decided.certainty, blame=decided,
        )  # fmt: skip
    is_last = in_loss or result.module in origin.forward_order(m)[-1:] or origin.are_outputs_finite(m, step)
    rows = loss_suspects.suspects(m, step) if is_last else []
    where = L_("the loss function") if in_loss else result.module or L_("the backward pass")
    short = Sentence("the derivative of {where} is not finite in step {step}", where=where, step=step)
    return Cause(
        "undefined-operation", loss_suspects.named(short, rows, step), loss_suspects.cure(cure, rows),
        (proof, *loss_suspects.evidence_of(rows, step), *decided.evidence), "" if in_loss else result.module,
        confidence=0.8, certainty="estimate" if computes_in_16_bits(m) else "exact", blame=decided,
    )  # fmt: skip


def _cure_of_derivative(edges: Sequence[str], *, may_overflow: bool) -> str:
    """`edges`: operations that ran in 16 bits, and whose derivative is infinite at the end of their domain;
    `may_overflow`: gradients may be beyond the range of FP16."""
    if not edges and may_overflow:
        return L_(
            "Lower the loss scale, also one of your own: gradients may be beyond FP16, which ends at 65504. Else look "
            "for sqrt at 0, a norm of zero, or a root or power without an epsilon."
        )
    if not edges:
        return L_("Look for sqrt at 0, a norm of zero, or a root or power without an epsilon.")
    return Sentence(
        "Compute it in FP32 from its inputs on: suspect is the derivative of {edges}, which ran in 16 bits and is "
        "infinite at the end of its domain (acosh at 1, sqrt and log at 0), where rounding can put it.",
        edges=", ".join(edges),
    )
