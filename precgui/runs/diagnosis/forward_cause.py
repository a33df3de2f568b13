"""Why the output of a module is not finite: an overflow, an exponential without bounds, an undefined operation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from precgui.runs.diagnosis import origin
from precgui.runs.diagnosis.analysis import FP16_LARGEST, narrow_range, update_ratios
from precgui.runs.diagnosis.blame import (
    blame_of,
    blame_of_symptom,
    cure_of,
    cure_of_epsilon,
    noun_of,
    short_line,
    undefined_by,
)
from precgui.runs.diagnosis.block_rules import zero_row_before
from precgui.runs.diagnosis.findings import BEYOND_RANGE, Blame, Cause, Evidence
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.origin import Origin
from precgui.runs.diagnosis.rate_cause import HUGE_UPDATE
from precgui.runs.recorded_facts import nonfinite_operation, number, text
from precgui.sentences import L_, Sentence, together

_PRODUCTS = ("torch.nn.modules.linear.", "torch.nn.modules.conv.")  # which only overflow makes Inf of finite numbers
OVERFLOW = "exponential-overflow"
_LARGEST = {"fp16": 65504.0, "bf16": 3.39e38, "fp32": 3.4028e38, "fp64": 1.797e308}
_KINDS = {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}
_NEARLY = 0.92  # of the logarithm of the largest number: its products with other numbers overflow
_IN_FP32 = Blame(False, L_("the exponential of the same numbers is beyond the range of FP32, too"))


def of_forward(m: Measurements, result: Origin) -> Cause:
    """An overflow of FP16, or an operation that is not defined, in or before the first module with a bad output."""
    own = result.module in origin.WHOLE
    place = origin.WHOLE[0] if own else result.module
    last = origin.last_amax(m, "activation", place, result.step)
    values: dict[str, float | int | str] = {"step": result.step, "module": place}
    near = last is not None and last[1] > FP16_LARGEST / 8
    sentences = [_bad_output(result.step, "" if own else place, result.before)]
    if last is not None:
        values |= {"last_amax": last[1], "octaves_left": float(np.log2(FP16_LARGEST / last[1]))}
        sentences.append(
            Sentence("In step {step} its largest finite magnitude was {largest:.4g}.", step=last[0], largest=last[1])
        )
    if result.infinite is not None:
        sentences.append(
            L_("Inf is among its values.") if result.infinite else L_("Its values that are not finite are NaN.")
        )
    proof = Evidence(
        L_("first output that is not finite, in the order of the forward pass"), values, together(*sentences)
    )
    made = operation_evidence(m, result.step)
    decided = blame_of(m, result.step, alike=True)
    certain = near or decided.answer is True  # Inf in FP16 that is none in FP32
    if (
        narrow_range(m)
        and decided.answer is not False
        and (near or (result.infinite and (certain or _overflows(m, place, result))))
    ):
        return _overflow(m, result, (proof, *made), decided, exact=bool(certain and result.infinite))
    return _undefined(m, result, (proof, *made), decided)


def _bad_output(step: int, module: str, before: str) -> str:
    """The first output that is not finite, in a sentence; no module: that of the model itself."""
    if not module:
        return Sentence(
            "In step {step} the outputs of all modules are finite, and that of the model, computed from them, is not.",
            step=step,
        )
    if before:
        return Sentence(
            "In step {step} the output of {module} is the first that is not finite; the output of {before} is still "
            "finite.",
            step=step,
            module=module,
            before=before,
        )
    return Sentence("In step {step} the output of {module} is the first that is not finite.", step=step, module=module)


def _overflows(m: Measurements, place: str, result: Origin) -> bool:
    """Whether Inf in this output can only be a magnitude beyond 65504, not a division by zero or the logarithm of 0.

    So it is of a product, and of an output with Inf of both signs; Inf of one sign is that of a quotient, too.
    """
    if _is_product(m, place) or not m.model.module_types:
        return True
    return origin.both_signs(m, place, result.step) or bool(_large_factors(m, result))


def _overflow(m: Measurements, result: Origin, proof: tuple[Evidence, ...], decided: Blame, *, exact: bool) -> Cause:
    if _is_between(m, result):
        return Cause(
            "forward-overflow",
            Sentence(
                "FP16 overflows between the outputs of {before} and {module} in step {step}",
                before=result.before, module=result.module, step=result.step,
            ),
            _cure_of_overflow(m, result.step) or L_(
                "Use BF16, or compute in FP32 what runs between the two modules (sums, products), or scale it down."
            ),
            (*proof, *decided.evidence), result.module, {"precision": "bf16-amp"}, confidence=0.8, certainty="estimate",
            blame=BEYOND_RANGE,
        )  # fmt: skip
    own = result.module in origin.WHOLE
    name = L_("the model") if own else result.module
    kept = {} if own else {"precision_options.keep_fp32": [result.module]}
    return Cause(
        "forward-overflow", Sentence(
            "the output of {name} overflows FP16 in step {step}",
            name=name, step=result.step,
        ),
        _cure_of_overflow(m, result.step)
        or (
            L_("Use BF16, or compute the last product in FP32, or scale its operands down.") if own
            else L_("Use BF16, or keep this module in FP32, or scale its input down.")
        ),
        (*proof, *decided.evidence), "" if own else result.module, {"precision": "bf16-amp", **kept}, confidence=0.9,
        certainty="exact" if exact else "estimate", blame=BEYOND_RANGE,
    )  # fmt: skip


def _is_between(m: Measurements, result: Origin) -> bool:
    """Whether a product got what is not finite: its other outputs are far from the end of FP16, and operations of a
    parent run between it and the last module with finite outputs."""
    last = origin.last_amax(m, "activation", result.module, result.step)
    return (
        _is_product(m, result.module)
        and last is not None and last[1] < FP16_LARGEST / 64
        and origin.operations_between(m, result.before, result.module)
    )  # fmt: skip


def _undefined(m: Measurements, result: Origin, proof: tuple[Evidence, ...], decided: Blame) -> Cause:
    zeros = zero_row_before(m, result.module, result.before, result.step) if result.infinite is False else None
    if zeros is not None:
        return Cause(
            "zero-row", Sentence(
                "a row of zeros has no scale in FP8: {module} computes NaN in step {step}",
                module=result.module, step=result.step,
            ),
            L_("Give the scale a lower bound: amax.clamp(min=1e-12)."), (*proof, zeros), result.module,
            confidence=0.7, certainty="estimate",
            blame=Blame(True, BEYOND_RANGE.proof, L_(
                "the least amax of a row of this input: x.abs().amax(-1).min()"
            )),
        )  # fmt: skip
    own = result.module in origin.WHOLE
    if row := culprit(m, result.step):
        return Cause(
            "undefined-operation",
            Sentence(
                "{kind} in step {step} comes from {operation} at {line}",
                kind=_KINDS.get(text(nonfinite_operation(m.run, result.step), "kind"), "NaN"), step=result.step,
                operation=_name(row), line=short_line(text(row, "line")),
            ),
            _cure(m, result.step, decided), (*proof, *decided.evidence), "" if own else result.module, confidence=0.9,
            certainty=decided.certainty, blame=decided,
        )  # fmt: skip
    large = _large_factors(m, result) if decided.answer is not False else ()
    kind = {True: "Inf", False: "NaN", None: L_("NaN or Inf")}[result.infinite]
    if own:
        title = Sentence(
            "the model computes {kind} in step {step}, in operations of its own", kind=kind, step=result.step
        )
    elif result.before and result.infinite is False and _is_product(m, result.module):
        title = Sentence(
            "NaN appears between the outputs of {before} and {module} in step {step}",
            before=result.before,
            module=result.module,
            step=result.step,
        )
    else:
        title = Sentence("{module} computes {kind} in step {step}", module=result.module, kind=kind, step=result.step)
    fix = cure_of(m, decided)
    return Cause(
        "undefined-operation", title,
        together(L_("Divide before the product is taken, or compute it in FP32 or BF16."), fix) if large else fix,
        (*proof, *large, *decided.evidence), "" if own else result.module, confidence=0.8,
        certainty=decided.certainty, blame=decided,
    )  # fmt: skip


def culprit(m: Measurements, step: int) -> Mapping[str, Any]:
    """The operation that made NaN or Inf of finite numbers in the forward pass of a step, as docs/run-file.md has it.

    {} where none is known, or the numbers were there before the pass.
    """
    row = nonfinite_operation(m.run, step)
    made = row.get("source") if row.get("culprit") == "source" else row if row.get("culprit") == "operation" else None
    return made if isinstance(made, Mapping) and text(made, "kind") in _KINDS else {}


def operation_evidence(m: Measurements, step: int) -> tuple[Evidence, ...]:
    """The operation that made NaN or Inf, with the numbers that it was given, and the one that made NaN of its Inf."""
    made, row = culprit(m, step), nonfinite_operation(m.run, step)
    if not made:
        return ()
    values: dict[str, float | int | str] = {
        "step": step,
        "operation": text(made, "operation"),
        "line": text(made, "line"),
    }
    values |= {name: number(made, name) for name in ("low", "high", "epsilon") if isinstance(made.get(name), float)}
    parts = [_of_operation(made, values)]
    source = row.get("source")
    if row is not made:
        parts.append(Sentence("{operation} at {line} makes NaN of it.", operation=_name(row), line=text(row, "line")))
    elif isinstance(source, Mapping):
        parts.append(Sentence("Inf among them was put there at {line}, as by a mask.", line=text(source, "line")))
    if "epsilon" in values:
        parts.append(Sentence("The epsilon {epsilon:.3g} is 0 in FP16.", epsilon=values["epsilon"]))
    return (Evidence(L_("NaN or Inf out of finite numbers, in the same pass, run again"), values, together(*parts)),)


def _of_operation(made: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    operation, line, kind = _name(made), text(made, "line"), _KINDS[text(made, "kind")]
    low, high = values.get("low"), values.get("high")
    if low is None or high is None:
        return Sentence(
            "{operation} at {line} makes {kind} of finite numbers.", operation=operation, line=line, kind=kind
        )
    if text(made, "operation") == "div":
        return Sentence(
            "{operation} at {line} makes {kind} of finite numbers; its divisor reaches from {low:.4g} to {high:.4g}.",
            operation=operation, line=line, kind=kind, low=low, high=high,
        )  # fmt: skip
    return Sentence(
        "{operation} at {line} makes {kind} of finite numbers, which reach from {low:.4g} to {high:.4g}.",
        operation=operation, line=line, kind=kind, low=low, high=high,
    )  # fmt: skip


def _name(row: Mapping[str, Any]) -> str:
    return noun_of(text(row, "operation"))


def _cure_of_overflow(m: Measurements, step: int) -> str:
    """The fix where the operation that FP16 made overflow is known, and runs in the user's own code; else ''."""
    made = culprit(m, step)
    if text(made, "format") != "fp16" or not text(made, "line"):
        return ""
    return Sentence(
        "Use BF16, or compute {operation} at {line} in FP32, or scale its operands down.",
        operation=_name(made), line=short_line(text(made, "line")),
    )  # fmt: skip


def _cure(m: Measurements, step: int, decided: Blame) -> str:
    """The fix where the operation is known, narrowed by who is to blame."""
    made, row = culprit(m, step), nonfinite_operation(m.run, step)
    operation, line = _name(made), short_line(text(made, "line"))
    if isinstance(made.get("epsilon"), float):
        return cure_of_epsilon(made)
    low = text(made, "format") if decided.answer is True else ""
    clause = undefined_by(text(made, "operation"), low) or undefined_by(text(row, "operation"), low)
    suspect = Sentence("Suspect is {clause}.", clause=clause) if clause else ""
    if decided.answer is True:
        fix = Sentence(
            "Compute {operation} at {line} and its operands in FP32 (.float() before them).",
            operation=operation, line=line,
        )  # fmt: skip
    else:
        fix = Sentence(
            "Bound what {operation} at {line} is given (clamp, an epsilon), or replace these elements before it by "
            "torch.where.",
            operation=operation, line=line,
        )  # fmt: skip
    return together(fix, suspect) if suspect else fix


def _is_product(m: Measurements, module: str) -> bool:
    return m.model.module_types.get(module, "").startswith(_PRODUCTS)


def _large_factors(m: Measurements, result: Origin) -> tuple[Evidence, ...]:
    """The last finite output in FP16, where a product of two of its numbers is beyond 65504, as scores of attention."""
    last = origin.last_amax(m, "activation", result.before, result.step) if narrow_range(m) else None
    if last is None or not last[1] ** 2 > FP16_LARGEST:
        return ()
    values = {"step": last[0], "amax": last[1], "square": last[1] ** 2}
    text = Sentence(
        "The output of {before} reaches {largest:.4g}: the product of two such numbers, {square:.3g}, is beyond FP16, "
        "and Inf - Inf is NaN.",
        before=result.before,
        largest=last[1],
        square=last[1] ** 2,
    )
    return (Evidence("amax^2 > 65504", values, text),)


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
