"""All rules on one run."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from precgui.runs.diagnosis import (
    block_rules,
    bookkeeping_rules,
    chance_rules,
    constant_rules,
    data_rules,
    dead_unit_rules,
    depth_rules,
    digit_rules,
    exact_step_rules,
    gradient_rules,
    learning_rules,
    loop_rules,
    loss_argument_rules,
    lost_digit_rules,
    model_rules,
    moment_rules,
    order_rules,
    quantised_rules,
    range_rules,
    scale_rules,
    setup_rules,
    speedup_rules,
    training_rules,
    trend_rules,
    watched_rules,
    zero_gradient_rules,
)
from precgui.runs.diagnosis.checkpoint_rules import examine_scan
from precgui.runs.diagnosis.findings import SEVERITIES, Diagnosis, Finding, RuledOut, Undecided
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.phases import for_its_phase
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.errors import RunFileError
from precgui.runs.models.model_file import holds_scan, read_effects, read_model_file
from precgui.runs.open import open_run_or_events
from precgui.runs.run import Run
from precgui.sentences import L_, Sentence, message_of, together

RULES: tuple[Rule, ...] = (
    *scale_rules.RULES,
    *range_rules.RULES,
    *block_rules.RULES,
    *digit_rules.RULES,
    *moment_rules.RULES,
    *lost_digit_rules.RULES,
    *watched_rules.RULES,
    *exact_step_rules.RULES,
    *training_rules.RULES,
    *dead_unit_rules.RULES,
    *zero_gradient_rules.RULES,
    *gradient_rules.RULES,
    *learning_rules.RULES,
    *chance_rules.RULES,
    *depth_rules.RULES,
    *constant_rules.RULES,
    *data_rules.RULES,
    *loss_argument_rules.RULES,
    *setup_rules.RULES,
    *loop_rules.RULES,
    *order_rules.RULES,
    *model_rules.RULES,
    *quantised_rules.RULES,
    *trend_rules.RULES,
    *speedup_rules.RULES,
    *bookkeeping_rules.RULES,
)
# What inputs of another scale do to a training.
_OF_SCALE = ("divergence", "chance-level", "dead-units", "saturated-units", "rate-too-high")
# A finding on the left says the cause of those on the right, which are then left out.
_EXPLAINS: dict[str, tuple[str, ...]] = {
    "gradients-not-unscaled": ("divergence", "scale-collapse", "undefined-operation", "dead-units"),
    "stale-casts": ("divergence", "no-progress", "rising-loss"),
    "optimizer-in-fp16": ("divergence", "no-progress", "nonfinite-update", "undefined-operation"),
    "loss-not-scaled": ("no-progress", "gradient-underflow", "chance-level"),
    "scaled-penalty": ("divergence", "scale-collapse", "repeated-skips", "rising-loss", "undefined-operation"),
    "left-in-evaluation": ("divergence", "rising-loss", "over-fitting"),
    "clipped-after-step": ("divergence", "rate-too-high", "rising-loss"),
    "stepped-twice": ("divergence", "rate-too-high", "rising-loss"),
    "unscaled-twice": ("no-progress", "gradient-underflow", "epsilon-vanishes"),
    "skipped-but-changed": ("divergence", "nonfinite-update", "undefined-operation", "scale-collapse"),
    "unbounded-loss": ("divergence", "undefined-operation", "nonfinite-update", "forward-overflow", "dead-units"),
    "exponential-overflow": (
        "divergence",
        "rising-loss",
        "rate-too-high",
        "undefined-operation",
        "nonfinite-update",
        "forward-overflow",
        "hidden-infinity",
        "dead-units",
        "inexact-step",
    ),
    "divergence": ("dead-units", "forward-overflow", "repeated-skips", "rate-too-high"),
    "constant-output": (
        "zero-gradients",
        "no-gradients",
        "no-progress",
        "chance-level",
        "dead-units",
        "vanishing-gradients",
        "over-fitting",
    ),
    "alike-units": ("chance-level", "no-progress", "dead-units", "over-fitting"),
    "sorted-batches": ("divergence", "rising-loss", "rate-too-high", "chance-level", "over-fitting"),
    "inputs-all-alike": (
        "no-gradients",
        "zero-gradients",
        "chance-level",
        "no-progress",
        "dead-units",
        "constant-output",
        "over-fitting",
        "vanishing-gradients",
    ),
    data_rules.SCALE_OF_INPUTS: (
        *_OF_SCALE,
        "no-progress",
        "rising-loss",
        "over-fitting",
        "vanishing-gradients",
    ),
    "targets-out-of-range": (
        "unbounded-loss",
        "divergence",
        "rising-loss",
        "rate-too-high",
        "chance-level",
        "no-progress",
        "dead-units",
        "saturated-units",
        "zero-gradients",
        "no-gradients",
        "constant-output",
        "over-fitting",
    ),
    "targets-out-of-scale": ("chance-level", "no-progress", "rate-too-high", "rising-loss", "over-fitting"),
    "large-initial-weights": (
        "divergence",
        "rising-loss",
        "rate-too-high",
        "chance-level",
        "no-progress",
        "dead-units",
        "saturated-units",
        "over-fitting",
    ),
    "loss-arguments": (
        "unbounded-loss",
        "divergence",
        "rising-loss",
        "rate-too-high",
        "undefined-operation",
        "nonfinite-update",
        "weights-not-finite",
        "chance-level",
        "no-progress",
        "zero-gradients",
        "no-gradients",
        "dead-units",
        "over-fitting",
    ),
    "one-class": (
        "zero-gradients",
        "no-gradients",
        "no-progress",
        "chance-level",
        "constant-output",
        "dead-units",
        "over-fitting",
    ),
    "softmax-over-wrong-axis": ("chance-level", "no-progress", "over-fitting", "rate-too-high"),
    "betas-swapped": ("divergence", "rising-loss", "rate-too-high", "no-progress", "chance-level", "over-fitting"),
    "loss-climbed": (
        "divergence",
        "rising-loss",
        "rate-too-high",
        "undefined-operation",
        "nonfinite-update",
        "forward-overflow",
        "dead-units",
        "chance-level",
        "saturated-units",
        "over-fitting",
    ),
    "ignored-classes": ("undefined-operation", "hidden-infinity", "nonfinite-update", "repeated-skips"),
    "foreign-parameters": ("weights-unchanged", "no-progress", "no-gradients", "zero-gradients"),
    "zero-gradients": (
        "weights-unchanged",
        "no-progress",
        "scale-runaway",
        "dead-units",
        "no-gradients",
        "gradient-underflow",
    ),
    "gradients-not-cleared": ("divergence", "no-progress", "dead-units", "rising-loss", "rate-too-high"),
    "epsilon-vanishes": ("moments-underflow", "optimizer-in-fp16"),
    "moments-underflow": (
        "optimizer-in-fp16",
        "divergence",
        "nonfinite-update",
        "undefined-operation",
        "frozen-moments",
        "saturated-units",
        "rising-loss",
        "rate-too-high",
        "dead-units",
        "inexact-update",
    ),
    "weights-shrink": ("no-progress", "dead-units"),
    "saturated-units": ("no-progress", "vanishing-gradients", "constant-output"),
    "chance-level": ("over-fitting",),
    "batch-norm-gap": ("over-fitting",),
    "stagnation": ("weights-unchanged", "no-progress", "lost-updates", "rewritten-weights"),
    "rounded-gradients": ("no-gradients", "zero-gradients", "no-progress", "chance-level"),
    "rewritten-weights": ("no-progress", "weights-unchanged", "chance-level", "inexact-update"),
    "frozen-average": ("lost-updates", "cancelled-digits"),
    "lost-updates": ("cancelled-digits", "no-gradients", "swallowed-additions"),
    "inexact-step": ("divergence", "no-progress", "rising-loss", "chance-level", "rate-too-high"),
    "inexact-update": (
        "divergence",
        "no-progress",
        "rising-loss",
        "chance-level",
        "rate-too-high",
        "nonfinite-update",
        "dead-units",
        "undefined-operation",
        "vanished-values",
    ),
    "merged-positions": ("coarse-angles",),
    "coarse-quantiser": (
        "no-gradients",
        "no-progress",
        "zero-gradients",
        "dead-units",
        "weights-unchanged",
        "constant-output",
    ),
    "clipped-in-quantisation": (
        "divergence",
        "rate-too-high",
        "rising-loss",
        "no-progress",
        "over-fitting",
        "no-gradients",
        "dead-units",
    ),
    "vanished-values": ("coarse-data", "constant-output"),
    "coarse-data": ("cancelled-digits", "constant-output"),
    "weights-unchanged": ("no-progress",),
    "hidden-overflow": (
        "dead-units",
        "zero-gradients",
        "no-gradients",
        "weights-unchanged",
        "no-progress",
        "constant-output",
    ),
    "clip-before-unscale": ("no-progress",),
    "forward-overflow": ("hidden-infinity", "zero-gradients"),
    "undefined-operation": ("hidden-infinity",),
    "repeated-skips": ("hidden-infinity",),
    "scale-too-high": ("scale-probing", "no-step-taken"),
    "scaler-set-anew": ("repeated-skips", "scale-too-high"),
    "weights-not-finite": ("nonfinite-update", "undefined-operation"),
}


_BEGINS = L_("the training has begun, and no step of it has ended yet.")
_SKIPS = ("scale-collapse", "repeated-skips")
# The rules under which `non-finite` tells the cause of the first step that is not finite.
_OF_A_STEP = (
    "data-not-finite", "divergence", "epsilon-vanishes", "exponential-overflow", "forward-overflow", "nonfinite-update",
    "undefined-operation", "weights-not-finite", "zero-row",
)  # fmt: skip


@np.errstate(all="ignore")  # a file may hold any number; each rule judges what comes out
def examine(run: Run) -> Diagnosis:
    """Findings, the weightiest first, and what is ruled out. A run file is read, nothing else; needs no torch.

    The scan of a model has rules of its own.
    """
    if holds_scan(run) and run.path is not None:
        try:
            scan, effects = read_model_file(run.path), read_effects(run.path)
        except RunFileError as error:
            return Diagnosis((), (), (), 0, why_not=message_of(error))
        if scan is None:
            return Diagnosis((), (), (), 0, why_not=_no_scan(run.path))
        return examine_scan(scan, effects)
    m = Measurements(run)
    findings: list[Finding] = []
    ruled_out: list[RuledOut] = []
    undecided: list[Undecided] = []
    for rule in RULES if m.n else RULES[-1:]:
        answer = _answer(rule, m)
        if isinstance(answer, list):
            findings += [for_its_phase(each, m.phases, m.config.precision_schedule) for each in answer]
        elif isinstance(answer, RuledOut):
            ruled_out.append(answer)
        elif isinstance(answer, Undecided):
            undecided.append(answer)
    kept = _without_consequences(findings)
    named = {outcome.rule for outcome in findings}
    return Diagnosis(
        tuple(sorted(kept, key=lambda result: result.order)),
        tuple(each for each in ruled_out if each.rule not in named),
        tuple(undecided),
        m.n,
        why_not=_BEGINS if not m.n and run.status == "running" else "",
    )


def _no_scan(path: Path) -> str:
    return Sentence("{path} is the scan of a model without its figures; scan the model again.", path=path)


def _answer(rule: Rule, m: Measurements) -> Answer:
    """The answer of a rule; where it depends on a precision that changed, the answers for all phases as one."""
    if not rule.by_phase or len(m.parts) == 1:
        return rule.judge(m.parts[0] if rule.by_phase else m)
    answers = [(part.phase_text, rule.judge(part)) for part in m.parts]
    findings = [
        replace(each, title=Sentence("{title} ({phase})", title=each.title, phase=text))
        for text, answer in answers if isinstance(answer, list) for each in answer
    ]  # fmt: skip
    if findings:
        return findings
    reasons = [
        Sentence("{reason} ({phase})", reason=answer.why, phase=text)
        for text, answer in answers
        if isinstance(answer, RuledOut)
    ]
    if reasons:
        return RuledOut(rule.name, together(*reasons, between="; "))
    return next((answer for _, answer in answers if isinstance(answer, Undecided)), None)


def diagnose(run: Run | str | os.PathLike[str]) -> list[Finding]:
    """The findings on a run or on a run file, the weightiest first; an empty list, or infos only, is a healthy run.

    Raises RunFileError for a path at which no run lies, and TypeError for what is neither a run nor a path.
    """
    if isinstance(run, str | os.PathLike):
        with open_run_or_events(Path(run)) as opened:
            return diagnose(opened)
    if not hasattr(run, "series"):
        kind = type(run).__name__
        raise TypeError(f"diagnose takes a run, as open_run returns it, or the path of a run file, but got: {kind}")
    return list(examine(run).findings)


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
    if any(each.precision_is_to_blame is True for each in others):
        dropped.add(step)
    if any(each.rule in exact_step_rules.OF_UPDATES for each in others):
        dropped.add(update)
    return [each for each in findings if each.rule not in dropped]


def _with_scale_of_inputs(findings: list[Finding]) -> list[Finding]:
    """Inputs of a large scale are told where a training fails as it does of them, and with the rank of that failure."""
    scale = next((each for each in findings if each.rule == data_rules.SCALE_OF_INPUTS), None)
    if scale is None or scale.is_problem:
        return findings
    failed = next((each for each in findings if each.rule in _OF_SCALE and each.is_problem), None)
    if failed is None:
        return [each for each in findings if each is not scale]
    told = replace(scale, severity=failed.severity, evidence=(*scale.evidence, *failed.evidence[:1]))
    return [told if each is scale else each for each in findings]


def _without_consequences(findings: list[Finding]) -> list[Finding]:
    findings = _without_inexact_step(_with_their_moments(_with_their_cause(_with_scale_of_inputs(findings))))
    if any(each.is_problem and each.rule != "chance-level" for each in findings):  # any other fault explains it
        findings = [each for each in findings if each.rule != "chance-level"]
    explained = {name for result in findings if result.is_problem for name in _EXPLAINS.get(result.rule, ())}
    return [outcome for outcome in findings if outcome.rule not in explained]
