"""Group D: contradictions between what the loop did and what it should have done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from precgui.runs.diagnosis import origin
from precgui.runs.diagnosis.analysis import FOREIGN, has_no_optimizer, is_adaptive, median, percent, storage
from precgui.runs.diagnosis.blame import blame_of_symptom, has_another_scaler, made_by
from precgui.runs.diagnosis.findings import (
    COMPARED,
    IN_ANY_FORMAT,
    TOO_FEW_DIGITS,
    UNDECIDED,
    Blame,
    Evidence,
    Finding,
    RuledOut,
)
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, whole
from precgui.sanitize import one_line
from precgui.sentences import L_, Sentence

_FP32_ULP = 2.0**-23


def foreign_parameters(m: Measurements) -> Answer:
    """The optimizer holds tensors that are not the model's parameters."""
    table = m.table("weight") or m.table("gradient")
    if not m.own_loop or table is None:
        return None
    foreign = [name for name in table.names if name.startswith(FOREIGN)]
    own = [m.model.by_name.get(name) for name in table.names if name not in foreign]
    if not foreign or any(each is None or each.requires_grad for each in own):
        return RuledOut(
            "foreign-parameters",
            Sentence(
                "because {name_count} tensors of the optimizer are the model's",
                name_count=len(table.names) - len(foreign),
            ),
        )
    if m.skipped.all() and _are_masters(m, len(foreign)):
        return RuledOut(
            "foreign-parameters",
            Sentence(
                "because no step was taken, and all {count} tensors of the optimizer began as FP32 copies of weights "
                "of the model in 16 bits: they are master weights",
                count=len(foreign),
            ),
        )
    if m.fact("loop").get("masters_copied_back") is True and _are_masters(m, len(foreign)):
        return RuledOut(
            "foreign-parameters",
            Sentence(
                "because all {count} tensors of the optimizer began as FP32 copies of weights of the model in 16 bits, "
                "and the loop copies back what the steps make of them: they are master weights",
                count=len(foreign),
            ),
        )
    fall = _fall(m)
    updates = m.table("update")
    if fall > 0.1 and updates is not None and (np.nan_to_num(updates.stat("changed")) > 0).any():
        return RuledOut(
            "foreign-parameters",
            Sentence(
                "because the loss fell by {fall} while the optimizer changed tensors of its own: the loop copies "
                "them, as with FP32 master weights",
                fall=percent(fall),
            ),
        )
    proof = Evidence(
        L_("tensors of the optimizer that are parameters of the model and learn = 0"), {"tensors": len(table.names)},
        Sentence(
            "None of the {name_count} tensors of the optimizer is a parameter of the model that learns; "
            "{foreign_count} are none of its parameters.",
            name_count=len(table.names), foreign_count=len(foreign),
        ),
    )  # fmt: skip
    return [
        Finding(
            "foreign-parameters", "error", L_("The optimizer updates tensors that the model does not have"),
            int(m.steps[0]) if m.n else 0,
            int(m.steps[-1]) if m.n else 0, (proof,),
            L_(
                "Make the optimizer after model.to(...), .half() and every change of the parameters, such as a new "
                "layer."
            ),
            0.95,
            "torch.optim documentation", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _are_masters(m: Measurements, foreign: int) -> bool:
    """Whether so many tensors of the optimizers equal weights of the model but for rounding."""
    return foreign > 0 and m.fact("loop").get("master_weights") == foreign


def _fall(m: Measurements) -> float:
    """The share by which the median loss of the last quarter lies below that of the first twentieth; 0 without it."""
    known = m.loss[m.finite_loss]
    if len(known) < 8:
        return 0.0
    first = float(np.median(known[: max(len(known) // 20, 2)]))
    last = float(np.median(known[-(len(known) // 4) :]))
    return 1 - last / first if first > 0 else 0.0


def weights_unchanged(m: Measurements) -> Answer:
    """Steps are taken and no weight ever changes."""
    table = m.table("update")
    if table is None or m.n < 3 or not (m.loss != 0).any():
        return None
    taken = ~np.isin(table.steps, m.steps[m.skipped])
    changed = table.stat("changed")[taken]
    changed = np.nan_to_num(changed[np.isfinite(changed).any(1)])
    alive = np.nan_to_num(m.grad_norm) > 0
    if not len(changed) or _has_nothing_left_to_learn(m):
        return None
    if changed.max(initial=0.0) > 0:
        return RuledOut(
            "weights-unchanged",
            Sentence(
                "because up to {changed} of a tensor change in a step",
                changed=percent(float(changed.max(initial=0.0))),
            ),
        )
    has_rate = bool((np.nan_to_num(m.lr, nan=1.0) != 0).any())
    low = storage(m) in ("bf16", "fp16") and median(m.lr) > 0 and alive.any()
    proof = Evidence(
        L_("changed = 0 in all recorded steps"),
        {"recorded_steps": len(changed), "lr": median(m.lr), "norm": median(m.grad_norm)},
        Sentence(
            "In {changed_count} recorded steps no weight changed; the rate is {lr:.3g}, the gradient norm "
            "{grad_norm:.3g}.",
            changed_count=len(changed), lr=median(m.lr), grad_norm=median(m.grad_norm),
        ),
        "lr", m.series_of(m.lr),
    )  # fmt: skip
    fix = L_("Look at the rate, at the gradients, and at what the optimizer holds.")
    if low:
        fix = L_("Keep FP32 master weights: the updates are below half an ulp.")
    title = L_("No step changes any weight")
    if not has_rate:
        title = L_("No step changes any weight: the learning rate is 0 in all steps")
        fix = L_(
            "Set a learning rate above 0; look at the scheduler, whose factor is 0 (an integer division, a warm-up)."
        )
    return [
        Finding(
            "weights-unchanged", "error", title, int(m.steps[0]), int(m.steps[-1]), (proof,),
            fix, 0.9, "docs/diagnosis.md",
            blame=TOO_FEW_DIGITS if low and _moves_fp32(m) else blame_of_symptom(m) if has_rate else IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _has_nothing_left_to_learn(m: Measurements) -> bool:
    """Whether gradients are so small beside FP32 weights that a step of rate 1 moves none: rounding at a minimum."""
    weights, gradients = m.table("weight"), m.table("gradient")
    if weights is None or gradients is None or storage(m) != "fp32" or is_adaptive(m):
        return False
    return bool(0 < median(gradients.stat("rms")) < _FP32_ULP * median(weights.stat("rms")))


def _moves_fp32(m: Measurements) -> bool:
    """Whether a step of this size would move weights of the recorded size, were they stored in FP32."""
    weights, gradients = m.table("weight"), m.table("gradient")
    if weights is None or gradients is None:
        return False
    size = median(m.lr) * (1.0 if is_adaptive(m) else median(gradients.stat("rms")))
    return bool(size > _FP32_ULP * median(weights.stat("rms")))


def no_step_taken(m: Measurements) -> Answer:
    """All steps were skipped."""
    if not m.n or m.imported:
        return None
    taken = int((~m.skipped).sum())
    if taken:
        return RuledOut(
            "no-step-taken",
            Sentence(
                "because {taken} of {steps} steps were taken",
                taken=taken,
                steps=m.n,
            ),
        )
    if m.loops_scale or m.n < 2 or has_another_scaler(m):  # see scale_rules, and unused_scaler
        return None  # see scale_collapse and scale_too_high
    if has_no_optimizer(m):
        title, shown = (
            L_("No weight of the recorded model changed"),
            Sentence(
                "In {steps} recorded steps no weight changed.",
                steps=m.n,
            ),
        )
        fix = L_("Record the model whose weights the loop updates, and call recorder.step() after the update.")
    else:
        title, shown = (
            L_("No optimizer step was taken"),
            Sentence(
                "In {steps} recorded steps no optimizer stepped.",
                steps=m.n,
            ),
        )
        fix = L_("Call optimizer.step() before recorder.step(), or name the optimizer that does.")
    overflow = _overflowing_gradient(m)
    if overflow is not None and not has_no_optimizer(m):
        return [_overflows_each_time(m, overflow)]
    # Gradients that are not finite are a reason to take no step, and 16 bits may be one for them.
    blame = IN_ANY_FORMAT if np.isfinite(m.grad_norm).any() and m.finite_loss.all() else blame_of_symptom(m)
    proof = Evidence(L_("steps taken = 0"), {"steps": m.n}, shown, "loss", m.series_of(m.loss))
    return [
        Finding(
            "no-step-taken", "error", title, int(m.steps[0]), int(m.steps[-1]), (proof,), fix, 0.8,
            "docs/diagnosis.md", blame=blame,
        )
    ]  # fmt: skip


def _overflowing_gradient(m: Measurements) -> Mapping[str, Any] | None:
    """The row of a gradient that FP16 made Inf and FP32 would not, of a run whose losses are finite and whose optimizer
    holds masters of the weights: the loop takes no step where it sees Inf."""
    gradients = m.table("activation_gradient")
    rows = [row for row in m.fact_rows("finite_in_fp32") if row.get("use") == "gradient"]
    if not rows or not m.finite_loss.all() or gradients is None or not m.fact("loop").get("master_weights"):
        return None
    return rows[0] if len(gradients.steps) and gradients.bad.any(1).all() else None


def _overflows_each_time(m: Measurements, row: Mapping[str, Any]) -> Finding:
    """No step was taken since gradients are beyond FP16 even where they were least."""
    step, value, name = whole(row, "step"), number(row, "value"), made_by(row)
    loss = float(m.at_loss(np.array([step], np.int64))[0])
    proof = Evidence(
        L_("a gradient that is Inf in FP16 and finite in FP32 from the same operands; steps taken = 0"),
        {"step": step, "largest": value, "operation": name, "loss": loss, "steps": m.n},
        Sentence(
            "In step {step}, whose loss is {loss:.4g}, {operation} made a gradient Inf in FP16 that reaches "
            "{value:.4g} in FP32; FP16 ends at 65504. Of the steps that were looked at it is the least. In {steps} "
            "recorded steps no optimizer stepped.",
            step=step, loss=loss, operation=name, value=value, steps=m.n,
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return Finding(
        "no-step-taken", "error", L_("Gradients overflow FP16 in all steps, so that no optimizer step was taken"),
        int(m.steps[0]), int(m.steps[-1]), (proof,),
        L_(
            "Make the loss smaller: normalise the targets, take a mean in place of a sum, or let the loss scale fall "
            "below 1. BF16 has the range of FP32."
        ),
        0.95, "docs/diagnosis.md", certainty="exact", blame=COMPARED,
    )  # fmt: skip


def gradients_not_cleared(m: Measurements) -> Answer:
    """Gradients that add up from step to step: no backward pass ever met cleared ones."""
    cleared = m.fact("loop").get("gradients_cleared")
    if not m.own_loop or cleared is None:
        return None
    if cleared:
        return RuledOut(
            "gradients-not-cleared",
            L_("because gradients were None or zero when the first backward pass after a step added to them"),
        )
    norms = m.grad_norm[np.isfinite(m.grad_norm)]
    first, last = (float(norms[0]), float(norms[-1])) if len(norms) else (float("nan"), float("nan"))
    proof = Evidence(
        L_("gradients before the first backward pass after a step, not zero in 3 steps of 3"),
        {"steps": 3, "norm_first": first, "norm_last": last},
        Sentence(
            "In three steps one after another each backward pass added to the gradients of the step before; the "
            "gradient norm went from {first:.3g} to {last:.3g}.",
            first=first, last=last,
        ),
        "grad_norm", m.series_of(m.grad_norm),
    )  # fmt: skip
    return [
        Finding(
            "gradients-not-cleared", "error", L_("Gradients add up from step to step: they are not cleared"),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_("Call optimizer.zero_grad() in each step."), 0.97, "torch.optim documentation", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def autocast_without_effect(m: Measurements) -> Answer:
    """The run is called mixed precision, and no output has the digits of that format."""
    table = m.table("activation")
    given = str(m.fact("precision").get("given") or m.precision)
    if not m.own_loop or not given.endswith("-amp") or table is None:
        return None
    asked = given.partition("-")[0]
    formats = [
        result for result, name in zip(table.formats, table.names, strict=True) if result and name not in origin.WHOLE
    ]
    own = sum(outcome == asked for outcome in formats)
    if own or len(formats) < 2:
        return (
            RuledOut(
                "autocast-not-seen",
                Sentence(
                    "because {own} of {format_count} outputs have the digits of {asked}",
                    own=own,
                    format_count=len(formats),
                    asked=asked.upper(),
                ),
            )
            if own
            else None
        )
    proof = Evidence(
        L_("outputs with the digits of the format = 0"), {"outputs": len(formats), "asked": asked},
        Sentence(
            "The run is called {given}, but none of {format_count} recorded outputs is in {asked}: they have more "
            "digits.",
            given=given, format_count=len(formats), asked=asked.upper(),
        ),
    )  # fmt: skip
    return [
        Finding(
            "autocast-not-seen", "info", Sentence(
                "Autocast to {asked} did not take effect",
                asked=asked.upper(),
            ), int(m.steps[0]),
            int(m.steps[-1]), (proof,),
            L_("Run the forward pass inside torch.autocast(device_type, dtype) of the device that computes."),
            0.9, "pytorch issue 112329", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def validation_not_finite(m: Measurements) -> Answer:
    """The validation loss is not finite while the training loss is: poisoned buffers, or an overflow."""
    steps, values = m.run.series("val_loss")
    if not len(values):
        return None
    bad = ~np.isfinite(values) & np.isfinite(m.at_loss(steps.astype(np.int64)))
    if not bad.any():
        return RuledOut(
            "validation-not-finite",
            Sentence(
                "because {values} of {value_count} evaluations are finite",
                values=int(np.isfinite(values).sum()),
                value_count=len(values),
            ),
        )
    first = int(steps[np.flatnonzero(bad)[0]])
    before = m.steps[(m.skipped | ~m.finite_loss) & (m.steps <= first)]
    proof = Evidence(
        L_("val_loss not finite, train_loss finite"), {"step": first, "skipped_before": len(before)},
        Sentence(
            "The validation loss of step {step} is not finite while the training loss is; step {before} before it was "
            "skipped or not finite.", step=first, before=before[-1],
        )
        if len(before) else Sentence(
            "The validation loss of step {step} is not finite while the training loss is.", step=first
        ),
        "val_loss", tuple(zip(steps.astype(int).tolist(), values.tolist(), strict=True)),
    )  # fmt: skip
    return [
        Finding(
            "validation-not-finite", "error",
            L_("The validation is not finite although the training is: running statistics are poisoned") if len(before)
            else L_("The validation is not finite although the training is"),
            first, int(steps[-1]), (proof,),
            L_(
                "Restore running statistics of batch norm after a skipped step, and evaluate in the precision of "
                "the training."
            ),
            0.8, "pytorch issues 96798 and 115500", blame=Blame(needs=L_("buffers of the model")),
        )
    ]  # fmt: skip


def refused(m: Measurements) -> Answer:
    """The run failed with an error that is known."""
    message = str(getattr(m.run, "message", "") or "")
    if m.run.status != "failed" or not message:
        return None
    known = {
        "unscale FP16 gradients": (L_("The scaler refuses FP16 weights"),
        L_("Keep FP32 weights and use autocast only; or train without a scaler."), IN_ANY_FORMAT),
        "same dtype": (L_("Two formats meet in one operation"), L_(
            "Enter autocast around the whole forward pass and the loss, or convert the inputs."
        ), IN_ANY_FORMAT),
        "out of memory": (L_("The device has no more memory"), L_(
            "Use a smaller batch, activation checkpointing, or 16-bit weights."
        ), IN_ANY_FORMAT),
        "No inf checks were recorded": (L_("scaler.update() without scaler.step()"),
        L_("Call scaler.step(optimizer) before scaler.update()."), IN_ANY_FORMAT),
    }  # fmt: skip
    title, fix, blame = next(
        (reported for words, reported in known.items() if words in message),
        (L_("The run failed"), L_("Read its message."), UNDECIDED),
    )
    proof = Evidence("status = failed", {"steps": m.n}, one_line(message, 300))
    return [
        Finding(
            "failed",
            "error",
            title,
            m.n,
            m.n,
            (proof,),
            fix,
            0.9 if title != "The run failed" else 0.5,
            "docs/diagnosis.md",
            blame=blame,
        )
    ]


RULES = (
    Rule("foreign-parameters", "D", L_("Does the optimizer hold the model's parameters?"), foreign_parameters),
    Rule("weights-unchanged", "D", L_("Do weights change?"), weights_unchanged),
    Rule("no-step-taken", "D", L_("Was a step taken?"), no_step_taken),
    Rule("gradients-not-cleared", "D", L_("Are gradients cleared?"), gradients_not_cleared),
    Rule("autocast-not-seen", "D", L_("Is the precision the one that was asked for?"), autocast_without_effect),
    Rule("validation-not-finite", "D", L_("Is the validation finite?"), validation_not_finite),
    Rule("failed", "D", L_("Did the run fail?"), refused),  # the last one: it needs no step
)
