"""Why a step is not finite whose weights were so before it: the update before it, or the beginning."""

from __future__ import annotations

import numpy as np

from precgui.runs.diagnosis.analysis import optimizer_of, storage
from precgui.runs.diagnosis.blame import (
    blame_of_beginning,
    blame_of_epsilon,
    blame_of_symptom,
    cure_of_epsilon,
    epsilon_evidence,
    epsilon_row,
)
from precgui.runs.diagnosis.findings import BEYOND_RANGE, Cause, Evidence
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.recorded_facts import nonfinite_operation, text
from precgui.sentences import L_, Sentence


def of_weights(m: Measurements, place: int) -> Cause | None:
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
        start = Evidence(
            L_("weights not finite at step 0"), {"tensor": name},
            Sentence(
                "{name} holds NaN or Inf before step 1.",
                name=name,
            ),
        )  # fmt: skip
        return Cause(
            "weights-not-finite", L_("weights hold NaN or Inf before the first step"),
            L_("Initialise all weights: check empty tensors, meta devices and checkpoints that do not match."),
            (start,), name.rpartition(".")[0], confidence=0.97, tensors=(name,), blame=blame_of_beginning(m),
        )  # fmt: skip
    proof = Evidence(
        L_("weights not finite after a step with finite loss and gradients"), {"step": step, "tensor": name},
        Sentence(
            "After step {step} {name} holds NaN or Inf, although loss and gradients were finite up to it.",
            step=step, name=name,
        ),
    )  # fmt: skip
    if storage(m) in ("fp16", "bf16") and zeros is not None and storage(m) == "fp16":
        return Cause(
            "epsilon-vanishes", L_("the optimizer divides by zero: its epsilon vanishes in FP16"),
            L_("Set eps = 1e-4, or keep weights and optimizer state in FP32."), (proof, zeros), "",
            {"optimizer.eps": 1e-4, "precision_options.master_weights": True}, confidence=0.95,
            tensors=(name,), blame=BEYOND_RANGE,
        )  # fmt: skip
    return Cause(
        "nonfinite-update", Sentence("the update of step {step} made weights NaN or Inf", step=step),
        L_("Look at the optimizer: its epsilon, its state, a second step."), (proof,), confidence=0.6, tensors=(name,),
        certainty="estimate", blame=blame_of_symptom(m),
    )  # fmt: skip


def of_update(m: Measurements, place: int) -> Cause | None:
    """The weights were not finite as the forward pass of a step began, and no step before it was broken."""
    step = int(m.steps[place])
    if not place or text(nonfinite_operation(m.run, step), "given") != "weights":
        return None
    proof = Evidence(
        L_("weights not finite before the pass, run again; all steps before finite"), {"step": step},
        Sentence(
            "The weights held NaN or Inf before the forward pass of step {step}, although loss and gradients were "
            "finite up to it.",
            step=step,
        ),
    )  # fmt: skip
    decided, fix = blame_of_symptom(m), L_("Look at the optimizer: its epsilon, its state, a second step.")
    row, vanished = epsilon_row(m), epsilon_evidence(m)
    if vanished is not None and decided.answer is None:
        decided, fix = blame_of_epsilon(vanished), cure_of_epsilon(row)
    return Cause(
        "nonfinite-update", Sentence("the update before step {step} made weights NaN or Inf", step=step), fix,
        (proof, *decided.evidence), confidence=0.8, certainty="estimate", blame=decided,
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
        "eps < 2^-25", {"eps": configured}, Sentence(
            "eps = {configured:g} is below half of FP16's smallest number, 6e-8: it is zero.",
            configured=configured,
        ),
    )  # fmt: skip
