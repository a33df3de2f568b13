"""Why a step was not finite: one cause, by the first bad tensor, by Inf or NaN, and by the steps before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from precgui.runs.diagnosis import origin
from precgui.runs.diagnosis.analysis import (
    FP16_LARGEST,
    base_rate,
    growth,
    narrow_range,
    optimizer_of,
    power,
    replay,
    storage,
    streaks,
    update_ratios,
)
from precgui.runs.diagnosis.block_rules import zero_row_before
from precgui.runs.diagnosis.findings import Certainty, Evidence
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.number_formats import format_of
from precgui.runs.diagnosis.origin import Origin

_FIRST_OUTPUT = "In step {step} the output of {module} is the first that is not finite."
_FIRST_OUTPUT_AFTER = (
    "In step {step} the output of {module} is the first that is not finite; the output of {before} is still finite."
)
_GRADIENTS_IN = (
    "In step {step} the loss is finite and gradients are not ({kind}), first in {module}; scale {scale}, later down to "
    "{lowest}."
)
_GRADIENTS_BETWEEN = (
    "In step {step} the loss is finite and gradients are not ({kind}), first between {module} and {before}; scale "
    "{scale}, later down to {lowest}."
)
LONG = 8  # skipped steps in a row that are no search for the scale any more, where nothing follows
_GROWN = 3.0
_BEYOND = 2.0**24  # a loss scale with which FP16 overflows in any model
_HUGE_UPDATE = 0.3  # of the weights' norm in one step


@dataclass(frozen=True)
class Cause:
    """`rule` is the name of the finding, `short` a clause for titles, `blame` whether precision is the cause."""

    rule: str
    short: str
    blame: bool | None
    fix: str
    evidence: tuple[Evidence, ...] = ()
    module: str = ""
    config_change: Mapping[str, Any] = field(default_factory=dict)
    needs: str = ""
    confidence: float = 0.8
    certainty: Certainty = "exact"
    tensors: tuple[str, ...] = ()


def non_finite_cause(m: Measurements, place: int) -> Cause:
    """The cause of a step whose loss or gradients are not finite; `place` is its place in the signals.

    The precision is that of the step, where a schedule changes it; the steps before are looked at whatever theirs was.
    """
    if len(m.phases) > 1:
        step = int(m.steps[place])
        m = m.as_in(step)
        place = int(np.flatnonzero(m.steps == step)[0])
    for judge in (_of_rate, _of_weights):
        cause = judge(m, place)
        if cause is not None:
            return cause
    if m.finite_loss[place]:
        return _of_backward(m, place)
    result = origin.of_loss(m, place)
    if result.place == "data":
        return _of_data(m, result)
    if result.place == "input":
        return _of_input(m, result)
    if result.place == "forward":
        return _of_forward(m, result)
    if result.place == "loss":
        return _of_loss_itself(m, place, result)
    needs = replay(m, result.step)
    innocent = not narrow_range(m) and not storage(m).startswith(("fp16", "bf16")) and m.precision in ("fp32", "fp64")
    return Cause(
        "undefined-operation", f"NaN or Inf from step {result.step} on, in a place that is not recorded",
        False if innocent else None, "Record outputs of modules, or replay the step.", needs=needs, confidence=0.5,
    )  # fmt: skip


def _of_rate(m: Measurements, place: int) -> Cause | None:
    """The loss had grown before, or a step had changed the weights by a large part of them."""
    grown = growth(m, place)
    steps, ratios = update_ratios(m)
    early = (steps < m.steps[place]) & np.isfinite(ratios)
    largest = float(ratios[early].max()) if early.any() else 0.0
    if grown is None:
        return _of_first_update(m, place)
    rose = grown.loss_ratio > _GROWN and grown.last_loss > grown.first_loss
    if not rose and largest < _HUGE_UPDATE:
        return None
    if not (rose and (largest > 0.05 or grown.norm_ratio > 3 or grown.loss_ratio > 30)) and largest < _HUGE_UPDATE:
        return None
    text = (
        f"Before, the loss rose from {grown.least_loss:.3g} to {grown.last_loss:.3g}, the gradient norm from "
        f"{grown.first_norm:.3g} to {grown.last_norm:.3g}."
    )
    if early.any():
        text = f"{text} One step changed the weights by up to {largest:.2g} of their norm."
    proof = Evidence(
        "loss > 3 min(loss) or |update| / |weight| > 0.3, before the first value that is not finite",
        {"loss_least": grown.least_loss, "loss_last": grown.last_loss, "norm_first": grown.first_norm,
         "norm_last": grown.last_norm, "update_ratio": largest},
        text, "loss", m.series_of(m.loss, m.finite_loss),
    )  # fmt: skip
    return _too_high_rate(m, place, proof, 0.9)


def _of_first_update(m: Measurements, place: int) -> Cause | None:
    """A divergence too early for a trend of the loss: the update before was large relative to the initial weights."""
    updates, weights = m.table("update"), m.table("weight")
    if updates is None or weights is None or not len(updates.steps) or not len(weights.steps):
        return None
    step, began = int(updates.steps[0]), float(weights.total_l2[0])
    if not weights.steps[0] < step < m.steps[place] or not began > 0 or bool(updates.bad[0].any()):
        return None
    ratio = float(updates.total_l2[0]) / began
    if not ratio >= _HUGE_UPDATE:
        return None
    proof = Evidence(
        "|update| / |weight before| > 0.3 in the first step taken, before the first value that is not finite",
        {"update_ratio": ratio, "step": step},
        f"The update of step {step} was {ratio:.3g} times as large as the weights before it (L2 norms).",
        "loss", m.series_of(m.loss, m.finite_loss),
    )  # fmt: skip
    return _too_high_rate(m, place, proof, 0.8)


def _too_high_rate(m: Measurements, place: int, proof: Evidence, confidence: float) -> Cause:
    rate = base_rate(m)
    rate = rate if np.isfinite(rate) else 0.0
    # The rate is wrong in any format; NaN where FP32 would have held the numbers is still the doing of the format.
    narrow = narrow_range(m)
    return Cause(
        "divergence", "the training diverged first: the learning rate is too high", None if narrow else False,
        f"Lower the learning rate to a tenth ({rate / 10:.3g}) and warm it up.", (proof,), "",
        {"optimizer.lr": rate / 10} if rate > 0 else {},
        needs=f"{replay(m, int(m.steps[place]))}, or the same run in fp32 does" if narrow else "",
        confidence=confidence, certainty="estimate",
    )  # fmt: skip


def _of_weights(m: Measurements, place: int) -> Cause | None:
    """The weights were not finite before the step: the update before it made them so."""
    table = m.table("weight")
    if table is None:
        return None
    rows = np.flatnonzero((table.steps < m.steps[place]) & table.bad.any(1))
    if not len(rows):
        return None
    row = int(rows[0])
    if not _finite_until(m, int(table.steps[row])):
        return None
    name = table.names[int(np.flatnonzero(table.bad[row])[0])]
    zeros = _zero_moments(m)
    step = int(table.steps[row])
    if step == 0:
        start = Evidence("weights not finite at step 0", {"tensor": name}, f"{name} holds NaN or Inf before step 1.")
        return Cause(
            "weights-not-finite", "weights hold NaN or Inf before the first step", False,
            "Initialise all weights: check empty tensors, meta devices and checkpoints that do not match.", (start,),
            name.rpartition(".")[0], confidence=0.97, tensors=(name,),
        )  # fmt: skip
    proof = Evidence(
        "weights not finite after a step with finite loss and gradients", {"step": step, "tensor": name},
        f"After step {step} {name} holds NaN or Inf, although loss and gradients were finite up to it.",
    )  # fmt: skip
    if storage(m) in ("fp16", "bf16") and zeros is not None and storage(m) == "fp16":
        return Cause(
            "epsilon-vanishes", "the optimizer divides by zero: its epsilon vanishes in FP16", True,
            "Set eps = 1e-4, or keep weights and optimizer state in FP32.", (proof, zeros), "",
            {"optimizer.eps": 1e-4, "precision_options.master_weights": True}, confidence=0.95,
            tensors=(name,),
        )  # fmt: skip
    return Cause(
        "nonfinite-update", f"the update of step {step} made weights NaN or Inf",
        None if storage(m) != "fp32" else False,
        "Look at the optimizer: its epsilon, its state, a second step.", (proof,), confidence=0.6, tensors=(name,),
    )  # fmt: skip


def _finite_until(m: Measurements, step: int) -> bool:
    before = m.steps <= step
    return bool(np.isfinite(m.loss[before]).all() and (np.isfinite(m.grad_norm[before]) | m.skipped[before]).all())


def _zero_moments(m: Measurements) -> Evidence | None:
    """Second moments that are zero where the gradient is not: g^2 and eps are both below FP16."""
    configured = optimizer_of(m)[1]
    if not configured < 2.0**-25:
        return None
    return Evidence(
        "eps < 2^-25", {"eps": configured}, f"eps = {configured:g} is below half of FP16's smallest number, 6e-8: it "
        f"is zero.",
    )  # fmt: skip


def _of_data(m: Measurements, origin: Origin) -> Cause:
    proof = Evidence("count of NaN and Inf in the batch > 0", {"step": origin.step, "part": origin.part},
                     f"The {origin.part} of step {origin.step} hold NaN or Inf.")  # fmt: skip
    return Cause("data-not-finite", f"the {origin.part} of step {origin.step} hold NaN or Inf", False,
                 "Clean the data: drop or mask these samples.", (proof,), confidence=0.99)  # fmt: skip


def _of_input(m: Measurements, origin: Origin) -> Cause:
    """The first module's output is bad and its weights are not: so is its input, or its input is beyond FP16."""
    undecided = narrow_range(m) and origin.infinite is not False
    proof = Evidence(
        "first module: output not finite, weights finite", {"step": origin.step, "module": origin.module},
        f"In step {origin.step} the output of {origin.module}, the first module, is not finite; its weights were.",
    )  # fmt: skip
    return Cause(
        "data-not-finite",
        f"the inputs of step {origin.step} hold NaN or Inf, or are beyond FP16" if undecided
        else f"the inputs of step {origin.step} hold NaN or Inf",
        None if undecided else False, "Look at the inputs of this step; normalise or clean them.", (proof,),
        origin.module,
        needs=replay(m, origin.step) if undecided else "", confidence=0.85,
    )  # fmt: skip


def _of_forward(m: Measurements, result: Origin) -> Cause:
    last = origin.last_amax(m, "activation", result.module, result.step - 1)
    values: dict[str, float | int | str] = {"step": result.step, "module": result.module}
    near = last is not None and last[1] > FP16_LARGEST / 8
    sentences = [
        (_FIRST_OUTPUT_AFTER if result.before else _FIRST_OUTPUT).format(
            step=result.step, module=result.module, before=result.before
        )
    ]
    if last is not None:
        values |= {"last_amax": last[1], "octaves_left": float(np.log2(FP16_LARGEST / last[1]))}
        sentences.append(f"In step {last[0]} its largest magnitude was {last[1]:.4g}.")
    if result.infinite is not None:
        sentences.append("Inf is among its values." if result.infinite else "Its values that are not finite are NaN.")
    proof = Evidence("first output that is not finite, in the order of the forward pass", values, " ".join(sentences))
    if narrow_range(m) and (result.infinite or near):
        return Cause(
            "forward-overflow", f"the output of {result.module} overflows FP16 in step {result.step}", True,
            "Use BF16, or keep this module in FP32, or scale its input down.", (proof,), result.module,
            {"precision": "bf16-amp", "precision_options.keep_fp32": [result.module]}, confidence=0.9,
        )  # fmt: skip
    return _undefined(m, result, proof)


def _undefined(m: Measurements, result: Origin, proof: Evidence) -> Cause:
    zeros = zero_row_before(m, result.module, result.before, result.step) if result.infinite is False else None
    if zeros is not None:
        return Cause(
            "zero-row", f"a row of zeros has no scale in FP8: {result.module} computes NaN in step {result.step}", True,
            "Give the scale a lower bound: amax.clamp(min=1e-12).", (proof, zeros), result.module,
            needs="the least amax of a row of this input: x.abs().amax(-1).min()", confidence=0.7, certainty="estimate",
        )  # fmt: skip
    low = narrow_range(m) or ((storage(m) == "bf16" or m.precision.startswith("bf16")) and result.infinite is not False)
    large = _large_factors(m, result)
    text = f"{result.module or 'the loss'} computes NaN or Inf in step {result.step}"
    kind = m.model.module_types.get(result.module, "")
    if result.before and result.infinite is False and kind.startswith("torch.nn.modules.linear."):
        text = f"NaN appears between the outputs of {result.before} and {result.module} in step {result.step}"
    fix = "Look for a division by zero, log(0), sqrt at 0, or a row masked completely; add an epsilon or use "
    fix += "torch.where."
    return Cause(
        "undefined-operation", text, None if low else False,
        "Divide before the product is taken, or compute it in FP32 or BF16. " + fix if large else fix,
        (proof, *large), result.module, needs=replay(m, result.step) if low else "", confidence=0.8,
    )  # fmt: skip


def _large_factors(m: Measurements, result: Origin) -> tuple[Evidence, ...]:
    """The last finite output in FP16, where a product of two of its numbers is beyond 65504, as scores of attention."""
    last = origin.last_amax(m, "activation", result.before, result.step) if narrow_range(m) else None
    if last is None or not last[1] ** 2 > FP16_LARGEST:
        return ()
    values = {"step": last[0], "amax": last[1], "square": last[1] ** 2}
    text = (
        f"The output of {result.before} reaches {last[1]:.4g}: the product of two such numbers, {last[1] ** 2:.3g}, is "
    )
    return (Evidence("amax^2 > 65504", values, f"{text}beyond FP16, and Inf - Inf is NaN."),)


def _of_loss_itself(m: Measurements, place: int, origin: Origin) -> Cause:
    """All outputs are finite, so the loss function or the targets are at fault."""
    infinite = bool(np.isinf(m.loss[place]))
    proof = Evidence(
        "outputs finite, loss not", {"step": origin.step, "loss": float(m.loss[place])},
        f"In step {origin.step} all recorded outputs are finite, the loss is {m.loss[place]}.",
    )  # fmt: skip
    few_digits = m.precision.startswith("bf16") or storage(m) == "bf16"  # 1 - p may have become 0
    low = (narrow_range(m) and infinite) or storage(m) == "fp16" or few_digits
    before = m.loss[:place][m.finite_loss[:place]]
    if (
        infinite
        and len(before) >= 3
        and format_of(np.abs(before)) == "fp16"
        and np.abs(before).max() > FP16_LARGEST / 64
    ):
        return Cause(
            "forward-overflow", f"the loss is computed in FP16 and overflows in step {origin.step}", True,
            "Convert the outputs first (outputs.float()), or take a mean in place of a sum.", (proof,), confidence=0.9,
        )  # fmt: skip
    return Cause(
        "undefined-operation", f"the loss function returns {m.loss[place]} in step {origin.step} for finite outputs",
        None if low else False,
        "Look at the targets of this step and at the loss: a mean over no element, log(0), 0 / 0, or a sum in FP16.",
        (proof,), needs=replay(m, origin.step) if low else "", confidence=0.8,
    )  # fmt: skip


def _of_backward(m: Measurements, place: int) -> Cause:
    """The cause where the loss is finite and gradients are not."""
    step, scale = int(m.steps[place]), float(m.scale[place])
    result = origin.of_gradients(m, step)
    lowest = min((float(m.scale[each.last]) for each in streaks(m) if each.first <= place <= each.last), default=scale)
    kind = {True: "with Inf", False: "NaN only", None: "unknown"}[result.infinite]
    proof = Evidence(
        "loss finite, gradients not", {"step": step, "scale": scale, "lowest_scale": lowest, "kind": kind},
        (_GRADIENTS_BETWEEN if result.module and result.before else _GRADIENTS_IN).format(
            step=step, kind=kind, module=result.module or "the loss", before=result.before, scale=power(scale),
            lowest=power(lowest),
        ),
    )  # fmt: skip
    beyond = lowest > _BEYOND and narrow_range(m)  # Inf - Inf and 0 * Inf are NaN
    if m.loops_scale and lowest >= 1 and (result.infinite is not False or beyond):
        return Cause(
            "scale", f"the gradients times {power(scale)} overflow FP16", True, "Let the scaler lower the scale.",
            (proof,), result.module, {"scaling.mode": "dynamic"},
        )  # fmt: skip
    in_loss = result.place == "loss"
    low = narrow_range(m) and not (in_loss and result.infinite is False)
    where = "the loss function" if in_loss else result.module or "the backward pass"
    return Cause(
        "undefined-operation", f"the derivative of {where} is not finite in step {step}", None if low else False,
        "Look for sqrt at 0, a norm of zero, or a root or power without an epsilon; the forward pass is finite.",
        (proof,), "" if in_loss else result.module, needs=replay(m, step) if low else "", confidence=0.8,
    )  # fmt: skip
