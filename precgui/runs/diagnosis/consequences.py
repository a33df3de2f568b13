"""Findings that another finding answers for: they are left out, or told together with their cause."""

from __future__ import annotations

from dataclasses import replace

from precgui.runs.diagnosis import data_rules, exact_step_rules
from precgui.runs.diagnosis.findings import SEVERITIES, Finding

# Symptoms that have many causes, joined as these have them.
_NOT_FINITE = ("undefined-operation", "nonfinite-update")
_NO_GRADIENTS = ("no-gradients", "zero-gradients")
_LOST_BY_RANGE = ("gradient-underflow", "zero-gradients", "forward-overflow")
_CLIMBS = ("divergence", "rising-loss", "rate-too-high")
_STAYS = ("no-progress", "chance-level")
_LEARNS_NOTHING = (*_STAYS, "over-fitting")
# A training fails so of numbers that are too large for it, as inputs of another scale.
_FAILS = ("divergence", "chance-level", "dead-units", "saturated-units", "rate-too-high")
_OF_SCALE = (*_FAILS, "no-progress", "rising-loss", "over-fitting")
# A finding on the left says the cause of those on the right, which are then left out.
EXPLAINS: dict[str, tuple[str, ...]] = {
    "gradients-not-unscaled": ("divergence", "scale-collapse", "undefined-operation", "dead-units"),
    "stale-casts": ("divergence", "no-progress", "rising-loss"),
    "optimizer-in-fp16": (*_NOT_FINITE, "divergence", "no-progress"),
    "loss-not-scaled": (*_STAYS, "gradient-underflow"),
    "scaled-penalty": ("divergence", "scale-collapse", "repeated-skips", "rising-loss", "undefined-operation"),
    "left-in-evaluation": ("divergence", "rising-loss", "over-fitting"),
    "clipped-after-step": _CLIMBS,
    "stepped-twice": _CLIMBS,
    "unscaled-twice": ("clip-before-unscale", "no-progress", "gradient-underflow", "epsilon-vanishes"),
    "skipped-but-changed": (*_NOT_FINITE, "divergence", "scale-collapse"),
    "unbounded-loss": (*_NOT_FINITE, "divergence", "forward-overflow", "exponential-overflow", "dead-units"),
    "exponential-overflow": (
        *_CLIMBS,
        *_NOT_FINITE,
        "forward-overflow",
        "hidden-infinity",
        "dead-units",
        "inexact-step",
    ),
    "overflowing-cast": ("hidden-infinity", "zero-gradients", "dead-units"),
    "divergence": ("dead-units", "forward-overflow", "repeated-skips", "rate-too-high"),
    "constant-output": (*_LEARNS_NOTHING, *_NO_GRADIENTS, "dead-units", "vanishing-gradients"),
    "alike-units": (*_LEARNS_NOTHING, "dead-units"),
    "sorted-batches": (*_CLIMBS, *_LEARNS_NOTHING, "dead-units"),
    "inputs-all-alike": (*_LEARNS_NOTHING, *_NO_GRADIENTS, "dead-units", "constant-output", "vanishing-gradients"),
    data_rules.SCALE_OF_INPUTS: (*_OF_SCALE, "vanishing-gradients"),
    "targets-out-of-range": (*_OF_SCALE, *_NO_GRADIENTS, "unbounded-loss", "constant-output"),
    "targets-out-of-scale": (*_LEARNS_NOTHING, "rate-too-high", "rising-loss"),
    "large-initial-weights": _OF_SCALE,
    "loss-arguments": (
        *_CLIMBS,
        *_LEARNS_NOTHING,
        *_NO_GRADIENTS,
        *_NOT_FINITE,
        "unbounded-loss",
        "weights-not-finite",
        "dead-units",
    ),
    "broadcast-loss": (*_LEARNS_NOTHING, *_NO_GRADIENTS, "constant-output", "inexact-step"),  # pairs cancel gradients
    "one-class": (*_LEARNS_NOTHING, *_NO_GRADIENTS, "constant-output", "dead-units"),
    "plateau-mode": ("rate-vanished", "no-progress"),
    "schedule-not-stepped": ("no-progress",),
    "schedule-stepped-rarely": _STAYS,
    "rate-as-factor": (*_LEARNS_NOTHING, "lost-updates", "stagnation"),
    "validated-in-training-mode": ("over-fitting", "batch-norm-gap"),
    "uneven-terms": (*_LEARNS_NOTHING, "rate-too-high", "dead-units"),
    "mixed-axes": (*_LEARNS_NOTHING, "rate-too-high"),
    "sequence-axis": (*_LEARNS_NOTHING, "rate-too-high"),
    "softmax-over-wrong-axis": (*_LEARNS_NOTHING, "rate-too-high"),
    "betas-swapped": (*_CLIMBS, *_LEARNS_NOTHING),
    "loss-climbed": (
        *_CLIMBS,
        *_NOT_FINITE,
        "forward-overflow",
        "dead-units",
        "chance-level",
        "saturated-units",
        "over-fitting",
    ),
    "ignored-classes": (*_NOT_FINITE, "hidden-infinity", "repeated-skips"),
    "foreign-parameters": (*_NO_GRADIENTS, "weights-unchanged", "no-progress"),
    "zero-gradients": (
        "weights-unchanged",
        "no-progress",
        "scale-runaway",
        "dead-units",
        "no-gradients",
        "gradient-underflow",
    ),
    "zero-weights": (*_LEARNS_NOTHING, "weights-unchanged", "dead-units", "constant-output", "vanishing-gradients"),
    "gradients-not-cleared": (*_CLIMBS, "no-progress", "dead-units"),
    "epsilon-vanishes": ("moments-underflow", "optimizer-in-fp16"),
    "moments-underflow": (
        *_CLIMBS,
        *_NOT_FINITE,
        "optimizer-in-fp16",
        "frozen-moments",
        "saturated-units",
        "dead-units",
        "inexact-update",
    ),
    "weights-shrink": ("no-progress", "dead-units", "chance-level"),
    "saturated-units": ("no-progress", "vanishing-gradients", "constant-output", "inexact-step"),
    "rate-too-high": ("chance-level", "saturated-units", "dead-units", "over-fitting"),
    "chance-level": ("over-fitting",),
    "batch-norm-gap": ("over-fitting",),
    "term-without-gradient": (
        *_LEARNS_NOTHING,
        *_NO_GRADIENTS,
        "weights-unchanged",
        "rising-loss",
        "weights-shrink",
        "dead-units",
        "constant-output",
        "vanishing-gradients",
        "gradient-underflow",
    ),
    "passes-discarded": (*_LEARNS_NOTHING, "rising-loss"),
    "unused-terms": ("rising-loss", "no-progress"),
    "clipped-objective": (*_CLIMBS, *_LEARNS_NOTHING, "dead-units", "saturated-units"),
    "shifted-twice": _LEARNS_NOTHING,
    "heavy-dropout": _LEARNS_NOTHING,
    "bounded-scores": _LEARNS_NOTHING,
    "tied-choices": _LEARNS_NOTHING,
    "cut-sample": (*_LEARNS_NOTHING, *_NO_GRADIENTS),
    "foreign-sample": _LEARNS_NOTHING,
    "policy-ratio": (*_CLIMBS, *_LEARNS_NOTHING, *_NO_GRADIENTS),
    "reads-ahead": ("over-fitting",),
    "statistics-kept-out": ("over-fitting", "batch-norm-gap"),
    "stagnation": ("weights-unchanged", "no-progress", "lost-updates", "rewritten-weights"),
    "rounded-gradients": (*_STAYS, *_NO_GRADIENTS),
    "rewritten-weights": (*_STAYS, "weights-unchanged", "inexact-update"),
    "frozen-average": ("lost-updates", "cancelled-digits"),
    "lost-updates": ("cancelled-digits", "no-gradients", "swallowed-additions"),
    "inexact-step": (*_CLIMBS, *_STAYS),
    "inexact-update": (*_CLIMBS, *_STAYS, *_NOT_FINITE, "dead-units", "vanished-values"),
    "merged-positions": ("coarse-angles", "tied-choices"),
    "cancelled-digits": ("tied-choices", "inputs-all-alike", "constant-output"),
    "coarse-quantiser": (
        "lost-channels",
        *_NO_GRADIENTS,
        "no-progress",
        "dead-units",
        "weights-unchanged",
        "constant-output",
    ),
    "lost-channels": (*_LEARNS_NOTHING, *_NO_GRADIENTS, "dead-units", "coarse-data"),
    "clipped-in-quantisation": (*_CLIMBS, "no-progress", "over-fitting", "no-gradients", "dead-units"),
    "vanished-values": ("coarse-data", "constant-output"),
    "coarse-data": ("cancelled-digits", "constant-output", "tied-choices"),
    "weights-unchanged": ("no-progress",),
    "wrapped-integers": (*_CLIMBS, *_LEARNS_NOTHING, *_NO_GRADIENTS, "dead-units", "constant-output"),
    "hidden-overflow": (*_NO_GRADIENTS, "dead-units", "weights-unchanged", "no-progress", "constant-output"),
    "clip-before-unscale": ("no-progress",),
    "forward-overflow": ("hidden-infinity", "zero-gradients"),
    "undefined-operation": ("hidden-infinity",),
    "repeated-skips": ("hidden-infinity",),
    "scale-too-high": ("scale-probing", "no-step-taken"),
    "scaler-set-anew": ("repeated-skips", "scale-too-high"),
    "weights-not-finite": _NOT_FINITE,
}
_SKIPS = ("scale-collapse", "repeated-skips")
# The rules under which `non-finite` tells the cause of the first step that is not finite.
_OF_A_STEP = (
    "data-not-finite", "divergence", "epsilon-vanishes", "exponential-overflow", "forward-overflow", "nonfinite-update",
    "overflowing-cast", "undefined-operation", "weights-not-finite", "zero-row",
)  # fmt: skip


def without_consequences(findings: list[Finding]) -> list[Finding]:
    """The findings without those that another one answers for, some of them joined with it."""
    findings = _without_inexact_step(_with_their_moments(_with_their_cause(_with_scale_of_inputs(findings))))
    if any(each.is_problem and each.rule != "chance-level" for each in findings):  # any other fault explains it
        findings = [each for each in findings if each.rule != "chance-level"]
    explained = {name for result in findings if result.is_problem for name in EXPLAINS.get(result.rule, ())}
    return [outcome for outcome in findings if outcome.rule not in explained]


def _with_their_cause(findings: list[Finding]) -> list[Finding]:
    """Skipped steps are told with the cause that made them, where that is a finding of its own: one finding."""
    cause = next((each for each in findings if each.rule in _OF_A_STEP and each.is_problem), None)
    skips = [each for each in findings if each.rule in _SKIPS and each.is_problem]
    if cause is None or not skips:
        return findings
    severity = min((cause, *skips), key=lambda each: SEVERITIES.index(each.severity)).severity
    proofs = tuple(each.evidence[0] for each in skips)
    joined = replace(
        cause, severity=severity, evidence=(*cause.evidence, *proofs),
        confidence=max(each.confidence for each in (cause, *skips)),
        last_step=max(each.last_step for each in (cause, *skips)),
    )  # fmt: skip
    return [joined if each is cause else each for each in findings if each not in skips]


def _with_their_moments(findings: list[Finding]) -> list[Finding]:
    """Second moments that are zero say what the optimizer loses in FP16: both as one finding, the graver one's rank."""
    moments = next((each for each in findings if each.rule == "moments-underflow"), None)
    whole = next((each for each in findings if each.rule == "optimizer-in-fp16" and each.is_problem), None)
    if moments is None or whole is None or moments.is_problem:
        return findings
    joined = replace(moments, severity=whole.severity, evidence=(*moments.evidence, *whole.evidence))
    return [joined if each is moments else each for each in findings if each is not whole]


def _without_inexact_step(findings: list[Finding]) -> list[Finding]:
    """A step that is far from FP64 is told by the rule that knows its cause, where there is one."""
    step, update = exact_step_rules.STEP, exact_step_rules.UPDATE
    others = [each for each in findings if each.is_problem and each.rule not in (step, update)]
    dropped: set[str] = set()
    if any(each.precision_is_to_blame is True or each.rule in _LOST_BY_RANGE for each in others):
        dropped.add(step)
    if any(each.rule in exact_step_rules.OF_UPDATES for each in others):
        dropped.add(update)
    return [each for each in findings if each.rule not in dropped]


def _with_scale_of_inputs(findings: list[Finding]) -> list[Finding]:
    """Inputs of a large scale are told where a training fails as it does of them, and with the rank of that failure."""
    scale = next((each for each in findings if each.rule == data_rules.SCALE_OF_INPUTS), None)
    if scale is None or scale.is_problem:
        return findings
    failed = next((each for each in findings if each.rule in _FAILS and each.is_problem), None)
    if failed is None:
        return [each for each in findings if each is not scale]
    told = replace(scale, severity=failed.severity, evidence=(*scale.evidence, *failed.evidence[:1]))
    return [told if each is scale else each for each in findings]
