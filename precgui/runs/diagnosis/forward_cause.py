"""Why the output of a module is not finite: an overflow of FP16, or an operation that is not defined."""

from __future__ import annotations

import numpy as np

from precgui.runs.diagnosis import origin
from precgui.runs.diagnosis.analysis import FP16_LARGEST, narrow_range
from precgui.runs.diagnosis.blame import blame_of, cure_of
from precgui.runs.diagnosis.block_rules import zero_row_before
from precgui.runs.diagnosis.cause import Cause
from precgui.runs.diagnosis.findings import BEYOND_RANGE, Blame, Evidence
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.origin import Origin
from precgui.sentences import L_, Sentence, together

_PRODUCTS = ("torch.nn.modules.linear.", "torch.nn.modules.conv.")  # which only overflow makes Inf of finite numbers


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
    decided = blame_of(m, result.step, alike=True)
    certain = near or decided.answer is True  # Inf in FP16 that is none in FP32
    if (
        narrow_range(m)
        and decided.answer is not False
        and (near or (result.infinite and (certain or _overflows(m, place, result))))
    ):
        return _overflow(m, result, proof, decided, exact=bool(certain and result.infinite))
    return _undefined(m, result, proof, decided)


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


def _overflow(m: Measurements, result: Origin, proof: Evidence, decided: Blame, *, exact: bool) -> Cause:
    if _is_between(m, result):
        return Cause(
            "forward-overflow",
            Sentence(
                "FP16 overflows between the outputs of {before} and {module} in step {step}",
                before=result.before, module=result.module, step=result.step,
            ),
            L_(
                "Use BF16, or compute in FP32 what runs between the two modules (sums, products), or scale it down."
            ),
            (proof, *decided.evidence), result.module, {"precision": "bf16-amp"}, confidence=0.8, certainty="estimate",
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
        L_("Use BF16, or compute the last product in FP32, or scale its operands down.") if own
        else L_("Use BF16, or keep this module in FP32, or scale its input down."),
        (proof, *decided.evidence), "" if own else result.module, {"precision": "bf16-amp", **kept}, confidence=0.9,
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


def _undefined(m: Measurements, result: Origin, proof: Evidence, decided: Blame) -> Cause:
    zeros = zero_row_before(m, result.module, result.before, result.step) if result.infinite is False else None
    if zeros is not None:
        return Cause(
            "zero-row", Sentence(
                "a row of zeros has no scale in FP8: {module} computes NaN in step {step}",
                module=result.module, step=result.step,
            ),
            L_("Give the scale a lower bound: amax.clamp(min=1e-12)."), (proof, zeros), result.module,
            confidence=0.7, certainty="estimate",
            blame=Blame(True, BEYOND_RANGE.proof, L_(
                "the least amax of a row of this input: x.abs().amax(-1).min()"
            )),
        )  # fmt: skip
    own = result.module in origin.WHOLE
    large = _large_factors(m, result) if decided.answer is not False else ()
    kind = {True: "Inf", False: "NaN", None: L_("NaN or Inf")}[result.infinite]
    if own:
        text = Sentence(
            "the model computes {kind} in step {step}, in operations of its own", kind=kind, step=result.step
        )
    elif result.before and result.infinite is False and _is_product(m, result.module):
        text = Sentence(
            "NaN appears between the outputs of {before} and {module} in step {step}",
            before=result.before,
            module=result.module,
            step=result.step,
        )
    else:
        text = Sentence("{module} computes {kind} in step {step}", module=result.module, kind=kind, step=result.step)
    fix = cure_of(m, decided)
    return Cause(
        "undefined-operation", text,
        together(L_("Divide before the product is taken, or compute it in FP32 or BF16."), fix) if large else fix,
        (proof, *large, *decided.evidence), "" if own else result.module, confidence=0.8,
        certainty=decided.certainty, blame=decided,
    )  # fmt: skip


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
