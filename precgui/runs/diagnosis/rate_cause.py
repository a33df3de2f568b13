"""A rate too high as the cause of a step that is not finite: the training had diverged before it."""

from __future__ import annotations

import numpy as np

from precgui.runs.diagnosis.analysis import growth, lower_rate, replay, update_ratios
from precgui.runs.diagnosis.blame import blame_of, computes_in_16_bits
from precgui.runs.diagnosis.cause import Cause
from precgui.runs.diagnosis.findings import Evidence
from precgui.runs.diagnosis.measurements import Measurements

_GROWN = 3.0
HUGE_UPDATE = 0.3  # of the weights' norm in one step


def of_rate(m: Measurements, place: int) -> Cause | None:
    """The loss had grown before, or a step had changed the weights by a large part of them."""
    grown = growth(m, place)
    steps, ratios = update_ratios(m)
    early = (steps < m.steps[place]) & np.isfinite(ratios)
    largest = float(ratios[early].max()) if early.any() else 0.0
    if grown is None:
        return _of_first_update(m, place)
    rose = grown.loss_ratio > _GROWN and grown.last_loss > grown.first_loss
    if not rose and largest < HUGE_UPDATE:
        return None
    if not (rose and (largest > 0.05 or grown.norm_ratio > 3 or grown.loss_ratio > 30)) and largest < HUGE_UPDATE:
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
    if not ratio >= HUGE_UPDATE:
        return None
    proof = Evidence(
        "|update| / |weight before| > 0.3 in the first step taken, before the first value that is not finite",
        {"update_ratio": ratio, "step": step},
        f"The update of step {step} was {ratio:.3g} times as large as the weights before it (L2 norms).",
        "loss", m.series_of(m.loss, m.finite_loss),
    )  # fmt: skip
    return _too_high_rate(m, place, proof, 0.8)


def _too_high_rate(m: Measurements, place: int, proof: Evidence, confidence: float) -> Cause:
    step, rate = int(m.steps[place]), lower_rate(m)
    decided = blame_of(m, step)
    # The rate is wrong in any format; NaN where FP32 would have held the numbers is still the doing of the format.
    low = computes_in_16_bits(m) and decided.answer is not False
    return Cause(
        "divergence", "the training diverged first: the learning rate is too high", None if low else False,
        f"Lower the learning rate to {rate:.3g} and warm it up.", (proof, *decided.evidence), "",
        {"optimizer.lr": rate} if rate > 0 else {},
        needs=f"{replay(m, step)}, or the same run in fp32 does" if low else "",
        confidence=confidence, certainty="estimate",
    )  # fmt: skip
