"""Whether a format of 16 bits may have made a value NaN or Inf, and which operations of the first step can make one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from precgui.runs.diagnosis.analysis import FP16_LARGEST, is_adaptive, narrow_range, replay, storage
from precgui.runs.diagnosis.findings import COMPARED, NO_16_BITS, UNDECIDED, Blame, Certainty, Evidence
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.number_formats import DIGITS
from precgui.runs.recorded_facts import fp32_repetition, number, text, whole
from precgui.sentences import L_, Sentence, together

_ALIKE = 2  # repetitions of other steps that stand for one of their kind
_NAMES = {"bf16": "BF16", "fp16": "FP16"}
# Operations that return NaN or Inf for finite numbers: of the census, and how it happens in FP32 and in 16 bits.
_INFINITE_AT_THE_END = ("acosh", "acos", "asin", "atanh", "sqrt", "log", "log2", "log10")  # of their domain
_UNDEFINED: tuple[tuple[tuple[str, ...], str, Callable[[str], str]], ...] = (
    (
        ("div", "div_", "reciprocal", "addcdiv"),
        L_("a division by zero"),
        lambda low: Sentence("a division whose divisor or epsilon is 0 in {format}, or by Inf", format=low),
    ),
    (
        ("log", "log_", "log2", "log10", "log1p"),
        "log(0)",
        lambda low: Sentence("the logarithm of a number that {format} rounds to 0", format=low),
    ),
    (
        ("sqrt", "sqrt_", "rsqrt", "rsqrt_", "pow", "linalg_vector_norm", "norm", "std", "var"),
        L_("sqrt at or below 0"),
        lambda low: Sentence("the root of a difference that {format} rounds to or below 0", format=low),
    ),
    (
        ("acos", "asin", "atanh", "acosh"),
        L_("an angle of a cosine beyond 1"),
        lambda low: Sentence("the angle of a cosine that {format} rounds beyond 1", format=low),
    ),
    (
        ("_softmax", "_log_softmax", "_safe_softmax"),
        L_("a row masked completely"),
        lambda low: Sentence("a row of scores that is masked completely or beyond the range of {format}", format=low),
    ),
)
_REPEATED = {
    True: L_("the same pass, repeated in FP32, is finite"), False: L_(
        "the same pass, repeated in FP32, is not finite, either"
    )
}  # fmt: skip
_FROM_THERE_ON = L_("computed in FP32 from the first operation on that 16 bits broke, it is finite")
_AS_GIVEN = Blame(False, L_("these numbers were not finite before anything was computed with them"))
_BY_RATE = L_(
    "the optimizer makes steps of the size of the rate, whatever the gradients are, and the weights are in FP32"
)
_OF_ANY_FORMAT = (*_UNDEFINED[1][0], *_UNDEFINED[3][0])
_OF_LOSS = ("div", "div_", "log", "log_", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "acos", "asin", "atanh")


def blame_of(m: Measurements, step: int, *, alike: bool = False) -> Blame:
    """Who made NaN of this step: decided by its repetition in FP32, by a run without 16 bits, or undecided.

    `alike`: the outputs of the model were not finite, so that the repetitions of other steps count, see `repetition`.

    NaN in 16 bits proves nothing: FP16 gives it as Inf / Inf, Inf - Inf and by an epsilon that is 0, BF16 by
    cancellation (sqrt, log(1 - a^2), acos), FP32 by faults that are no matter of formats.
    """
    repeated = repetition(m, step) if alike else fp32_repetition(m.run, step)
    finite = repeated.get("finite")
    if isinstance(finite, bool):
        own = repeated.get("step") == step
        certainty: Certainty = "exact" if own else "estimate"
        return Blame(finite, _REPEATED[finite], "", certainty, (_repeated(repeated),))
    if row := finite_loss(m, step):
        return Blame(True, _FROM_THERE_ON, "", "exact" if row.get("step") == step else "estimate", (_computed(row),))
    return beside_fp64(m, step) or blame_of_symptom(m, needs=replay(m, step))


def beside_fp64(m: Measurements, step: int) -> Blame | None:
    """By this step, or the next one that was computed in FP64 beside itself and is not finite either; None without one.

    Numbers of 16 bits that were there before the step may be what broke it: then FP64 excuses nothing. Of the first
    step only what follows the first pass was seen.
    """
    broken = [row for row in m.fact_rows("exact_steps") if row.get("finite") is False]
    rows = [row for row in broken if whole(row, "step") >= step]
    cause = rows[0].get("cause") if rows else None
    if not isinstance(cause, Mapping):
        return None
    at, own = whole(rows[0], "step"), whole(rows[0], "step") == step
    finite = bool(rows[0].get("finite_in_fp64"))
    place = cause.get("first_nonfinite")
    message = cause.get("message")
    made = message if isinstance(place, Mapping) and isinstance(message, str) else ""
    evidence = Evidence(
        L_("same weights, state, data and random numbers, in FP64"), {"step": at, "finite": str(finite).lower()},
        together(
            Sentence("Step {at}, computed in FP64 beside itself, is finite.", at=at) if finite
            else Sentence("Step {at}, computed in FP64 beside itself, is not finite, either.", at=at),
            made,
        ),
    )  # fmt: skip
    certainty: Certainty = "exact" if own else "estimate"
    if finite and cause.get("overflows") in ("fp32", "fp64"):
        return Blame(False, L_("numbers go beyond the range of FP32, the largest of common formats"), "", certainty,
                     (evidence,))  # fmt: skip
    if finite and cause.get("blame") is True:
        return Blame(True, L_("the same step, computed in FP64, is finite"), "", certainty, (evidence,))
    if not finite and cause.get("blame") is False and made and _are_all_seen(rows[0]):
        return Blame(False, L_("the same step, computed in FP64, is not finite, either"), "", certainty, (evidence,))
    return None


def _are_all_seen(row: Mapping[str, Any]) -> bool:
    """Whether a step began with finite numbers of more digits than 16 bits, and was seen from there on."""
    return row.get("narrow_inputs") is False and not row.get("given") and whole(row, "step") > 1


def blame_of_symptom(m: Measurements, needs: str = L_("the same run in FP32")) -> Blame:
    """Who made what may have any reason: no format where none of 16 bits or fewer was seen, else undecided."""
    if computes_in_16_bits(m) or not _is_seen(m) or rounds_by_itself(m):
        return Blame(needs=needs, certainty="estimate")
    return NO_16_BITS


def blame_of_rate(m: Measurements, update: float, needs: str = L_("the same run in FP32")) -> Blame:
    """Who made an update of this share of the norm of the weights: the rate, where an optimizer like Adam makes steps
    of its size of weights in FP32, whatever the gradients are; else as of any symptom."""
    if is_adaptive(m) and storage(m) == "fp32" and not (low_state(m) or rounds_by_itself(m)) and update > 0:
        return Blame(False, _BY_RATE, certainty="estimate")
    return blame_of_symptom(m, needs)


def blame_of_beginning(m: Measurements) -> Blame:
    """Of numbers that were not finite before anything was computed; a conversion to FP16 may have made them so."""
    return UNDECIDED if storage(m) == "fp16" else _AS_GIVEN


def rounds_by_itself(m: Measurements) -> bool:
    """Whether the loop was seen to round numbers held in FP32 to fewer digits: gradients, weights, activations or the
    state of the optimizer."""
    names = (
        "gradient_edits", "rounded_weights", "rounded_activations", "quantised_values", "rewritten_weights",
        "emptied_moments", "zero_state", "narrow_state",
    )  # fmt: skip
    return any(m.fact_rows(name) for name in names)


def is_state_coarse(m: Measurements) -> bool:
    """Whether an optimizer holds its state in codes, integers or FP16, or rounds numbers so as it steps: then steps may
    be too large at any rate. BF16 has the range of FP32, and makes nothing zero."""
    narrow = any(text(row, "format") != "bf16" for row in m.fact_rows("narrow_state"))
    return narrow or bool(m.fact_rows("emptied_moments") or m.fact_rows("zero_state"))


def repetition(m: Measurements, step: int) -> Mapping[str, Any]:
    """The repetition in FP32 of the forward pass of a step; without one the nearest of the run, where two or more are
    finite in FP32, no other is decided otherwise, and all broke in the same module. {} without any."""
    if own := fp32_repetition(m.run, step):
        return own
    known = [each for each in m.fact_rows("fp32_repetition") if isinstance(each.get("finite"), bool)]
    alike = all(each["finite"] for each in known) and len({each.get("module") for each in known}) == 1
    steps = [whole(each, "step") for each in known]
    return known[int(np.argmin(np.abs(np.array(steps) - step)))] if len(known) >= _ALIKE and alike else {}


def _repeated(repeated: Mapping[str, Any]) -> Evidence:
    finite, part, largest = bool(repeated.get("finite")), str(repeated.get("part")), repeated.get("largest")
    step = whole(repeated, "step")
    text = (
        Sentence("The {part} pass of step {step}, repeated in FP32, is finite.", part=part, step=step)
        if finite
        else Sentence(
            "The {part} pass of step {step}, repeated in FP32, is not finite, either.",
            part=part,
            step=step,
        )
    )
    values: dict[str, float | int | str] = {"step": step, "finite": str(finite).lower(), "part": part}
    if finite and isinstance(largest, int | float) and largest > FP16_LARGEST:
        values["largest"] = float(largest)
        reach = Sentence(
            "Its outputs reach {largest:.4g} there; FP16 ends at {end:.0f}.", largest=largest, end=FP16_LARGEST
        )
        return Evidence(L_("same weights, inputs and random numbers, in FP32"), values, together(text, reach))
    return Evidence(L_("same weights, inputs and random numbers, in FP32"), values, text)


def finite_loss(m: Measurements, step: int) -> Mapping[str, Any]:
    """The row of a step whose loss was seen to be finite in FP32, from the first operation on that 16 bits broke; else
    that of the next step that was seen. {} without any."""
    rows = [each for each in m.fact_rows("finite_in_fp32") if each.get("use") == "loss"]
    return next((each for each in rows if whole(each, "step") >= step), {})


def vanished_epsilon(m: Measurements) -> Evidence | None:
    """As `epsilon_evidence`; None where logarithms or angles ran, too, which may make a loss NaN in any format."""
    return None if any(name in operations(m) for name in _OF_ANY_FORMAT) else epsilon_evidence(m)


def epsilon_evidence(m: Measurements) -> Evidence | None:
    """A number outside of the model that is zero in FP16, in the divisor or the root it was to save."""
    row = epsilon_row(m)
    if not row:
        return None
    value = number(row, "value")
    return Evidence(
        "0 < epsilon < 2^-25", {"epsilon": value, "step": whole(row, "step"), "use": str(row.get("operation"))},
        Sentence(
            "In step {step} the epsilon {value:g} of {operation} at {line} is zero in FP16.",
            step=row.get("step"), value=value, operation=row.get("operation"), line=text(row, "line"),
        )
        if text(row, "line") else Sentence(
            "In step {step} the epsilon {value:g} of a {operation} is zero in FP16.",
            step=row.get("step"), value=value, operation=row.get("operation"),
        ),
    )  # fmt: skip


def epsilon_row(m: Measurements) -> Mapping[str, Any]:
    """The row of `finite_in_fp32` of such a number; {} without one."""
    rows = [each for each in m.fact_rows("finite_in_fp32") if each.get("use") == "epsilon" and not each.get("module")]
    return rows[0] if rows else {}


def cure_of_epsilon(row: Mapping[str, Any]) -> str:
    """The fix of a row with an `operation`, and its `line` where that is known, whose epsilon is zero in FP16."""
    return Sentence(
        "Take an epsilon that FP16 holds in {operation}, such as 1e-4, or compute it in FP32: its operands as "
        ".float().",
        operation=placed(text(row, "operation"), text(row, "line")),
    )  # fmt: skip


def blame_of_epsilon(vanished: Evidence) -> Blame:
    """Precision, by an estimate: a number that is zero in FP16, seen by `epsilon_evidence`, was to save a divisor."""
    return Blame(True, COMPARED.proof, "", "estimate", (vanished,))


def _computed(row: Mapping[str, Any]) -> Evidence:
    step, value, low = whole(row, "step"), number(row, "value"), str(row.get("format")).upper()
    made, module, last = made_by(row), str(row.get("made_in") or ""), noun_of(text(row, "operation"))
    place = Sentence("{operation} in {module}", operation=made, module=module) if module else made
    return Evidence(
        L_("one number, not finite in 16 bits, finite in FP32 from the first such operation on"),
        {"step": step, "operation": made, "value": value},
        Sentence(
            "In step {step} {place} goes beyond the range of {format}; computed in FP32 from there on, {operation} "
            "gives {value:.4g}.", step=step, place=place, format=low, operation=last, value=value,
        )
        if row.get("kind") == "overflow" else Sentence(
            "In step {step} {place} rounds numbers to 0 or 1 in {format}; computed in FP32 from there on, {operation} "
            "gives {value:.4g}.", step=step, place=place, format=low, operation=last, value=value,
        ),
    )  # fmt: skip


def made_by(row: Mapping[str, Any]) -> str:
    """The operation of a row of `finite_in_fp32`, as a noun, with its line where that is known."""
    return placed(str(row.get("made_by")), text(row, "line"))


def placed(operation: str, line: str) -> str:
    """An operation as a noun, with the line that runs it; `line` is '' where that is not known."""
    name = noun_of(operation)
    return Sentence("{operation} at {line}", operation=name, line=short_line(line)) if line else name


def noun_of(operation: str) -> str:
    """The name of an operation of torch in a sentence."""
    name = operation.removeprefix("_")
    return L_("a cast") if name in ("to_copy", "copy") else name


def short_line(line: str) -> str:
    """`file.py:12` without the folders of the file."""
    return line.replace("\\", "/").rpartition("/")[2]


def _is_seen(m: Measurements) -> bool:
    """Whether the formats of a loop are known: one that never calls its model hides its operations."""
    counted = m.environment.get("census")
    hidden = isinstance(counted, Mapping) and "unavailable" in counted
    return not hidden or m.table("activation") is not None


def computes_in_16_bits(m: Measurements) -> bool:
    """Whether anything of these steps ran in BF16, FP16 or fewer bits: by the config, by the digits, by the census."""
    return (
        any(part.precision not in ("fp32", "fp64", "tf32") for part in m.parts)
        or narrow_range(m)
        or storage(m) in DIGITS
        or any(
            result in DIGITS or result == "fp8"
            for kind in ("activation", "activation_gradient")
            if (table := m.table(kind)) is not None
            for result in table.formats
        )
        or bool(low_state(m) or low_formats(m))
    )


def low_state(m: Measurements) -> tuple[str, ...]:
    """The tensors of the optimizer's state that are held in 16 bits."""
    table = m.table("optimizer")
    named = zip(table.names, table.formats, strict=True) if table is not None else ()
    return tuple(name for name, result in named if result in DIGITS)


def low_formats(m: Measurements) -> frozenset[str]:
    """The formats of 16 bits in which operations of the first step ran, by the census."""
    return frozenset(name for own in operations(m).values() for name in _parts(own) if name in DIGITS)


def operations(m: Measurements) -> Mapping[str, Mapping[str, Any]]:
    """How often each operation ran in which format in the first step; {} where they were not counted."""
    counted = m.fact("census").get("operations")
    return {k: v for k, v in counted.items() if isinstance(v, Mapping)} if isinstance(counted, Mapping) else {}


def has_another_scaler(m: Measurements) -> bool:
    """Whether a scaler unscaled gradients that is not the one the recorder was given, whose scale no record holds."""
    scaler = m.fact("scaler")
    is_idle = bool(scaler.get("enabled")) and scaler.get("used") is False
    return is_idle and "_amp_foreach_non_finite_check_and_unscale_" in operations(m)


def _parts(formats: Mapping[str, Any]) -> set[str]:
    return {part for name in formats for part in str(name).split(" x ")}


def undefined_in(m: Measurements, *, by_16_bits: bool = True) -> tuple[str, str]:
    """Operations of the first step that can return NaN or Inf for finite numbers, as a clause; and their format.

    Those in 16 bits where there are any and these may be at fault, else those that ran, else all that are known; the
    format is '' outside 16 bits.
    """
    ran = operations(m)
    for low in (*(sorted(low_formats(m)) if by_16_bits else ()), ""):
        kinds = [
            narrow(_NAMES[low]) if low else wide
            for names, wide, narrow in _UNDEFINED
            if any(name in ran and (not low or low in _parts(ran[name])) for name in names)
        ]
        if kinds:
            return any_of(kinds), low
    known = [wide for _, wide, _ in _UNDEFINED]
    return Sentence("{first}, or {last}", first=together(*known[:-1], between=", "), last=known[-1]), ""


def undefined_by(operation: str, low: str) -> str:
    """How an operation makes NaN or Inf of finite numbers, as a clause; `low`: the format that is to blame, else ''."""
    for names, wide, narrow in _UNDEFINED:
        if operation in names:
            return narrow(_NAMES[low]) if low in _NAMES else wide
    return ""


def any_of(clauses: Sequence[str]) -> str:
    """One of several causes: "a or b or c"."""
    result = clauses[0]
    for each in clauses[1:]:
        result = Sentence("{first} or {second}", first=result, second=each)
    return result


def low_operations(m: Measurements) -> tuple[str, ...]:
    """Operations outside of products that ran in 16 bits and are undefined for some numbers, by name."""
    low = low_formats(m)
    return tuple(name for name, own in operations(m).items() if name in _OF_LOSS and _parts(own) & low)


def infinite_derivatives(m: Measurements) -> tuple[str, ...]:
    """Operations of the first step in 16 bits whose derivative is infinite at the end of their domain, by name."""
    low, ran = low_formats(m), operations(m)
    return tuple(name for name in _INFINITE_AT_THE_END if name in ran and _parts(ran[name]) & low)


def cure_of(m: Measurements, decided: Blame) -> str:
    """The fix for NaN out of finite numbers, narrowed by who is to blame and by the operations that ran."""
    text, low = undefined_in(m, by_16_bits=decided.answer is not False)
    if low:
        return Sentence("Compute it in FP32: suspect is {text}.", text=text)
    return Sentence("Look for {text}; add an epsilon, or use torch.where before the operation.", text=text)
