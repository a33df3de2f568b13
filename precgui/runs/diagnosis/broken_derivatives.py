"""The operation and the line behind gradients that are not finite at a finite loss, as the recorder saw them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from precgui.runs.diagnosis.findings import COMPARED, Blame, Certainty, Evidence
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.recorded_facts import number, text, whole
from precgui.sentences import L_, Sentence

_CHOOSING = ("where", "masked_fill", "masked_fill_")


class BrokenDerivative(NamedTuple):
    """A clause for titles, the cure, what was seen, and the module; '' outside of the model."""

    short: str
    fix: str
    evidence: Evidence
    module: str
    certainty: Certainty
    blame: Blame | None = None  # who made it; None: nothing here decides it


def broken_derivative(m: Measurements, step: int, *, outputs_are_finite: bool) -> BrokenDerivative | None:
    """The operation that made gradients NaN in a step whose loss is finite; None where none was seen.

    `outputs_are_finite`: those of all modules in this step, as far as they were recorded.
    """
    named = _of_exact_step(m, step) or _of_singular_point(m, step)
    return named or (None if outputs_are_finite else _of_masked_rows(m, step))


def _of_singular_point(m: Measurements, step: int) -> BrokenDerivative | None:
    """A logarithm, root or angle in 16 bits that was given exactly the number at which it has no derivative; one that
    was given it in the steps before, too, is harmless."""
    rows = [row for row in m.fact_rows("singular_points") if whole(row, "step") <= step]
    before = {text(row, "line") for row in rows if whole(row, "step") < step}
    row = next((row for row in rows if whole(row, "step") == step and text(row, "line") not in before), None)
    if row is None:
        return None
    operation, line, low = text(row, "operation"), text(row, "line"), text(row, "format").upper()
    operand, wide, output = number(row, "operand"), number(row, "wide"), number(row, "output")
    values: dict[str, float | int | str] = {
        "step": step, "operation": operation, "line": line, "output": output, "operand": operand, "operand_fp32": wide,
    }  # fmt: skip
    seen = Sentence(
        "In step {step} the output {output:.6g} of {module} became exactly {operand:g} in {format} on its way to "
        "{operation} at {line}, whose derivative is infinite there. In FP32 the same operations give {wide:.9g}.",
        step=step, output=output, module=text(row, "module"), operand=operand, format=low, operation=operation,
        line=line, wide=wide,
    )  # fmt: skip
    return BrokenDerivative(
        Sentence(
            "the derivative of {operation} at {line} is infinite in step {step}: its argument is exactly {operand:g} "
            "in {format}",
            operation=operation, line=line, step=step, operand=operand, format=low,
        ),
        L_(
            "Compute this line in FP32 from the outputs on (outputs.float()): constants such as 1 - 1e-6 are 1 in 16 "
            "bits, and an epsilon that is added to a larger number, or is below the range, is lost."
        ),
        Evidence(L_("argument = a point without a derivative in 16 bits, and not in FP32"), values, seen),
        "", "exact", COMPARED,
    )  # fmt: skip


def _of_masked_rows(m: Measurements, step: int) -> BrokenDerivative | None:
    """A softmax over rows that are masked throughout; one that was seen before, with finite gradients, is harmless."""
    row = next((each for each in m.fact_rows("masked_rows") if number(each, "step") >= step), None)
    if row is None:
        return None
    seen, line = whole(row, "step"), str(row.get("line"))
    rows, count = whole(row, "rows"), whole(row, "of")
    return BrokenDerivative(
        Sentence("a softmax at {line} gets rows that are masked throughout: their gradients are NaN", line=line),
        L_(
            "Mask with a large negative number that is finite, not with -Inf, or leave such rows out of the softmax: "
            "the softmax of a row of -Inf alone is NaN, and so is its gradient, although the loss does not count it."
        ),
        Evidence(
            L_("softmax of a row of -Inf alone"),
            {"step": seen, "line": line, "rows": rows, "of": count},
            Sentence(
                "In step {step} {rows} of the {count} rows that the softmax at {line} gets hold -Inf alone, from a "
                "mask.",
                step=seen, rows=rows, count=count, line=line,
            ),
        ),
        str(row.get("module") or ""),
        "exact" if seen == step else "estimate",
    )  # fmt: skip


def line_that_16_bits_broke(m: Measurements, step: int) -> str:
    """The line whose derivative was the first that was NaN or Inf in a step, and is finite in FP64; '' without one."""
    row = next((each for each in m.fact_rows("exact_steps") if each.get("step") == step), {})
    cause = row.get("cause")
    place = cause.get("first_nonfinite") if isinstance(cause, Mapping) and cause.get("blame") is True else None
    return text(place, "line") if isinstance(place, Mapping) and place.get("backward") is True else ""


def _of_exact_step(m: Measurements, step: int) -> BrokenDerivative | None:
    """The operation that made the first NaN or Inf of the step that was computed in FP64, too, and gives it there."""
    rows = [row for row in m.fact_rows("exact_steps") if row.get("step") == step and row.get("finite") is False]
    cause = rows[0].get("cause") if rows else None
    place = cause.get("first_nonfinite") if isinstance(cause, Mapping) and cause.get("blame") is False else None
    if not isinstance(cause, Mapping) or not isinstance(place, Mapping):
        return None
    name, line = str(place.get("operation")).partition(".")[0], str(place.get("line"))
    chosen, is_backward = str(cause.get("left_out_by") or ""), bool(place.get("backward"))
    values: dict[str, float | int | str] = {"step": step, "operation": name, "line": line, "left_out_by": chosen}
    formula = L_("the first operation that made NaN or Inf, in this format and in FP64")
    if is_backward:
        short = Sentence("the derivative of the operation at {line} is not finite in step {step}", line=line, step=step)
        seen = Sentence(
            "In step {step} {operation}, in the backward pass of the operation at {line}, is the first that made NaN "
            "or Inf; the forward pass is finite.",
            step=step, operation=name, line=line,
        )  # fmt: skip
    else:
        short = Sentence(
            "the operation {operation} at {line} makes NaN or Inf that the loss leaves out, and gradients do not, in "
            "step {step}",
            operation=name, line=line, step=step,
        )  # fmt: skip
        seen = Sentence(
            "In step {step} {operation} at {line} is the first that made NaN or Inf, in the forward pass; the loss is "
            "finite.",
            step=step, operation=name, line=line,
        )  # fmt: skip
    if chosen in _CHOOSING:
        fix = L_(
            "torch.where computes both branches, and the derivative of the one that is not taken is not finite there: "
            "choose a harmless argument inside, before the function, as f(torch.where(condition, x, 1)), or clamp it."
        )
    elif is_backward:
        fix = L_("Look for sqrt at 0, a norm of zero, or a root or power without an epsilon in this line.")
    else:
        fix = L_("Keep the argument of this operation where it is defined: zero times NaN is NaN in the backward pass.")
    return BrokenDerivative(short, fix, Evidence(formula, values, seen), str(place.get("module") or ""), "exact")
