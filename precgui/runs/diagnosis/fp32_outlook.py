"""Whether FP32 would have saved a training that 16 bits broke, or whether that would have failed in any format.

A step that is finite in FP32 proves that 16 bits broke it. It does not prove that the training goes on in FP32: numbers
beyond 65504 may be those of a training that diverges, and steps that rounding swallows may be too small to matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from precgui.runs.diagnosis.analysis import divides_by_gradients, is_adaptive, median, optimizer_of
from precgui.runs.diagnosis.blame import finite_loss, repetition
from precgui.runs.diagnosis.findings import Blame, Cause, Evidence
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.nan_aware import middle
from precgui.runs.diagnosis.setup_rules import LARGE_GAIN, initial_gains, large_gains
from precgui.runs.recorded_facts import number, rows_of, text, whole
from precgui.sentences import L_, Sentence

_LARGE_OUTPUTS = {True: 1e6, False: 2e4}  # by whether the optimizer divides by the size of the gradients
_LARGE_LOSS = 1e6
_NO_WAY = 1e-4  # of the norm of the weights, in a whole run
_LOST = 0.5  # relative error of a gradient
_SAME_IN_FP32 = Blame(needs=L_("the same run in fp32"), certainty="estimate")
_TOO_SMALL = L_("the steps of the whole run, without any rounding, would hardly move the weights")


def held_against_fp32(m: Measurements, step: int, cause: Cause) -> Cause:
    """The cause of a step that was not finite; whose fault it is stays undecided where FP32 may diverge as well."""
    doubt = _large_in_fp32(m, step) if cause.blame.answer is True else None
    return cause if doubt is None else replace(cause, blame=_SAME_IN_FP32, evidence=(*cause.evidence, doubt))


def _large_in_fp32(m: Measurements, step: int) -> Evidence | None:
    """Numbers of the step, computed in FP32, from which few trainings recover; or weights that began so large."""
    return _outputs(m, step) or _loss(m, step) or _weights(m)


def _outputs(m: Measurements, step: int) -> Evidence | None:
    row = repetition(m, step)
    largest, limit = number(row, "largest"), _LARGE_OUTPUTS[_divides(m)]
    if row.get("finite") is not True or not largest > limit:
        return None
    return Evidence(
        Sentence("largest output of the same pass in FP32 > {limit:g}", limit=limit),
        {"step": whole(row, "step"), "largest": largest, "limit": limit},
        Sentence(
            "The outputs of the model reach {largest:.3g} in FP32. A training with outputs of this size may diverge in "
            "FP32, too.", largest=largest,
        ),
    )  # fmt: skip


def _loss(m: Measurements, step: int) -> Evidence | None:
    value = _loss_beside(m, step)
    if _divides(m) or not value > _LARGE_LOSS:
        return None
    return Evidence(
        Sentence("loss in FP32 > {limit:g}, steps in proportion to the gradient", limit=_LARGE_LOSS),
        {"step": step, "loss": value, "limit": _LARGE_LOSS},
        Sentence(
            "The loss is {loss:.3g} in more digits, and the optimizer makes steps in proportion to its gradient. A "
            "training with a loss of this size may diverge in FP32, too.", loss=value,
        ),
    )  # fmt: skip


def _loss_beside(m: Measurements, step: int) -> float:
    """The loss of finite outputs as FP64 gives it, or else as FP32 does; 0 where it is not known."""
    scale = m.scale_at.get(step, 1.0)
    exact = [row for row in m.fact_rows("exact_steps") if row.get("step") == step and row.get("finite_in_fp64") is True]
    if exact:
        return abs(number(exact[0], "loss_fp64")) / scale
    row = finite_loss(m, step)
    return abs(number(row, "value")) / scale if row.get("step") == step else 0.0


def _weights(m: Measurements) -> Evidence | None:
    gains = initial_gains(m)
    wide = large_gains(gains)
    if not wide:
        return None
    return Evidence(
        L_("rms(weights) sqrt(inputs) > 3 before the first step, in half of the layers"),
        {"layers": len(wide), "gain": gains[wide[0]]},
        Sentence(
            "The weights of {count} of {all} layers began with a root mean square of more than {least:g} / "
            "sqrt(inputs) ({name}: {gain:.3g}). A training that begins so may diverge in FP32, too.",
            count=len(wide), all=len(gains), least=LARGE_GAIN, name=wide[0], gain=gains[wide[0]],
        ),
    )  # fmt: skip


@np.errstate(all="ignore")
def blame_of_small_steps(m: Measurements, blame: Blame) -> Blame:
    """`blame`, that of steps which rounding swallows; not precision where all steps together, not rounded, are tiny."""
    weights, rows = m.table("weight"), m.fact_rows("exact_steps")
    norm = float(np.sqrt(np.nansum(middle(weights.stat("l2"), 0) ** 2))) if weights is not None else 0.0
    ways = [
        number(update, "norm") * _rate_to_come(m, whole(row, "step"))
        for row in rows
        if isinstance(update := row.get("updates"), Mapping) and update.get("finite_in_fp64") is True
    ]
    known = [way for way in ways if np.isfinite(way) and way > 0]
    if not norm > 0 or not known or not (way := max(known) * m.n / norm) < _NO_WAY:
        return blame
    proof = Evidence(
        L_("largest |update| in FP64 x steps / |weights| < 0.0001"), {"way": way, "steps": m.n},
        Sentence(
            "Without any rounding, {steps} steps in one direction would change the weights by at most {way:.2g} of "
            "their norm: FP32 would learn as little. The steps are too small.", steps=m.n, way=way,
        ),
    )  # fmt: skip
    return Blame(False, _TOO_SMALL, "", "estimate", (proof,))


def _rate_to_come(m: Measurements, step: int) -> float:
    """The highest rate of the run by that of a step."""
    own = m.lr[m.steps == step]
    return float(np.nanmax(m.lr) / own[0]) if len(own) and own[0] > 0 else 1.0


@np.errstate(all="ignore")
def blame_of_small_gradients(m: Measurements, blame: Blame) -> Blame:
    """`blame`, that of gradients which a format loses; undecided where FP32, which holds them, would hardly move the
    weights by them, because the optimizer makes steps in proportion to the gradient."""
    weights = m.table("weight")
    if weights is None or _divides(m):
        return blame
    norms = dict(zip(weights.names, middle(weights.stat("l2"), 0).tolist(), strict=True))
    lost = [each for row in m.fact_rows("exact_steps") for each in rows_of(row.get("worst"))
            if number(each, "error") > _LOST and norms.get(text(each, "name"), 0.0) > 0]  # fmt: skip
    ways = [median(m.lr) * m.n * number(each, "norm") / norms[text(each, "name")] for each in lost]
    if not ways or not max(ways) < _NO_WAY:
        return blame
    proof = Evidence(
        L_("rate x |gradient in FP64| x steps / |weight| < 0.0001"), {"way": max(ways), "steps": m.n},
        Sentence(
            "In FP64 the gradients that are lost would change their weights by at most {way:.2g} of their norm in "
            "{steps} steps: FP32, which holds them, may learn as little.", way=max(ways), steps=m.n,
        ),
    )  # fmt: skip
    return replace(_SAME_IN_FP32, evidence=(proof,))


def _divides(m: Measurements) -> bool:
    """Whether the optimizer is of a kind that divides by the size of the gradients, whatever its epsilon is."""
    return is_adaptive(m) or divides_by_gradients(optimizer_of(m)[0])
