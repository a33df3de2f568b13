"""Group C: all gradients are zero, because they are flushed, cleared or cut off, or nothing passes them on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from precgui.runs.diagnosis.analysis import median, narrow_range, percent
from precgui.runs.diagnosis.blame import blame_of_symptom, low_operations
from precgui.runs.diagnosis.findings import BEYOND_RANGE, COMPARED, IN_ANY_FORMAT, Blame, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.fp32_outlook import blame_of_small_gradients
from precgui.runs.diagnosis.measurements import Measurements, module_of
from precgui.runs.diagnosis.origin import WHOLE
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, whole
from precgui.sentences import L_, Sentence


def zero_gradients(m: Measurements) -> Answer:
    """All gradients are zero in nearly all steps."""
    known = np.isfinite(m.grad_norm) & ~m.skipped & (m.loss != 0)  # a loss of 0 has no gradient, and needs none
    if m.n < 3 or known.sum() < max(3, m.n // 2):  # of a run that skips most steps these are few
        return None
    share = float((m.grad_norm[known] == 0).mean())
    if share < 0.9:
        return RuledOut(
            "zero-gradients",
            Sentence(
                "because the gradient norm is zero in {share} of the steps only",
                share=percent(share),
            ),
        )
    if rows := m.fact_rows("cleared_gradients"):
        return [of_cleared(m, rows)]
    flushed, dead = _flushed(m), _dead_end(m)
    if flushed is False and dead:
        return [_behind_zeros(m, dead, share, int(known.sum()))]
    if flushed is False and _reach_modules(m) and not zero_factors(m):
        return [_made_zero(m, share, int(known.sum()))]
    proof = Evidence(
        L_("|g| = 0 in > 90 % of the steps"), {"share": share, "steps": int(known.sum())},
        Sentence(
            "The gradient norm is exactly zero in {share} of {known} steps.",
            share=percent(share), known=int(known.sum()),
        ), "grad_norm",
        m.series_of(m.grad_norm),
    )  # fmt: skip
    reason, fix = _reason(m, flushed)
    blame = blame_of_symptom(m, L_("gradients of activations (record.activation_gradients_every)"))
    if flushed:
        blame = blame_of_small_gradients(m, BEYOND_RANGE)
    elif zero_factors(m) and flushed is False:
        blame = Blame(False, L_("each of two factors is exactly zero, as it was before the first step"))
    title = Sentence("All gradients are zero: {reason}", reason=reason)
    return [
        Finding(
            "zero-gradients", "error", title, int(m.steps[0]), int(m.steps[-1]), (proof, *blame.evidence), fix, 0.9,
            "Micikevicius et al. 2018", config_change={"scaling.mode": "dynamic"} if flushed is not False else {},
            certainty="exact" if blame.answer is not None else "estimate", blame=blame,
        )
    ]  # fmt: skip


def _reach_modules(m: Measurements) -> bool:
    """Whether gradients that are not zero arrive at outputs of modules that hold parameters."""
    table = m.table("activation_gradient")
    if table is None:
        return False
    holding = {module_of(each.name, "gradient") for each in m.model.parameters}
    zero = np.isin(table.steps, m.steps[m.grad_norm == 0])
    return any(
        name in holding and bool((table.stat("amax")[zero, place] > 0).any()) for place, name in enumerate(table.names)
    )


@np.errstate(all="ignore")
def _dead_end(m: Measurements) -> str:
    """A module whose outputs are zero in every recorded step with zero gradients, although the loss sends gradients to
    them; '' without one. A gradient passes it nowhere."""
    outputs, arriving = m.table("activation"), m.table("activation_gradient")
    if outputs is None or arriving is None:
        return ""
    still = m.steps[m.grad_norm == 0]
    zeros = outputs.of(np.isin(outputs.steps, still))
    come = arriving.of(np.isin(arriving.steps, still))
    if not len(zeros.steps) or not len(come.steps):
        return ""
    alive = {
        name for place, name in enumerate(come.names)
        if bool((come.stat("amax")[:, place] > 0).any())
    }  # fmt: skip
    holding = {module_of(each.name, "gradient") for each in m.model.parameters}
    dead = [
        name for place, name in enumerate(zeros.names)
        if zeros.recorded[:, place].any() and not zeros.bad[:, place].any() and name in alive
        and bool((zeros.stat("amax")[:, place][zeros.recorded[:, place]] == 0).all())
    ]  # fmt: skip
    inner = [name for name in dead if name not in WHOLE]
    return (inner or dead or [""])[0] if not alive & holding - set(dead) else ""


def of_cleared(m: Measurements, rows: list[Mapping[str, Any]]) -> Finding:
    """Gradients that the backward pass has made, and that are None, or zeros without a sign, at the step."""
    steps, largest_one = [whole(row, "step") for row in rows], number(rows[-1], "largest")
    proof = Evidence(
        L_("g = +0, or None, at the step, of all gradients that the backward pass left with a sign and a size"),
        {"steps": len(rows), "largest": largest_one, "parameters": whole(rows[-1], "of")},
        Sentence(
            "In steps {steps} the backward pass left gradients of up to {largest_one:.3g}, and the optimizer got "
            "none: all are None, or zeros without a sign. A factor of zero leaves the signs.",
            steps=", ".join(map(str, steps[:6])), largest_one=largest_one,
        ),
        "grad_norm", m.series_of(m.grad_norm),
    )  # fmt: skip
    return Finding(
        "zero-gradients", "error", L_(
            "Gradients are cleared between the backward pass and the step: none is left"
        ),
        int(m.steps[0]), int(m.steps[-1]), (proof,),
        L_("Call zero_grad() before the backward pass or after the step, not between backward() and step()."), 0.95,
        "docs/diagnosis.md", blame=Blame(False, L_("a clearing leaves nothing, in any format")),
    )  # fmt: skip


def _behind_zeros(m: Measurements, name: str, share: float, steps: int) -> Finding:
    """Gradients that arrive at a module which returns zeros only."""
    whole = name in WHOLE
    proof = Evidence(
        L_("outputs = 0 and gradients of them > 0, in all recorded steps with |g| = 0"),
        {"share": share, "steps": steps},
        (
            Sentence(
                "The gradient norm is exactly zero in {share} of {steps} steps. In those that were recorded all "
                "outputs of the model are zero; the loss sends gradients to them, and none passes.",
                share=percent(share),
                steps=steps,
            )
            if whole
            else Sentence(
                "The gradient norm is exactly zero in {share} of {steps} steps. In those that were recorded all "
                "outputs of {name} are zero; the loss sends gradients to them, and none passes.",
                share=percent(share),
                steps=steps,
                name=name,
            )
        ),
        "grad_norm",
        m.series_of(m.grad_norm),
    )
    blame = Blame(False, L_("where an activation function is flat its derivative is zero in any format"))
    return Finding(
        "zero-gradients", "error",
        (
            L_("All gradients are zero: the model returns zeros only, and no gradient passes them")
            if whole
            else Sentence(
                "All gradients are zero: {name} returns zeros only, and no gradient passes them",
                name=name,
            )
        ),
        int(m.steps[0]), int(m.steps[-1]), (proof,),
        L_(
            "Take away the activation function behind the last layer: after a ReLU outputs below zero cannot be "
            "learnt, and where all are zero nothing is. Elsewhere use a leaky one, or a norm before it, and start "
            "anew."
        ), 0.85,
        "docs/diagnosis.md", "" if whole else name, (name,), certainty="estimate",
        blame=blame_of_symptom(m) if narrow_range(m) else blame,
    )  # fmt: skip


def _made_zero(m: Measurements, share: float, steps: int) -> Finding:
    """Gradients that arrive, and are zero when the optimizer gets them."""
    proof = Evidence(
        L_("|g| = 0 in > 90 % of the steps, and gradients of outputs > 0"), {"share": share, "steps": steps},
        Sentence(
            "The gradient norm is exactly zero in {share} of {steps} steps, while gradients of outputs that are not "
            "zero reach the modules.",
            share=percent(share), steps=steps,
        ), "grad_norm", m.series_of(m.grad_norm),
    )  # fmt: skip
    rows = [row for row in m.fact_rows("finite_in_fp32") if row.get("use") != "gradient"]
    overflow = next((row for row in rows if row.get("kind") == "overflow"), None)
    evidence = [proof]
    if overflow is not None:
        value, name, fmt = (overflow.get(key) for key in ("value", "operation", "format"))
        evidence.append(
            Evidence(
                L_("Inf in 16 bits, finite in FP32"), {"value": value if isinstance(value, int | float) else 0.0},
                Sentence(
                    "{name} gives Inf in {fmt} in step {step}; in FP32 it is {value}.",
                    name=name, fmt=str(fmt).upper(), step=overflow.get("step"), value=value,
                ),
            )
        )  # fmt: skip
    blame = COMPARED if overflow is not None else blame_of_symptom(m)
    return Finding(
        "zero-gradients", "error", L_(
            "All gradients are zero at the step, although gradients reach the modules"
        ),
        int(m.steps[0]), int(m.steps[-1]), tuple(evidence),
        L_(
            "Look at the lines between the backward pass and the step: a norm that is Inf makes the factor of "
            "clipping 0. Compute norms and sums in FP32 (torch.nn.utils.clip_grad_norm_ does)."
        ),
        0.8, "docs/diagnosis.md", certainty="estimate",
        blame=blame,
    )  # fmt: skip


def _reason(m: Measurements, flushed: bool | None) -> tuple[str, str]:
    """Why all gradients are zero, and the fix."""
    if (names := zero_factors(m)) and flushed is False:
        return (
            Sentence(
                "{name} and {name2} begin at zero, and each has the gradient times the other",
                name=names[0],
                name2=names[1],
            ),
            L_("Initialise one of the two at random, as the first matrix of an adapter is."),
        )
    if flushed is False:
        return (
            L_("the loss does not depend on the weights"),
            L_("Look for detach(), torch.no_grad(), .data or .item() between the model and the loss."),
        )
    low = low_operations(m)
    if m.loops_scale or (flushed is None and low):
        return (
            Sentence("the loss is computed in 16 bits ({low})", low=", ".join(low[:3]))
            if low
            else L_("flushed, or cut off"),
            L_(
                "Convert the outputs first, loss_function(outputs.float(), targets): a sum beyond 65504 is Inf, and "
                "a quotient by Inf has no gradient; or use BF16."
            ),
        )
    reason = L_("they are flushed below the range of FP16") if flushed else L_("flushed, or cut off")
    return reason, L_("Scale the loss (torch.amp.GradScaler), or use BF16.")


def zero_factors(m: Measurements) -> tuple[str, ...]:
    """Matrices that learn and are zero in every recorded step, where there are two or more."""
    table = m.table("weight")
    if table is None:
        return ()
    zero = (table.stat("amax") == 0).all(0)
    matrices = [
        name for name, is_zero in zip(table.names, zero.tolist(), strict=True)
        if is_zero and (known := m.model.by_name.get(name)) is not None and len(known.shape) >= 2
    ]  # fmt: skip
    return tuple(matrices) if len(matrices) > 1 else ()


def _flushed(m: Measurements) -> bool | None:
    """Whether FP16 took the gradients: some still arrive near its end, or the loss is below its range."""
    if not narrow_range(m):
        return False
    scale = median(m.scale)
    table = m.table("activation_gradient")
    if table is not None:
        most = table.stat("amax")
        if (most > 0).any():
            return bool(np.nanmax(most) * scale < 2.0**-12)
        if median(m.loss) * scale < 2.0**-12:
            return True
    return True if median(m.loss) * scale < 2.0**-12 else None


def of_none(m: Measurements) -> Finding:
    """A run in which no parameter ever had a gradient."""
    proof = Evidence(
        L_("count of gradients = 0"),
        {"steps": m.n},
        Sentence("In {steps} steps no parameter had a gradient.", steps=m.n),
        "loss",
        m.series_of(m.loss),
    )
    return Finding(
        "zero-gradients", "error", L_(
            "No parameter ever had a gradient: the loss does not depend on the weights"
        ),
        int(m.steps[0]), int(m.steps[-1]), (proof,), L_(
            "Look for detach(), torch.no_grad(), .data or .item() between the model and the loss."
        ),
        0.8, "docs/diagnosis.md", blame=IN_ANY_FORMAT,
    )  # fmt: skip


RULES = (Rule("zero-gradients", "C", L_("Are there gradients?"), zero_gradients),)
