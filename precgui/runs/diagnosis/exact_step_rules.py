"""Steps of a loop that were computed in FP64 beside themselves: how far off they are, and which operation made it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from precgui.events import Severity
from precgui.runs.diagnosis.analysis import has_fallen, percent
from precgui.runs.diagnosis.blame import computes_in_16_bits
from precgui.runs.diagnosis.findings import IN_ANY_FORMAT, Blame, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.number_formats import DIGITS
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, rows_of, text, whole
from precgui.sentences import L_, Sentence

STEP, UPDATE = "inexact-step", "inexact-update"
# Rules that say what is wrong with an update.
OF_UPDATES = frozenset(
    {"stagnation", "lost-updates", "epsilon-vanishes", "moments-underflow", "optimizer-in-fp16", "frozen-moments",
     "frozen-average", "weights-unchanged", "coarse-quantiser", "stale-casts", "weights-shrink"}
)  # fmt: skip
_FAR, _VERY_FAR = 0.15, 0.5  # relative error of the gradients, or of the loss
_LOSES = 1e-3  # loss over the operands of a difference, or their squares: below it these may be outputs and targets
_LOST = 0.3  # part of an update that arrives
_FEWEST = 2  # steps, of a run in which so many were computed in FP64
_EACH, _FAR_LOSS, _MANY_SUMS = 3, 0.2, 64
_ANY_LINE = ("rounding", "sensitive")  # kinds of operations that are any line of a long sum
_KEPT, _BY_FORMAT = 0.5, 0.7
_EARLY, _AS_LARGE = 32, 0.9  # the last of the first steps, and the median error of their gradients
_OVER = 2.0**-23  # of the largest loss: what is left is below a digit of FP32 of it
_WRONG = 1.0  # relative error of an update whose weights are stored well enough
_number = partial(number, missing=math.nan)
_IN_FP64 = Blame(
    True, L_("computed in FP64 from the same numbers the step differs, and less where the named operations run in FP64")
)
_SOURCE = L_("Menon et al. 2018, ADAPT; Zamirai et al. 2020, Revisiting BFloat16 Training")
_CURES = {
    "underflow": L_("Scale these numbers up (a loss scale, for gradients), or compute the line in FP32."),
    "overflow": L_("Scale these numbers down, or compute the line in FP32."),
    "cancellation": L_(
        "Subtract before rounding: compute the difference in FP32 from operands that were never rounded to fewer "
        "digits, or write it so that no nearly equal numbers are subtracted."
    ),
    L_("cancellation in fp32"): L_(
        "Take a larger step of the difference, compute it and its operands in FP64, or take the derivative itself "
        "(torch.autograd.grad with create_graph=True) in place of differences."
    ),
    "cast": L_("Cast later: keep the number in FP32 up to the operation that needs few digits."),
    "sum": L_("Add in FP32: sums of many terms in 16 bits swallow small ones (x.float().sum(), dtype=torch.float32)."),
    "sensitive": L_(
        "Compute this line in FP32, from operands in FP32 (.float() before it, or autocast off around it)."
    ),
    "rounding": L_("Compute this line in FP32 (.float() before it, or autocast disabled around it)."),
}


def inexact_step(m: Measurements) -> Answer:
    """Steps whose gradient, loss or update is mostly rounding that another arithmetic would not make."""
    rows = _while_learning([row for row in m.fact_rows("exact_steps") if "unavailable" not in row])
    if not m.own_loop or not m.n or not rows:
        return None
    finding = _of_gradients(m, rows)
    if finding is None or (_long_sum(m) and finding.evidence[0].values.get("kind") in _ANY_LINE):
        finding = _of_all_losses(m, rows) or finding
    finding = finding or _of_the_format(m, rows)
    if finding is not None:
        return [finding]
    known = [_number(row, "gradient_error") for row in rows]
    largest = max((each for each in known if math.isfinite(each)), default=math.nan)
    if not math.isfinite(largest) or largest > _FAR:  # no line explains it, which rules nothing out
        return None
    steps = ", ".join(str(row.get("step")) for row in rows)
    return RuledOut(
        STEP,
        Sentence(
            "because the gradients of the steps {steps} are at most {largest} from those of FP64",
            steps=steps,
            largest=percent(largest),
        ),
    )


def _while_learning(rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without steps whose loss is next to nothing in FP64, too: their gradients are the last digits of outputs that
    are right."""
    losses = [abs(_number(row, "loss_fp64")) for row in rows]
    most = max((each for each in losses if math.isfinite(each)), default=0.0)
    return [row for row, loss in zip(rows, losses, strict=True) if not loss < _OVER * most]


def _of_all_losses(m: Measurements, rows: Sequence[Mapping[str, Any]]) -> Finding | None:
    """The losses and gradients of all compared steps of a run in 16 bits are far off, and no line explains them."""
    if len(rows) < _EACH or not computes_in_16_bits(m) or not all(_is_far_off(row) for row in rows):
        return None
    row = max(rows, key=_loss_error)
    step, low, exact = whole(row, "step"), _number(row, "loss"), _number(row, "loss_fp64")
    causes = [each for one in rows if isinstance(each := one.get("cause"), Mapping)]
    named = next((each for one in causes if isinstance(each := one.get("cancelled"), Mapping)), None)
    error, sums = _size(_loss_error(row)), _long_sum(m)
    if named is not None:
        title = Sentence(
            "The loss of step {step} is {error} off the one that FP64 gives: nearly equal numbers are subtracted in "
            "{stored} at {line}",
            step=step, error=error, stored=str(named.get("format")).upper(), line=str(named.get("line")),
        )  # fmt: skip
        cure = _CURES["cancellation"]
    elif sums:
        title = Sentence(
            "The loss of step {step} is {error} off the one that FP64 gives: the loop adds up {many:.0f} numbers one "
            "by one in {stored}",
            step=step, error=error, many=_number(sums, "per_pass"), stored=str(sums.get("format", "")).upper(),
        )  # fmt: skip
        cure = _CURES["sum"]
    else:
        title = Sentence("The loss of step {step} is {error} off the one that FP64 gives", step=step, error=error)
        cure = L_(
            "Compute the loss, its targets and what goes into it in FP32; precgui.shadow around the step names lines."
        )
    proof = Evidence(
        L_("|loss - loss in FP64| / |loss in FP64| > 0.2 and of the gradients > 0.15 in each compared step"),
        {"loss": low, "loss_in_fp64": exact, "gradient_error": _number(row, "gradient_error"), "steps": len(rows)},
        Sentence(
            "In each of the steps {steps}, computed in FP64 from the same numbers, loss and gradient are others: in "
            "step {step} the loss was {low:.4g}, in FP64 {exact:.4g}, and the gradients were {error} off.",
            steps=", ".join(str(each.get("step")) for each in rows), step=step, low=low, exact=exact,
            error=_size(_number(row, "gradient_error")),
        ),
        L_("relative error of the gradients"), tuple((whole(each, "step"), _distance(each)) for each in rows),
    )  # fmt: skip
    return Finding(
        STEP, "error", title, whole(rows[0], "step"), int(m.steps[-1]), (proof,), cure, 0.8, _SOURCE,
        str(named.get("module") or "") if named is not None else "", certainty="estimate",
        blame=Blame(True, L_("computed in FP64 from the same numbers the loss is another one")),
    )  # fmt: skip


def _of_the_format(m: Measurements, rows: Sequence[Mapping[str, Any]]) -> Finding | None:
    """Gradients are off by as much as they are, from the first steps on, by what products and casts of 16 bits cost.

    No line makes that alone, and FP32 in all of them mends it: as where products of large numbers cancel. Steps of a
    run that has learnt are left out, whose gradients are small.
    """
    early = [row for row in rows if whole(row, "step") <= _EARLY and row.get("finite") and row.get("finite_in_fp64")]
    if len(early) < _EACH or not computes_in_16_bits(m):
        return None
    far = [row for row in early if _is_lost_in_products(row)]
    if not statistics.median(_number(row, "gradient_error") if row in far else 0.0 for row in early) > _AS_LARGE:
        return None
    row = max(far, key=lambda each: _number(each, "gradient_error"))
    step, error = whole(row, "step"), _number(row, "gradient_error")
    proof = Evidence(
        L_("median of |gradient - gradient in FP64| / |gradient in FP64| > 0.9 in the first steps, > 70 % by products"),
        {"gradient_error": error, "steps": len(far), "of": len(early)},
        Sentence(
            "Of {count} early steps that were computed in FP64 from the same numbers, the gradients of {far_count} "
            "({steps}) are off by about their own size or more, in step {step} by {error}: products and casts in 16 "
            "bits cost that.",
            count=len(early), far_count=len(far), steps=", ".join(str(each.get("step")) for each in far), step=step,
            error=_size(error),
        ),
        L_("relative error of the gradients"), tuple((whole(each, "step"), _distance(each)) for each in rows),
    )  # fmt: skip
    return Finding(
        STEP, "warning",
        Sentence("The gradients are mostly rounding: in step {step} they are off by {error}", step=step,
                 error=_size(error)),
        whole(far[0], "step"), int(m.steps[-1]), (proof,),
        L_(
            "Compute in FP32 what multiplies or subtracts large numbers that cancel (coordinates, momenta, distances): "
            "torch.autocast(..., enabled=False) around it, and operands that were never rounded to 16 bits. Where the "
            "place is not known, take parts of the model out of autocast one by one."
        ),
        0.8, _SOURCE, certainty="exact",
        blame=Blame(True, L_("computed in FP64 from the same numbers the gradients are others")),
    )  # fmt: skip


def _is_lost_in_products(row: Mapping[str, Any]) -> bool:
    cause, error = row.get("cause"), _number(row, "gradient_error")
    return isinstance(cause, Mapping) and error > _VERY_FAR and _number(cause, "ideal_error") > _BY_FORMAT * error


def _long_sum(m: Measurements) -> Mapping[str, Any]:
    """The longest sum that the loop makes one number at a time in 16 bits; empty where none is long."""
    longest = max(m.fact_rows("loop_additions"), key=lambda each: _number(each, "per_pass"), default={})
    return longest if _number(longest, "per_pass") >= _MANY_SUMS else {}


def _is_far_off(row: Mapping[str, Any]) -> bool:
    both = row.get("finite") and row.get("finite_in_fp64")
    return bool(both) and _number(row, "gradient_error") > _FAR and _loss_error(row) > _FAR_LOSS


def inexact_update(m: Measurements) -> Answer:
    """Updates that the weights do not take, or that the arithmetic of the optimizer makes others."""
    rows = _while_learning([row for row in m.fact_rows("exact_steps") if "unavailable" not in row])
    known = [(whole(row, "step"), each) for row in rows if isinstance(each := row.get("updates"), Mapping) and each]
    if not m.own_loop or not m.n or not known:
        return None
    if (finding := _of_updates(m, known)) is not None:
        return [finding]
    alongs = [each for _, row in known if math.isfinite(each := _number(row, "along"))]
    if not alongs:
        return None
    return RuledOut(
        UPDATE,
        Sentence(
            "because at least {alongs} of the updates that were computed in FP64 arrive",
            alongs=percent(min(alongs)),
        ),
    )


def _of_gradients(m: Measurements, rows: Sequence[Mapping[str, Any]]) -> Finding | None:
    far = [row for row in rows if _is_far(row)] or [row for row in rows if _is_cancelled(row)]
    if not _are_enough(far, rows):
        return None
    row = max(far, key=_distance)
    cause = row["cause"]
    operations = rows_of([cause.get("cancelled")] if _is_cancelled(row) else cause.get("operations"))
    if not operations:
        return None
    first, step = operations[0], whole(row, "step")
    error, loss_error = _number(row, "gradient_error"), _loss_error(row)
    name, made = str(first.get("operation")), _joined([_made(each) for each in operations[:2]])
    title = (
        Sentence(
            "The loss of step {step} is {error} off the one that FP64 gives, mostly by {operation}",
            step=step,
            error=_size(loss_error),
            operation=made,
        )
        if loss_error > error
        else Sentence(
            "The gradient of step {step} is {error} off the one that FP64 gives, mostly by {operation}",
            step=step,
            error=_size(error),
            operation=made,
        )
    )
    proof = Evidence(
        L_(
            "|gradient - gradient in FP64| / |gradient in FP64|, same weights, data, random numbers and decisions"
        ),
        {"gradient_error": error, "unavoidable": _number(cause, "ideal_error"), "loss": _number(row, "loss"),
         "loss_in_fp64": _number(row, "loss_fp64"), "line": str(first.get("line")), "operation": name,
         "kind": str(first.get("kind"))},
        Sentence("Step {step} beside FP64: {message}", step=step, message=cause.get("message")),
        L_("relative error of the gradients"), tuple((whole(each, "step"), _distance(each)) for each in far),
    )  # fmt: skip
    module = str(first.get("module") or "")
    return Finding(
        STEP, "error" if _distance(row) > _VERY_FAR else "warning", title, whole(far[0], "step"), int(m.steps[-1]),
        (proof,), _CURES.get(str(first.get("kind")), _CURES["rounding"]), 0.85, _SOURCE, module,
        certainty="estimate",
        blame=_IN_FP64,
    )  # fmt: skip


def _made(row: Mapping[str, Any]) -> str:
    """An operation that the shadow names, with its format and line."""
    name = L_("a cast") if row.get("operation") == "_to_copy" else str(row.get("operation"))
    low, line = str(row.get("format")).upper(), row.get("line")
    if row.get("backward"):
        return Sentence("{operation} (derivative) in {format} at {line}", operation=name, format=low, line=line)
    return Sentence("{operation} in {format} at {line}", operation=name, format=low, line=line)


def _joined(clauses: Sequence[str]) -> str:
    return clauses[0] if len(clauses) == 1 else Sentence("{first} and {second}", first=clauses[0], second=clauses[1])


def _size(error: float) -> str:
    return percent(error) if error < 2 else Sentence("{error:.3g} times", error=error)


def _is_far(row: Mapping[str, Any]) -> bool:
    cause = row.get("cause")
    if not isinstance(cause, Mapping) or not row.get("finite") or not row.get("finite_in_fp64"):
        return False
    return cause.get("verdict") == "problems" and cause.get("blame") is True and _distance(row) > _FAR


def _is_cancelled(row: Mapping[str, Any]) -> bool:
    """Whether the gradients of a step in FP32 are far off by a difference of nearly equal numbers.

    So are those of a model that has learnt all, whose outputs are its targets: but its loss is small beside them.
    """
    cause = row.get("cause")
    if not isinstance(cause, Mapping) or not row.get("finite") or not row.get("finite_in_fp64"):
        return False
    difference = cause.get("cancelled")
    if not isinstance(difference, Mapping) or difference.get("kind") != "cancellation in fp32":
        return False
    if not _number(row, "gradient_error") > _FAR:
        return False
    operands = _number(difference, "of")
    return abs(_number(row, "loss_fp64")) > _LOSES * max(operands, operands**2)


def _distance(row: Mapping[str, Any]) -> float:
    return max(_number(row, "gradient_error"), _loss_error(row))


def _loss_error(row: Mapping[str, Any]) -> float:
    low, exact = _number(row, "loss"), _number(row, "loss_fp64")
    return abs(low - exact) / abs(exact) if exact else 0.0


def _are_enough(far: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> bool:
    return len(far) >= min(_FEWEST, len(rows)) and bool(far)


def _of_updates(m: Measurements, known: Sequence[tuple[int, Mapping[str, Any]]]) -> Finding | None:
    broken = [(step, each) for step, each in known if each.get("finite") is False and each.get("finite_in_fp64")]
    if broken and isinstance(cause := broken[0][1].get("cause"), Mapping) and cause.get("blame") is True:
        return _broken_update(m, broken[0][0], cause)
    lost = [(step, each) for step, each in known if _is_lost(each) or _is_wrong(each)]
    if len(lost) < min(_FEWEST, len(known)) or not lost or 2 * len(lost) < len(known):
        return None
    step, row = lost[len(lost) // 2]
    stored = _number(row, "left_when_stored_in_fp64") < _KEPT
    low, along, error = str(row.get("format")).upper(), _number(row, "along"), _number(row, "error")
    arrives = percent(max(along, 0.0))
    title = (
        Sentence(
            "Only {arrives} of the updates arrive: the weights are stored in {low}",
            arrives=arrives,
            low=low,
        )
        if stored
        else Sentence(
            "The updates are {error} off what FP64 makes of the same gradients and state{at}",
            error=_size(error),
            at=_at(row),
        )
    )
    proof = Evidence(
        L_("|update - update in FP64| / |update in FP64|, and <update, update in FP64> / |update in FP64|^2"),
        {"error": error, "along": along, "norm": _number(row, "norm"), "weights": whole(row, "weights")},
        Sentence(
            "The update of step {step}, computed in FP64 from the same gradients and the same state, differs by "
            "{error} of its norm; {arrives} of it is made. Most is lost in {worst}.",
            step=step, error=_size(error), arrives=arrives, worst=row.get("worst"),
        ),
        L_("part of the update that is made"), tuple((at, _number(each, "along")) for at, each in lost),
    )  # fmt: skip
    fix = (
        Sentence(
            "Keep a copy of the weights in FP32 (master weights) and round it to {low} for the model, round "
            "stochastically, or add a compensation (Kahan): most updates are below half the distance of two numbers.",
            low=low,
        )
        if stored
        else L_(
            "Compute the optimizer's moments, their squares and its divisions in FP32; its epsilon must not vanish."
        )
    )
    grave: Severity = "error" if along < _LOST or error > 2 * _WRONG else "warning"
    harmless = not stored and m.finite_loss.all() and all(_arrives(each) for _, each in lost) and has_fallen(m)
    return Finding(
        UPDATE, "info" if harmless else grave, title, lost[0][0], int(m.steps[-1]),
        (proof,), fix, 0.85, _SOURCE, "", (str(row.get("worst")),), certainty="estimate",
        blame=Blame(True, L_("the same update, computed in FP64 from the same gradients and state, differs")),
    )  # fmt: skip


def _at(row: Mapping[str, Any]) -> str:
    place = row.get("made_at")
    if not isinstance(place, Mapping):
        return ""
    formats = " and ".join(str(each).upper() for each in place.get("formats", []))
    return Sentence(", mostly by {formats} at {line}", formats=formats, line=place.get("line"))


def _is_lost(row: Mapping[str, Any]) -> bool:
    """Whether the weights in 16 bits do not take an update that nothing else keeps."""
    if text(row, "format") not in DIGITS or not _number(row, "error") > _KEPT:
        return False
    is_kept = _number(row, "kept_elsewhere") > _KEPT
    return not is_kept and _number(row, "left_when_stored_in_fp64") < _KEPT and _number(row, "along") < _LOST


def _is_wrong(row: Mapping[str, Any]) -> bool:
    """Whether the arithmetic of the update, not the storage of the weights, makes another update."""
    if _number(row, "kept_elsewhere") > _KEPT:  # a compensation, which is added before the weights are stored
        return False
    return _number(row, "error") > _WRONG and _number(row, "left_when_stored_in_fp64") > 1 - _KEPT


def _arrives(row: Mapping[str, Any]) -> bool:
    """Whether most of the update of FP64 is made, whatever else is made beside it.

    So it is where second moments of an optimizer like Adam are zero in FP16 and its epsilon, which is not, bounds the
    division: the step goes down along the gradient, longer than it was meant. Its harm would show in the loss.
    """
    return _number(row, "along") > _KEPT


def _broken_update(m: Measurements, step: int, cause: Mapping[str, Any]) -> Finding:
    name, line = str(cause.get("made_by")).strip("_"), str(cause.get("line"))
    culprit, where = str(cause.get("culprit")).strip("_"), str(cause.get("culprit_line"))
    before = (
        Sentence(" because of what was lost before by {culprit} at {where}", culprit=culprit, where=where)
        if culprit != name or where != line
        else ""
    )
    proof = Evidence(
        L_("weights after the step: not finite; in FP64 from the same gradients and state: finite"),
        {"step": step, "operation": name, "line": line},
        Sentence(
            "In step {step} {name} at {line} returns NaN or Inf{before}; in FP64 the update is finite.",
            step=step, name=name, line=line, before=before,
        ),
    )  # fmt: skip
    return Finding(
        UPDATE, "error", Sentence(
            "The update of step {step} is not finite, and is in FP64: {name} at {line}",
            step=step, name=name, line=line,
        ), step,
        int(m.steps[-1]), (proof,),
        L_(
            "Compute the update in FP32: moments and squares of small gradients, and the epsilon, are 0 in 16 bits."
        ), 0.9,
        _SOURCE, blame=Blame(True, L_(
            "the same update, computed in FP64 from the same gradients and state, is finite"
        )),
    )  # fmt: skip


def softmax_over_batch(m: Measurements) -> Answer:
    """Scores that a softmax normalises over the samples of a batch before a loss of classes reads them."""
    rows = [row for row in m.fact_rows("exact_steps") if "unavailable" not in row]
    found = [(whole(row, "step"), each) for row in rows if isinstance(each := row.get("softmax_over_batch"), Mapping)]
    if not m.own_loop or not m.n or not rows:
        return None
    if not found:
        return RuledOut(
            "softmax-over-batch", L_("because no loss of classes was seen to get a softmax over the samples")
        )
    step, row = found[0]
    name, module, line = str(row.get("operation")), str(row.get("module") or ""), str(row.get("line"))
    proof = Evidence(
        L_("the loss picks a class along dimension 1 of a softmax over dimension 0"),
        {"step": step, "samples": whole(row, "samples"), "classes": whole(row, "classes"), "line": line},
        Sentence(
            "In step {step} {name} at {line} normalises over the {number} samples of the batch (dim 0), and the "
            "loss picks one of {number2} classes (dim 1) of each.",
            step=step, name=name, line=line, number=whole(row, "samples"),
            number2=whole(row, "classes"),
        ),
    )  # fmt: skip
    return [
        Finding(
            "softmax-over-batch", "warning", Sentence(
                "The {name} before the loss is over the batch, not over the classes",
                name=name,
            ),
            step, int(m.steps[-1]), (proof,),
            L_("Give it the dimension of the classes: dim=1 (dim=-1 where they are the last one)."), 0.95,
            "torch.nn.functional.log_softmax and nll_loss documentation", module, blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


RULES = (
    Rule(STEP, "B", L_("Is the gradient of a step that of FP64?"), inexact_step),
    Rule(UPDATE, "B", L_("Do the weights take the update that FP64 makes of the same gradients?"), inexact_update),
    Rule(
        "softmax-over-batch", "C", L_("Is a softmax before the loss over the samples of a batch?"), softmax_over_batch
    ),
)
