"""A rate too high as the cause of a step that is not finite: the training had diverged before it."""

from __future__ import annotations

import numpy as np

from precgui.runs.diagnosis.analysis import (
    base_rate,
    first_update,
    growth,
    is_adaptive,
    lower_rate,
    replay,
    storage,
    update_ratios,
)
from precgui.runs.diagnosis.blame import (
    blame_of,
    blame_of_symptom,
    computes_in_16_bits,
    is_state_coarse,
    low_state,
    rounds_by_itself,
)
from precgui.runs.diagnosis.findings import Blame, Cause, Evidence
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.origin import of_loss
from precgui.sentences import L_, Sentence, together

_GROWN, _SURELY_GROWN = 3.0, 10.0
HUGE_UPDATE = 0.3  # of the weights' norm in one step
_JUMP = 100.0  # times the highest loss before
_FEWEST_BEFORE = 10  # steps
_QUIET_UPDATE = 0.1  # of the weights' norm in one step
_QUIET_NORM = 10.0  # times the median gradient norm
_FAR_FROM_INF = 1000.0
_EXPLODED = 100.0  # norm of the gradients of the first step
_USUAL_RATE = 0.1  # of optimizers that make steps in proportion to the gradient: no higher one is
LARGE_UPDATES = Blame(False, L_("steps as large as the weights were made of finite gradients, with weights in FP32"))

KEEP_STATE = L_(
    "The optimizer rounds its state, and an update that is divided by a rounded number may be too large at any rate: "
    "keep the state in FP32 for a test."
)


def of_rate(m: Measurements, place: int) -> Cause | None:
    """The loss had grown before, or a step had changed the weights by a large part of them."""
    if (jump := _of_one_batch(m, place)) is not None:
        return jump
    grown = growth(m, place)
    steps, ratios = update_ratios(m)
    early = (steps < m.steps[place]) & np.isfinite(ratios)
    largest = float(ratios[early].max()) if early.any() else 0.0
    if grown is None:
        return _of_first_update(m, place)
    if largest < HUGE_UPDATE and _loss_itself_overflows(m, place):
        return None
    rose = grown.loss_ratio > _GROWN and grown.last_loss > grown.first_loss
    if not rose and largest < HUGE_UPDATE:
        return None
    if not (rose and (largest > 0.05 or grown.norm_ratio > 3 or grown.loss_ratio > 30)) and largest < HUGE_UPDATE:
        return None
    text = Sentence(
        "Before, the loss rose from {least_loss:.3g} to {last_loss:.3g}, the gradient norm from "
        "{first_norm:.3g} to {last_norm:.3g}.",
        least_loss=grown.least_loss,
        last_loss=grown.last_loss,
        first_norm=grown.first_norm,
        last_norm=grown.last_norm,
    )
    if early.any():
        step = Sentence("One step changed the weights by up to {largest:.2g} of their norm.", largest=largest)
        text = together(text, step)
    proof = Evidence(
        L_("loss > 3 min(loss) or |update| / |weight| > 0.3, before the first value that is not finite"),
        {"loss_least": grown.least_loss, "loss_last": grown.last_loss, "norm_first": grown.first_norm,
         "norm_last": grown.last_norm, "update_ratio": largest},
        text, "loss", m.series_of(m.loss, m.finite_loss),
    )  # fmt: skip
    # Steps as large as the weights, of a state in FP32, while all was finite: no format makes these.
    rounds = bool(low_state(m)) or rounds_by_itself(m)
    certain = rose and largest > HUGE_UPDATE and grown.loss_ratio > _SURELY_GROWN and not rounds
    return _too_high_rate(m, place, proof, 0.9, certain=certain and storage(m) == "fp32")


def _loss_itself_overflows(m: Measurements, place: int) -> bool:
    """Whether, in 16 bits, the loss is NaN or Inf for finite outputs, far from any end of a range one step before.

    A rate too high lets the loss grow to Inf; the logarithm of a number that 16 bits round to 0 is Inf at once.
    """
    before = np.abs(m.loss[:place][m.finite_loss[:place]])
    if m.finite_loss[place] or not len(before) or not before[-1] < _FAR_FROM_INF:
        return False
    return computes_in_16_bits(m) and of_loss(m, place).place == "loss"


def _of_one_batch(m: Measurements, place: int) -> Cause | None:
    """A loss that jumps in one step, with weights that small updates had made: the batch of that step is another one.

    The loss of a step is computed before its update, so its own update has no part in the jump.
    """
    jumps = np.flatnonzero(m.loss[1:place] > _JUMP * np.maximum.accumulate(np.abs(m.loss[: max(place - 1, 0)]))) + 1
    if not len(jumps) or jumps[0] < _FEWEST_BEFORE:
        return None
    at = int(jumps[0])
    norms, highest = m.grad_norm[:at], float(np.abs(m.loss[:at]).max())
    steps, ratios = update_ratios(m)
    early = ratios[(steps < m.steps[at]) & np.isfinite(ratios)]
    quiet = len(early) and early.max() < _QUIET_UPDATE and norms[-1] <= _QUIET_NORM * np.median(norms)
    if not quiet or m.skipped[at]:
        return None
    step, factor = int(m.steps[at]), float(m.loss[at]) / max(highest, 1e-30)
    proof = Evidence(
        L_(
            "loss > 100 max(loss before) in one step, |update| / |weight| < 0.1 and |g| < 10 median(|g|) before it"
        ),
        {"step": step, "loss": float(m.loss[at]), "highest_before": highest, "update_ratio": float(early.max())},
        Sentence(
            "The loss of step {step} is {loss:.3g}, {factor:.2g} times the highest of the {at} steps before, none "
            "of whose recorded updates changed the weights by more than {early:.2g} of their norm.",
            step=step, loss=m.loss[at], factor=factor, at=at, early=early.max(),
        ),
        "loss", m.series_of(m.loss, m.finite_loss),
    )  # fmt: skip
    return Cause(
        "divergence", Sentence(
            "the training diverged after the batch of step {step}, whose loss jumps {factor:.2g}-fold",
            step=step, factor=factor,
        ),
        Sentence(
            "Look at the inputs and targets of step {step}: their unit, outliers, wrong labels. Clip gradients.",
            step=step,
        ),
        (proof,), confidence=0.85, certainty="estimate", blame=blame_of_symptom(m),
    )  # fmt: skip


def _of_first_update(m: Measurements, place: int) -> Cause | None:
    """A divergence too early for a trend of the loss: the update before was large relative to the initial weights."""
    began = first_update(m)
    if began is None:
        return None
    step, ratio = began
    if not step < m.steps[place] or not ratio >= HUGE_UPDATE:
        return None
    proof = Evidence(
        L_(
            "|update| / |weight before| > 0.3 in the first step taken, before the first value that is not finite"
        ),
        {"update_ratio": ratio, "step": step},
        Sentence(
            "The update of step {step} was {ratio:.3g} times as large as the weights before it (L2 norms).",
            step=step, ratio=ratio,
        ),
        "loss", m.series_of(m.loss, m.finite_loss),
    )  # fmt: skip
    return _too_high_rate(m, place, proof, 0.8)


def _too_high_rate(m: Measurements, place: int, proof: Evidence, confidence: float, *, certain: bool = False) -> Cause:
    step, rate = int(m.steps[place]), lower_rate(m)
    decided = blame_of(m, step)
    # The rate is wrong in any format; NaN where FP32 would have held the numbers is still the doing of the format.
    needs = Sentence("{replay}, or the same run in fp32 does", replay=replay(m, step))
    blame = blame_of_symptom(m, needs) if decided.answer is not False else decided
    if certain:
        blame = LARGE_UPDATES
    coarse = is_state_coarse(m)
    title, fix = _title_and_fix(m, rate, coarse=coarse)
    return Cause(
        "divergence", title, together(KEEP_STATE, fix) if coarse else fix, (proof, *decided.evidence), "",
        {"optimizer.lr": rate} if rate > 0 else {},
        confidence=confidence, certainty="estimate", blame=blame,
    )  # fmt: skip


def _title_and_fix(m: Measurements, rate: float, *, coarse: bool) -> tuple[str, str]:
    first = float(m.grad_norm[0]) if len(m.grad_norm) else 0.0
    if first > _EXPLODED and base_rate(m) <= _USUAL_RATE and not is_adaptive(m):
        return (
            Sentence(
                "the training diverged first: at this learning rate its gradients are too large from the first step "
                "on, with a norm of {norm:.2g}",
                norm=first,
            ),
            Sentence(
                "Clip gradients (torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)), and look for targets or "
                "losses of a large unit and for weights that are applied again and again; or lower the learning rate "
                "to {rate:.3g}.",
                rate=rate,
            ),
        )  # fmt: skip
    fix = Sentence("Lower the learning rate to {rate:.3g} and warm it up.", rate=rate)
    if coarse:
        return L_("the training diverged first: its steps are too large"), fix
    return L_("the training diverged first: the learning rate is too high"), fix
