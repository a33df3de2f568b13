"""The verdict on a step: nothing is named without a share and a counterfactual that agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from precgui.engine.dtype_names import dtype_name
from precgui.engine.shadow.differences import SUMS, least_left, least_left_in_16_bits
from precgui.engine.shadow.line_groups import LARGEST_GROUP, fewest, with_readers
from precgui.engine.shadow.measures import LOSS_ROUNDINGS, SMOOTH, StepMeasures
from precgui.engine.shadow.tape import NO_LINE, SourceLine
from precgui.engine.shadow.unavoidable_error import by_line, is_avoidable, is_product
from precgui.sentences import L_, Sentence, counted, filled, together, whole

_EXCESS = 1.42  # times the error that any step in these formats has: below it no line is named
_UNEXPLAINED = 3.0  # times the same: above it no step is healthy
_WITHOUT_LINE = 0.5  # of the error, avoidable and made where no line is known: above it no step is healthy
_SHARE = 0.3  # of the error, that a line could have avoided
_LEFT = 0.7  # of the error, when it runs in FP64
_TOGETHER = 0.1  # a line that is named with others
_CANDIDATES = 3
_GROWTH = 4  # how many times a region takes in the lines that follow it
_FLIPPED, _FLIPPED_MORE = 0.1, 3.0  # of the gradient, and times its error: less may be the luck of one element
_LEFT_BY_PRODUCTS = 0.5  # of error and flips, when all but products runs in FP64
_MOST_TRIED = 6  # lines
_CANCELLED = 8.0  # times a difference is smaller than what it is made of: three bits are gone
_NEGLIGIBLE = 1e-5  # a gradient with five right digits is no problem, whoever made the rest
_ROUNDOFF_FP32 = 2.0**-24
_FAR = 0.05  # relative error of a gradient, and of a difference
_RIGHT_IN_FP32 = 1e-3  # of the operands of a difference
_ROUNDINGS = 4.0  # of operands in 16 bits that are right
_MULTIPLIED = 10.0  # times a difference, or its square: a loss that is larger divides it by something small
_LEARNT = 1e-3  # loss over operands, or their squares: below it they may be outputs and what these are to be
_OF_LOSS = 0.5  # of the error of a loss: made by lines that are named, and left when they run in FP64
LEAST_FLIPS = 1e-3  # of the gradient: smaller ones are not worth a sentence
_OUTSIDE = L_(
    "A part of the forward pass ran outside of the recorded step, before it or in another thread, so its error is not "
    "in this figure: run the whole forward pass inside of the step and in its thread."
)
_TOO_SMALL = L_("{share} of the gradient's squared error is made by numbers too small for the format")
_TOO_LARGE = L_("{share} of the gradient's squared error is made by numbers too large for the format")
_RAISE = L_("raise the loss scale, or keep them in a wider format")
_LOWER = L_("lower the loss scale, or keep them in a wider format")
_SCALE = L_("scale them, or keep them in a wider format")


@dataclass(frozen=True)
class Judgement:
    """A verdict with the lines that it names, worst first."""

    verdict: Literal["healthy", "problems", "not explained"]
    message: str
    precision_is_to_blame: bool | None
    lines: list[SourceLine] = field(default_factory=list)


def judge(shadow: StepMeasures) -> Judgement:
    """The verdict on a step."""
    if not shadow.is_finite:
        return _nonfinite(shadow)
    if shadow.gradient_error < _NEGLIGIBLE:
        return _healthy_if_explained(shadow)
    larger_first = (_loss, _one_line) if shadow.loss_error > shadow.gradient_error else (_one_line, _loss)
    for rule in (_cancelled, _hidden_overflow, _out_of_range, *larger_first, _decisions, _group):
        judgement = rule(shadow)
        if judgement is not None:
            return judgement
    return _healthy_if_explained(shadow)


def _healthy_if_explained(shadow: StepMeasures) -> Judgement:
    """No line is named: the step is healthy where its error is known and no larger than these formats cost."""
    reason = _not_followed(shadow)
    if reason:
        return Judgement("not explained", together(whole(_size_of(shadow)), reason), None)
    healthy = Sentence("{error}; no line adds an error of its own.", error=_size_of(shadow))
    return Judgement("healthy", healthy, False)


def _not_followed(shadow: StepMeasures) -> str:
    """Why the error is not known, or not explained by what was followed; '' where it is."""
    if shadow.step.tape.unrecorded:
        return _OUTSIDE
    if shadow.gradient_error < _NEGLIGIBLE:
        return ""
    if not math.isfinite(shadow.gradient_error):
        return L_("In FP64 the gradient is not finite, though it is in the step.")
    low, high = SMOOTH
    if not low <= shadow.explained <= high:
        if excess(shadow) < _EXCESS and shadow.gradient_error < _FAR:
            return ""  # all that is no product in FP64 leaves it, and it is small
        return Sentence(
            "The shares of the operations add up to {sum:.2f} of the error, not to 1: the step is not smooth around "
            "itself, and neither a single line nor a few together leave less error in FP64.",
            sum=shadow.explained,
        )
    without = _avoidable(shadow).get(NO_LINE, 0.0)
    if without > _WITHOUT_LINE:
        return Sentence(
            "{share} of the squared error is made by operations of which no source line is known, such as those of C++ "
            "extensions or generated code.",
            share=_percent(without),
        )
    if excess(shadow) > _UNEXPLAINED:
        return L_(
            "That is more than these formats cost, but neither a single line nor a few together leave less error in "
            "FP64."
        )
    return ""


def excess(shadow: StepMeasures) -> float:
    """How many times the error is that the products and casts of this precision cost alone; inf where that is 0."""
    return shadow.gradient_error / shadow.ideal_error if shadow.ideal_error else math.inf


def _size_of(shadow: StepMeasures) -> Sentence:
    if shadow.ideal_error < _ROUNDOFF_FP32:  # a ratio to it says nothing on the step
        if not shadow.ideal_error:
            return Sentence(
                "The gradient is off by {error:.2e}; products and casts of this precision alone cost nothing",
                error=shadow.gradient_error,
            )
        return Sentence(
            "The gradient is off by {error:.2e}; products and casts of this precision alone cost {cost:.2e}, less than "
            "one rounding to FP32",
            error=shadow.gradient_error,
            cost=shadow.ideal_error,
        )
    return Sentence(
        "The gradient is off by {error:.2e}, which is {times:.1f} times the error that the products and casts of this "
        "precision cost alone",
        error=shadow.gradient_error,
        times=excess(shadow),
    )


def _with_size(shadow: StepMeasures, message: Sentence) -> Sentence:
    """A message with the error of the gradient behind it."""
    return together(message, whole(_size_of(shadow)))


def _percent(share: float) -> str:
    return f"{min(share, 1.0):.0%}"


def _nonfinite(shadow: StepMeasures) -> Judgement:
    origin = shadow.origin
    if origin is None:
        return Judgement("problems", L_("The step is not finite, and so are its inputs or its weights."), False)
    created, culprit = origin.operation, origin.culprit
    place = {"operation": created.name, "line": created.origin.line.label}
    where = (
        Sentence("{operation} at {line} (backward)", **place)
        if created.origin.backward
        else Sentence("{operation} at {line} (forward)", **place)
    )
    if not origin.precision_is_to_blame:
        return Judgement(
            "problems",
            Sentence("{where} gave NaN or Inf, and gives it in FP64 as well: precision is not to blame.", where=where),
            False,
            [created.origin.line],
        )
    if culprit is created:
        message = Sentence(
            "{where} gave NaN or Inf because its result does not fit its format; in FP64 it is finite.", where=where
        )
        return Judgement("problems", message, True, [created.origin.line])
    return Judgement(
        "problems",
        Sentence(
            "{where} gave NaN or Inf because of what was lost before it, by {operation} at {line}; in FP64 it is "
            "finite.",
            where=where,
            operation=culprit.name,
            line=culprit.origin.line.label,
        ),
        True,
        list(dict.fromkeys((culprit.origin.line, created.origin.line))),
    )


def _cancelled(shadow: StepMeasures) -> Judgement | None:
    """A difference of nearly equal numbers, which makes the noise of right operands as large as itself.

    Products make that noise, and in this format none is less: so no share tells it.
    """
    tape = shadow.step.tape
    if not shadow.gradient_error > _FAR:
        return None
    found, right = least_left(tape), _RIGHT_IN_FP32
    loss, counts = abs(shadow.loss_fp64), False
    if found is not None:
        counts = loss > _LEARNT * max(found.of, found.of**2)
    elif (found := least_left_in_16_bits(tape)) is not None:
        left = found.of / found.times  # as a loss that only compares the operands has it, or its square
        dtype = tape.dtypes[found.operation.outputs[0] or 0]
        right, counts = _ROUNDINGS * torch.finfo(dtype).eps, loss > _MULTIPLIED * max(left, left**2)
    if found is None or not counts:
        return None
    ids = [*found.operation.inputs, *(id for id in found.operation.outputs[:1] if id is not None)]
    errors = shadow.errors_of(ids)
    *before, after = (errors.get(id, math.nan) for id in ids)
    if not after > _FAR or not max(before) < right:
        return None
    line = found.operation.origin.line
    format_name = dtype_name(tape.dtypes[found.operation.outputs[0] or 0]).upper()
    return Judgement(
        "problems",
        _with_size(
            shadow,
            Sentence(
                "{line} subtracts nearly equal numbers in {format}: they are {times:.1e} times as large as their "
                "difference. Their relative error is {before:.1e}, that of the difference {after:.1e}. Take a larger "
                "step of the difference, or compute it and its operands in a wider format.",
                line=line.label,
                format=format_name,
                times=found.times,
                before=max(before),
                after=after,
            ),
        ),
        True,
        [line],
    )


def _hidden_overflow(shadow: StepMeasures) -> Judgement | None:
    """Inf that never reaches the loss: x / inf is 0."""
    producers = [line for line in dict.fromkeys(o.origin.line for o in shadow.hidden_producers) if line.number]
    groups = [*([line] for line in producers), producers[:LARGEST_GROUP]]
    lines = next((each for each in groups if each and shadow.measured(each) < _LEFT), [])
    if not lines:
        return None
    message = counted(
        "A number at {lines} does not fit its format; the Inf vanishes later, but {left:.0%} of the gradient's error "
        "is left when the line runs in FP64.",
        "Numbers at {lines} do not fit their formats; the Inf vanishes later, but {left:.0%} of the gradient's error "
        "is left when these lines run in FP64.",
        len(lines),
        lines=_listed(lines),
        left=shadow.measured(lines),
    )
    return Judgement("problems", _with_size(shadow, message), True, lines)


def _out_of_range(shadow: StepMeasures) -> Judgement | None:
    """Numbers below the normal ones of their format or above its largest: a matter of scale, not of digits."""
    for shares, fault, scale in (
        (shadow.shares.flush, _TOO_SMALL, _RAISE),
        (shadow.shares.saturated, _TOO_LARGE, _LOWER),
    ):
        total = math.fsum(shares.values()) / (shadow.explained or 1.0)
        if total < _SHARE:
            continue
        operations = shadow.step.tape.operations
        lost = {i for i, share in shares.items() if share}
        cure = _SCALE
        if any(operations[i].origin.backward for i in lost):  # the next operation would lose the same numbers again
            cure = scale
            lost |= {operation.index for operation in operations if operation.origin.backward}
        left = shadow.error_left(lost)
        if left < _LEFT:
            lines = by_line(shadow.step.tape, shares)
            worst = sorted((line for line in lines if line.number), key=lambda line: -lines[line])
            made = filled(fault, share=_percent(total))
            if worst:
                made = Sentence("{made}, most of them at {line}", made=made, line=worst[0].label)
            message = Sentence(
                "{made}: {cure}; {left:.0%} of the error is left when the operations that lose them run in FP64.",
                made=made,
                cure=cure,
                left=left,
            )
            return Judgement("problems", _with_size(shadow, message), True, worst[:_CANDIDATES])
    return None


def _one_line(shadow: StepMeasures) -> Judgement | None:
    """A line that could have avoided a good part of the error, or a few that stand together."""
    if shadow.gradient_error < _EXCESS * shadow.product_error:
        return None
    avoidable = _avoidable(shadow)
    ordered = sorted((line for line in avoidable if line.number), key=lambda line: -avoidable[line])
    worst = [line for line in ordered[:_CANDIDATES] if avoidable[line] >= _SHARE]
    for line in worst:
        region = _grown(shadow, line)
        if shadow.left_without_products(region) < _LEFT:
            return _named(shadow, region, avoidable[line])
    few = [line for line in ordered[:LARGEST_GROUP] if avoidable[line] >= _TOGETHER]
    total = math.fsum(avoidable[line] for line in few)
    if len(few) > 1 and total >= _SHARE and shadow.left_without_products(few) < _LEFT:
        return _named(shadow, few, total)
    return None


def _group(shadow: StepMeasures) -> Judgement | None:
    """Lines that leave little of an error together that no line mends alone, where it is not explained otherwise."""
    low, high = SMOOTH
    if excess(shadow) < (_EXCESS if not low <= shadow.explained <= high else _UNEXPLAINED):
        return None
    avoidable = _avoidable(shadow)
    ordered = sorted((line for line in avoidable if line.number), key=lambda line: -avoidable[line])
    lines = fewest(with_readers(ordered, shadow.flow), shadow.left_without_products, _LEFT)
    if not lines:
        return None
    return _named(shadow, lines, math.fsum(avoidable.get(line, 0.0) for line in lines))


def _grown(shadow: StepMeasures, line: SourceLine) -> list[SourceLine]:
    """A line, with those of its function that take its results as long as it does not help alone.

    An exact result that the next line takes in the low format is rounded there all the same.
    """
    region = [line]
    for _ in range(_GROWTH):
        if shadow.left_without_products(region) < _LEFT:
            break
        more = shadow.flow.next_lines(region)
        if not more:
            break
        region += sorted(more)
    return region


def _avoidable(shadow: StepMeasures) -> dict[SourceLine, float]:
    """For each line the part of the error that is its own; of the sum of all sizes where first order fails."""
    own = {i: share - shadow.unavoidable.get(i, 0.0) for i, share in shadow.shares.by_operation.items()}
    lines = by_line(shadow.step.tape, own)
    if SMOOTH[0] <= shadow.explained <= SMOOTH[1]:
        return {line: value / shadow.explained for line, value in lines.items()}
    size = math.fsum(abs(value) for value in by_line(shadow.step.tape, shadow.shares.by_operation).values()) or 1.0
    return {line: abs(value) / size for line, value in lines.items()}


def _cancelling_first(shadow: StepMeasures, lines: Sequence[SourceLine]) -> list[SourceLine]:
    """Lines that are named together, that first which subtracts nearly equal numbers: it makes small errors large."""
    sizes, most = shadow.step.tape.magnitudes, dict.fromkeys(lines, 0.0)
    for operation in shadow.step.tape.operations:
        line, result = operation.origin.line, operation.outputs[0] if operation.outputs else None
        if line in most and operation.name.startswith(SUMS) and not operation.origin.backward:
            size = sizes.get(result, 0.0) if result is not None else 0.0
            most[line] = max(most[line], max(sizes.get(id, 0.0) for id in operation.inputs) / size if size else 0.0)
    first = max(lines, key=lambda line: most[line])
    return [first, *(line for line in lines if line != first)] if most[first] > _CANCELLED else list(lines)


def _named(shadow: StepMeasures, lines: Sequence[SourceLine], share: float) -> Judgement:
    lines = _cancelling_first(shadow, lines)
    message = counted(
        "{lines} makes {share} of the gradient's squared error in operations other than matrix products; {left:.0%} of "
        "the error is left when these run in FP64.",
        "{lines} make {share} of the gradient's squared error in operations other than matrix products; {left:.0%} of "
        "the error is left when these run in FP64.",
        len(lines),
        lines=_listed(lines),
        share=_percent(share),
        left=shadow.left_without_products(lines),
    )
    return Judgement("problems", _with_size(shadow, message), True, list(lines))


def _listed(lines: Sequence[SourceLine]) -> str:
    return together(*(line.label for line in lines), between=" and ")


def _decisions(shadow: StepMeasures) -> Judgement | None:
    """A line whose error turns decisions over (the sign behind `abs`, what `clamp` cuts off), which move the gradient.

    Products turn some over in every low precision: the rest has to be most of it.
    """
    flips = shadow.flips
    if flips is None or flips < max(_FLIPPED, _FLIPPED_MORE * shadow.gradient_error):
        return None
    operations, sizes = shadow.step.tape.operations, shadow.step.tape.magnitudes
    lost: dict[SourceLine, float] = {}
    for operation in operations:
        result = operation.outputs[0] if operation.outputs else None
        if is_avoidable(operation) and result is not None and not operation.origin.backward:
            line = operation.origin.line
            lost[line] = max(lost.get(line, 0.0), operation.local_error * sizes.get(result, 0.0))
    if shadow.left_with_own_decisions(lost) > _LEFT_BY_PRODUCTS:
        return None
    worst = sorted((line for line in lost if line.number and lost[line]), key=lambda line: -lost[line])
    alone = next(([line] for line in worst[:_MOST_TRIED] if shadow.left_with_own_decisions([line]) < _LEFT), [])
    lines = alone or fewest(with_readers(worst, shadow.flow), shadow.left_with_own_decisions, _LEFT)
    if lines:
        message = counted(
            "{lines} turns decisions over (units on or off, signs, which element is the largest), which move the "
            "gradient by {flips:.2e}; {left:.0%} of that and of its error is left when the line runs in FP64.",
            "{lines} turn decisions over (units on or off, signs, which element is the largest), which move the "
            "gradient by {flips:.2e}; {left:.0%} of that and of its error is left when these lines run in FP64.",
            len(lines),
            lines=_listed(lines),
            flips=flips,
            left=shadow.left_with_own_decisions(lines),
        )
        return Judgement("problems", _with_size(shadow, message), True, lines)
    return _group(shadow) or Judgement(
        "not explained",
        Sentence(
            "{error}. Decisions that turn out otherwise in FP64 move it by {flips:.2e}, more than products cause "
            "alone, but neither a single line nor a few together leave less of it in FP64.",
            error=_size_of(shadow),
            flips=flips,
        ),
        None,
    )


def _loss(shadow: StepMeasures) -> Judgement | None:
    """A line that spoils the value of the loss, whose gradient may be right."""
    error = shadow.loss - shadow.loss_fp64
    if not error or not shadow.loss_shares.by_operation:
        return None
    operations = shadow.step.tape.operations
    own = {i: s for i, s in shadow.loss_shares.by_operation.items() if not is_product(operations[i])}
    usual = {i: s for i, s in shadow.loss_shares.by_operation.items() if is_product(operations[i])}
    spread = math.hypot(*(shadow.loss_shares.spread.get(i, 0.0) for i in usual))  # without the luck of their signs
    noise = max(spread, math.hypot(*by_line(shadow.step.tape, usual).values()))
    lines = by_line(shadow.step.tape, own)
    ordered = sorted((line for line in lines if line.number), key=lambda line: -abs(lines[line]))
    if abs(error) <= LOSS_ROUNDINGS * abs(shadow.loss_fp64):
        return None
    least = max(_OF_LOSS, 4 * noise)
    few = [line for line in ordered[:LARGEST_GROUP] if lines[line] * lines[ordered[0]] > 0]  # none against the others
    for chosen in (ordered[:1], few):
        if abs(math.fsum(lines[line] for line in chosen)) < least:
            continue
        left = shadow.loss_left(chosen)
        if left >= _OF_LOSS:
            continue
        message = counted(
            "The loss is {loss:.6g} and {exact:.6g} in FP64; {left:.0%} of the difference is left when {lines} runs in "
            "FP64. The gradient is not affected as much.",
            "The loss is {loss:.6g} and {exact:.6g} in FP64; {left:.0%} of the difference is left when {lines} run in "
            "FP64. The gradient is not affected as much.",
            len(chosen),
            loss=shadow.loss,
            exact=shadow.loss_fp64,
            left=left,
            lines=_listed(chosen),
        )
        return Judgement("problems", _with_size(shadow, message), True, _cancelling_first(shadow, chosen))
    return None
