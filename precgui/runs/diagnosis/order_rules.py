"""Group D, more of the order of a loop in mixed precision: autocast around steps, divisions by the scale, roots."""

from __future__ import annotations

from precgui.runs.diagnosis.analysis import is_adaptive, median, power
from precgui.runs.diagnosis.findings import IN_ANY_FORMAT, UNDECIDED, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule


def stale_casts(m: Measurements) -> Answer:
    """The loop runs inside one region of autocast, whose copies of the weights are never made anew."""
    stale = m.fact("loop").get("stale_casts")
    if not m.own_loop or stale is None or not m.n:
        return None
    if not stale:
        return RuledOut("stale-casts", "because autocast cast anew after each step a number that the step had changed")
    dtype = str(m.fact("autocast").get("dtype") or "16 bits").upper()
    proof = Evidence(
        "cast of a number in a forward pass = its value before the last step, in 2 steps", {"steps": 2},
        f"In two steps one after another the forward pass met the cast to {dtype} of a number as it was before the "
        "step that had changed it: casts of weights that autocast keeps are as old.",
    )  # fmt: skip
    return [
        Finding(
            "stale-casts", "error", "Forward passes use old weights: autocast keeps their casts from step to step",
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            "Enter torch.autocast anew in each step, around the forward pass only, or give it cache_enabled=False.",
            0.97, "pytorch documentation of torch.autocast, cache_enabled",
             blame=UNDECIDED,
        )
    ]  # fmt: skip


def unscaled_twice(m: Measurements) -> Answer:
    """Gradients that the scaler has divided by the scale are divided by it again by the loop."""
    twice = m.fact("loop").get("unscaled_twice")
    if not m.own_loop or twice is None or not m.n:
        return None
    if not twice:
        return RuledOut("unscaled-twice", "because gradients at the step are 1 / S of those that backward delivered")
    scale, norm = median(m.scale), median(m.grad_norm)
    proof = Evidence(
        "|g at the step| / |g delivered| = 1 / S^2 in 3 steps", {"scale": scale, "norm": norm},
        f"In three steps one after another gradients at the step were 1/S^2 of those that the backward passes "
        f"delivered (S = {power(scale)}): they were divided twice. The median gradient norm is {norm:.3g}.",
        "grad_norm", m.series_of(m.grad_norm),
    )  # fmt: skip
    return [
        Finding(
            "unscaled-twice", "warning" if is_adaptive(m) else "error", "Gradients are divided by the loss scale twice",
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            "Take the division by the scale out of the loop: scaler.unscale_(optimizer) and scaler.step(optimizer) "
            "divide already.",
            0.97, "torch.amp documentation, working with unscaled gradients", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def mixed_roots(m: Measurements) -> Answer:
    """Of two losses of one optimizer one is multiplied by the scale and the other is not."""
    mixed = m.fact("loop").get("mixed_roots")
    if not m.own_loop or mixed is None or not m.loops_scale or not m.n:
        return None
    if not mixed:
        return RuledOut("loss-not-scaled", "because each backward pass of the first step began with a scaled loss")
    scale, passes = float(m.scale[0]), median(m.backward_passes)
    proof = Evidence(
        "backward passes of one optimizer, with and without scaler.scale(loss)", {"scale": scale, "passes": passes},
        f"In the first step parameters of one optimizer got gradients of a loss that was multiplied by the scale "
        f"({power(scale)}) and of one that was not; both are then divided by it.",
    )  # fmt: skip
    return [
        Finding(
            "loss-not-scaled", "error", "One of the losses is not multiplied by the loss scale: it counts for nothing",
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            "Call scaler.scale(loss).backward() for each loss, or add the losses up before.", 0.97,
            "torch.amp documentation, working with multiple models, losses, and optimizers", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


RULES = (
    Rule("stale-casts", "D", "Does autocast cast the weights anew after each step?", stale_casts),
    Rule("unscaled-twice", "D", "Are gradients divided by the scale once?", unscaled_twice),
    Rule("loss-not-scaled", "D", "Is each loss multiplied by the scale?", mixed_roots),
)
