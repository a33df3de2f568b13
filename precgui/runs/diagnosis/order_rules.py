"""Group D, more of the order of a loop in mixed precision: autocast around steps, divisions by the scale, roots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from precgui.runs.diagnosis.analysis import (
    divides_by_gradients,
    growth,
    is_adaptive,
    median,
    power,
    recorded_optimizers,
)
from precgui.runs.diagnosis.findings import IN_ANY_FORMAT, UNDECIDED, Blame, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, whole
from precgui.sanitize import one_line
from precgui.sentences import L_, Sentence

_FEWEST_STEPS = 2  # that were watched, in which gradients were scaled too late, or unscaled again
_FEWEST_ROUNDS, _OPPOSED = 5, 0.8  # of two optimizers that were compared; share in which they oppose each other
_FEWEST_EVALUATIONS = 2
_LEARNT = 0.9  # times the first loss: with less at the end the training goes well


def stale_casts(m: Measurements) -> Answer:
    """The loop runs inside one region of autocast, whose copies of the weights are never made anew."""
    stale = m.fact("loop").get("stale_casts")
    if not m.own_loop or stale is None or not m.n:
        return None
    if not stale:
        return RuledOut(
            "stale-casts", L_("because autocast cast anew after each step a number that the step had changed")
        )
    dtype = str(m.fact("autocast").get("dtype") or "16 bits").upper()
    proof = Evidence(
        L_("cast of a number in a forward pass = its value before the last step, in 2 steps"), {"steps": 2},
        Sentence(
            "In two steps one after another the forward pass met the cast to {dtype} of a number as it was before "
            "the step that had changed it: casts of weights that autocast keeps are as old.",
            dtype=dtype,
        ),
    )  # fmt: skip
    return [
        Finding(
            "stale-casts", "error", L_(
                "Forward passes use old weights: autocast keeps their casts from step to step"
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_(
                "Enter torch.autocast anew in each step, around the forward pass only, or give it "
                "cache_enabled=False."
            ),
            0.97, "pytorch documentation of torch.autocast, cache_enabled",
             blame=UNDECIDED,
        )
    ]  # fmt: skip


def unscaled_twice(m: Measurements) -> Answer:
    """Gradients that the scaler has divided by the scale are divided by it again by the loop."""
    twice, again = m.fact("loop").get("unscaled_twice"), m.fact_rows("unscaled_again")
    if m.own_loop and m.n and again and whole(again[0], "count") >= _FEWEST_STEPS:
        return [_unscaled_again(m, again[0])]
    if not m.own_loop or twice is None or not m.n:
        return None
    if not twice:
        return RuledOut(
            "unscaled-twice", L_("because gradients at the step are 1 / S of those that backward delivered")
        )
    scale, norm = median(m.scale), median(m.grad_norm)
    proof = Evidence(
        L_("|g at the step| / |g delivered| = 1 / S^2 in 3 steps"), {"scale": scale, "norm": norm},
        Sentence(
            "In three steps one after another gradients at the step were 1/S^2 of those that the backward passes "
            "delivered (S = {scale}): they were divided twice. The median gradient norm is {norm:.3g}.",
            scale=power(scale), norm=norm,
        ),
        "grad_norm", m.series_of(m.grad_norm),
    )  # fmt: skip
    return [
        Finding(
            "unscaled-twice", "warning" if is_adaptive(m) else "error", L_(
                "Gradients are divided by the loss scale twice"
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_(
                "Take the division by the scale out of the loop: scaler.unscale_(optimizer) and "
                "scaler.step(optimizer) divide already."
            ),
            0.97, "torch.amp documentation, working with unscaled gradients", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _unscaled_again(m: Measurements, row: Mapping[str, Any]) -> Finding:
    step, tensors, count = whole(row, "step"), whole(row, "tensors"), whole(row, "count")
    proof = Evidence(
        L_("the scaler divides the same gradients by its scale twice before the optimizer steps"),
        {"step": step, "tensors": tensors, "of": whole(row, "of"), "count": count},
        Sentence(
            "In {count} of the steps that were looked at, the last one step {step}, the scaler unscaled {tensors} of "
            "{of} gradients that it had unscaled before, and that were neither used nor cleared in between.",
            count=count, step=step, tensors=tensors, of=whole(row, "of"),
        ),
        "grad_norm", m.series_of(m.grad_norm),
    )  # fmt: skip
    accumulated = median(m.backward_passes) > 1
    return Finding(
        "unscaled-twice", "error",
        L_("Gradients that are accumulated are divided by the loss scale again in each micro-step") if accumulated
        else L_("Gradients are divided by the loss scale twice"),
        int(m.steps[0]), int(m.steps[-1]), (proof,),
        L_(
            "Call scaler.unscale_(optimizer), scaler.step(optimizer) and scaler.update() once, behind the last "
            "backward pass of the step."
        )
        if accumulated else L_(
            "Give scaler.unscale_ and scaler.step the same optimizer, not once a wrapper and once the optimizer inside "
            "it, and call scaler.update() behind both: the scaler knows by the object what it has divided."
        ),
        0.95, "torch.amp documentation, gradient accumulation", blame=IN_ANY_FORMAT,
    )  # fmt: skip


def unscaled_roots(m: Measurements) -> Answer:
    """A loss that is not multiplied by the scale, of gradients that are divided by it."""
    mixed, unscaled = (m.fact("loop").get(name) for name in ("mixed_roots", "unscaled_root"))
    if not m.own_loop or (mixed is None and unscaled is None) or not m.loops_scale or not m.n:
        return None
    if not mixed and not unscaled:
        return RuledOut("loss-not-scaled", L_("because each backward pass of the first step began with a scaled loss"))
    scale, passes = float(m.scale[0]), median(m.backward_passes)
    seen = (
        Sentence(
            "In the first step parameters of one optimizer got gradients of a loss that was multiplied by the scale "
            "({scale}) and of one that was not; both are then divided by it.", scale=power(scale),
        )
        if mixed else Sentence(
            "In the first step an optimizer stepped inside scaler.step, which divides by the scale ({scale}), with "
            "gradients of losses that nothing had multiplied by it.", scale=power(scale),
        )
    )  # fmt: skip
    proof = Evidence(
        L_(
            "backward passes of an optimizer that begin with a loss without scaler.scale(loss), and "
            "scaler.step(optimizer)"
        ),
        {"scale": scale, "passes": passes}, seen,
    )  # fmt: skip
    harmless = not mixed and all(divides_by_gradients(str(each.get("name", ""))) for each in recorded_optimizers(m))
    return [
        Finding(
            "loss-not-scaled", "warning" if harmless else "error",
            L_("One of the losses is not multiplied by the loss scale: it counts for nothing") if mixed
            else Sentence(
                "A loss is not multiplied by the loss scale, and its gradients are divided by it: {scale} times too "
                "small",
                scale=power(scale),
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_("Call scaler.scale(loss).backward() for each loss, or add the losses up before."), 0.97,
            "torch.amp documentation, working with multiple models, losses, and optimizers", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def scaled_penalty(m: Measurements) -> Answer:
    """A penalty of gradients that are still multiplied by the scale."""
    penalised = m.fact("loop").get("scaled_penalty")
    if not m.own_loop or penalised is None or not m.loops_scale or not m.n:
        return None
    if not penalised:
        return RuledOut("scaled-penalty", L_("because no loss that was scaled was computed from scaled gradients"))
    scale = float(m.scale[0])
    proof = Evidence(
        L_(
            "scaler.scale(loss) of a loss computed from autograd.grad(scaler.scale(loss)), not divided by the scale"
        ),
        {"scale": scale},
        Sentence(
            "In the first step a loss was multiplied by the scale ({scale}) that is computed from gradients of a "
            "scaled loss, which nothing had divided by it: its norm is that many times too large.",
            scale=power(scale),
        ),
    )  # fmt: skip
    return [
        Finding(
            "scaled-penalty", "error", L_(
                "A penalty is computed from gradients that are still multiplied by the scale"
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_(
                "Divide them first: inverse = 1 / scaler.get_scale(); gradients = [each * inverse for each in "
                "gradients]; then compute the penalty outside of autograd.grad."
            ), 0.95,
            "torch.amp documentation, gradient penalty", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def clipped_after_step(m: Measurements) -> Answer:
    """Gradients that are scaled down after the step that has used them."""
    rows = m.fact_rows("late_edits")
    if not m.own_loop or not m.n or len(rows) < _FEWEST_STEPS:
        return None
    steps, factors = [whole(row, "step") for row in rows], [number(row, "factor") for row in rows]
    proof = Evidence(
        L_("gradients at the end of a step = c times those that the optimizer used, with one c < 0.99 for all"),
        {"steps": len(rows), "factor": min(factors)},
        Sentence(
            "In {row_count} steps ({steps}) all gradients were multiplied by one factor, down to {factors:.2g}, after "
            "the optimizer had used them.",
            row_count=len(rows), steps=", ".join(map(str, steps[:5])), factors=min(factors),
        ),
    )  # fmt: skip
    return [
        Finding(
            "clipped-after-step", "warning", L_("Gradients are clipped after the step, which has no effect"), steps[0],
            int(m.steps[-1]), (proof,), L_("Clip between loss.backward() and optimizer.step()."), 0.9,
            "torch.nn.utils.clip_grad_norm_ documentation", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def stepped_twice(m: Measurements) -> Answer:
    """Two optimizers that hold the same parameters and step with the same gradients."""
    if not m.own_loop or not m.n:
        return None
    if not m.fact("loop").get("stepped_twice"):
        return _held_by_another(m)
    names = [str(each.get("name", "")) for each in recorded_optimizers(m)]
    proof = Evidence(
        L_("gradient of a parameter as another optimizer has used it, in 3 steps or more"), {"optimizers": len(names)},
        Sentence(
            "In three steps or more two of the optimizers ({names}) stepped with the very gradients of the same "
            "parameters, without a backward pass in between: each of these weights is moved twice.",
            names=", ".join(names),
        ),
    )  # fmt: skip
    return [
        Finding(
            "stepped-twice", "warning", L_("Two optimizers update the same parameters with the same gradients"),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_("Give each parameter to one optimizer, or to one of its groups."), 0.85, "torch.optim documentation",
            blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _held_by_another(m: Measurements) -> Answer:
    """An optimizer that also holds all parameters of another one, and moves them against it with another loss."""
    seen, result = m.fact("loop").get("opposed_gradients"), growth(m, m.n)
    if not isinstance(seen, Mapping) or result is None or whole(seen, "compared") < _FEWEST_ROUNDS:
        return None
    compared, opposed = whole(seen, "compared"), whole(seen, "opposed")
    learns = 0 < result.last_loss < _LEARNT * result.first_loss
    if opposed < _OPPOSED * compared or learns:
        return RuledOut(
            "stepped-twice",
            Sentence(
                "because the gradients of the parameters that two optimizers hold oppose each other in {opposed} of "
                "{compared} rounds, and the loss went from {first_loss:.3g} to {last_loss:.3g}",
                opposed=opposed,
                compared=compared,
                first_loss=result.first_loss,
                last_loss=result.last_loss,
            ),
        )
    proof = Evidence(
        L_("an optimizer holds all parameters of another one, and sum g1 g2 < 0 in 80 % of the rounds compared"),
        {"compared": compared, "opposed": opposed, "loss_first": result.first_loss, "loss_last": result.last_loss},
        Sentence(
            "In {opposed} of {compared} rounds that were compared the gradients with which two optimizers update "
            "the same parameters point against each other; one of the two holds all parameters of the other, and "
            "more. The loss went from {first_loss:.4g} to {last_loss:.4g}.",
            opposed=opposed, compared=compared, first_loss=result.first_loss, last_loss=result.last_loss,
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "stepped-twice", "warning",
            L_("An optimizer also holds the parameters of another one, and moves them against it"), int(m.steps[0]),
            int(m.steps[-1]), (proof,),
            L_(
                "Give each parameter to one optimizer: that of an actor (or generator) gets actor.parameters() "
                "only, not those of the critic (or discriminator) through which its loss goes."
            ), 0.85, "torch.optim documentation",
            blame=Blame(False, L_("two losses update the same parameters in any format")),
        )
    ]  # fmt: skip


def left_in_evaluation(m: Measurements) -> Answer:
    """A model with dropout or batch norm that stays in evaluation mode while it is trained, as after a validation."""
    since = m.fact("loop").get("evaluation_mode_since")
    if not m.own_loop or not m.n:
        return None
    if m.fact("loop").get("always_in_evaluation") is True:
        return _never_in_training(m)
    if not isinstance(since, int):
        return None
    kinds = [kind.rpartition(".")[2] for kind in m.model.module_types.values()]
    changed = [kind for kind in kinds if "BatchNorm" in kind or "Dropout" in kind]
    if not changed:
        return RuledOut(
            "left-in-evaluation",
            Sentence(
                "because nothing in the model knows a mode (step {since} and later)",
                since=since,
            ),
        )
    proof = Evidence(
        L_(
            "steps after passes in evaluation mode: all from one on, 10 or more, in a loop that began in training "
            "mode"
        ),
        {"since": since, "modules": len(changed)},
        Sentence(
            "From step {since} of the optimizer on each forward pass before a step was in evaluation mode, in which "
            "{changed_count} modules ({changed}) do nothing or use fixed statistics.",
            since=since, changed_count=len(changed), changed=", ".join(sorted(set(changed))),
        ),
    )  # fmt: skip
    return [
        Finding(
            "left-in-evaluation", "warning", Sentence(
                "The model is trained in evaluation mode from step {since} on",
                since=since,
            ), since,
            int(m.steps[-1]), (proof,), L_("Call model.train() after each evaluation, before the next batch."), 0.9,
            "torch.nn.Module.train documentation", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def validated_in_training(m: Measurements) -> Answer:
    """Evaluations in training mode: dropout drops, and batch norm takes statistics of the batch and keeps them."""
    fact = m.fact("loop").get("evaluations")
    if not m.own_loop or not isinstance(fact, Mapping):
        return None
    count = whole(fact, "evaluations")
    if count < _FEWEST_EVALUATIONS or fact.get("in_training") is not True:
        return RuledOut(
            "validated-in-training-mode",
            L_("because passes of an evaluation were in evaluation mode, or none was seen"),
        )
    given = fact.get("modules")
    kinds = ", ".join(str(each) for each in given) if isinstance(given, list) else ""
    proof = Evidence(
        L_("all passes without gradients between a step and an evaluation, in training mode, in each evaluation"),
        {"evaluations": count},
        Sentence(
            "In each evaluation, {count} or more, all passes of the model without gradients were in training mode, in "
            "which these modules answer otherwise: {kinds}.",
            count=count, kinds=one_line(kinds),
        ),
    )  # fmt: skip
    return [
        Finding(
            "validated-in-training-mode", "warning",
            L_("The validation runs in training mode: it is not the model that would be used that is judged"),
            int(m.steps[0]) if m.n else 0, int(m.steps[-1]) if m.n else 0, (proof,),
            L_(
                "Call model.eval() before each evaluation and model.train() behind it. Batch norm in training mode "
                "also takes the statistics of the validation into its own."
            ),
            0.9, "torch.nn.Module.eval documentation", certainty="exact", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _never_in_training(m: Measurements) -> Answer:
    """Batch norm that learns, in a model that never is in training mode, with the statistics that it was made with: 0
    and 1. Those of a trained model are others, and it may well be kept in evaluation mode."""
    table = m.table("buffer")
    if table is None:
        return None
    unseen = []
    for name in _without_statistics(m):
        scale = m.model.by_name.get(f"{name}.weight")
        if "BatchNorm" in m.model.module_types[name] and scale is not None and scale.requires_grad:
            unseen.append(name)
    if not unseen:
        return RuledOut("left-in-evaluation", L_("because the statistics of batch norm are those of some data"))
    proof = Evidence(
        L_(
            "all steps after passes in evaluation mode, running_mean = 0 and running_var = 1 in each recorded step"
        ),
        {"modules": len(unseen), "rows": len(table.steps)},
        Sentence(
            "Each forward pass before a step was in evaluation mode, and the statistics of {unseen_count} modules "
            "({unseen}) are to the end the 0 and 1 that they were made with: they normalise nothing.",
            unseen_count=len(unseen), unseen=", ".join(unseen[:5]),
        ),
    )  # fmt: skip
    return [
        Finding(
            "left-in-evaluation", "warning", L_(
                "The model is trained in evaluation mode: batch norm never saw a batch"
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_("Call model.train() after each evaluation, also after one before the first step."), 0.9,
            "torch.nn.Module.train documentation", unseen[0], blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _without_statistics(m: Measurements) -> list[str]:
    """Modules whose running statistics are to the end the 0 and 1 that they were made with."""
    table = m.table("buffer")
    if table is None:
        return []
    ones = np.logical_and.reduce([table.stat(name) == 1 for name in ("amax", "amin_nonzero", "mean")]).all(0)
    zeros = (table.stat("amax") == 0).all(0)
    made = {name for name, one, zero in zip(table.names, ones, zeros, strict=True) if (zero if "mean" in name else one)}
    return [name for name in m.model.module_types if {f"{name}.running_mean", f"{name}.running_var"} <= made]


def statistics_kept_out(m: Measurements) -> Answer:
    """Norms in training mode with a momentum of 0, by which no batch enters their running statistics."""
    rows = m.fact_rows("kept_statistics")
    if not m.own_loop or not m.n or not m.fact("census"):
        return None
    seen = {str(row.get("module")) for row in rows}
    unseen = [name for name in _without_statistics(m) if name in seen]
    if not unseen:
        return RuledOut(
            "statistics-kept-out", L_("because no norm was seen whose running statistics keep all batches out")
        )
    first = next(row for row in rows if str(row.get("module")) == unseen[0])
    proof = Evidence(
        L_("momentum = 0 in training mode, running_mean = 0 and running_var = 1 in each recorded step"),
        {"modules": len(unseen), "step": whole(first, "step")},
        Sentence(
            "In step {step} and others {unseen_count} modules ({unseen}) normalised with the statistics of the batch "
            "and took 0 % of them into their running statistics, which are to the end the 0 and 1 that they were made "
            "with. Evaluation mode normalises with these.",
            step=whole(first, "step"), unseen_count=len(unseen), unseen=", ".join(unseen[:5]),
        ),
    )  # fmt: skip
    return [
        Finding(
            "statistics-kept-out", "warning",
            L_("The momentum of a norm is 0: its running statistics never see a batch"),
            whole(first, "step"), int(m.steps[-1]), (proof,),
            L_(
                "Leave momentum at 0.1, or take None for the average of all batches: in torch it is the share of the "
                "new batch, which other libraries count as 1 - momentum."
            ),
            0.95, "torch.nn.BatchNorm2d documentation", unseen[0], tuple(unseen[:20]), certainty="exact",
            blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


RULES = (
    Rule("stale-casts", "D", L_("Does autocast cast the weights anew after each step?"), stale_casts),
    Rule("unscaled-twice", "D", L_("Are gradients divided by the scale once?"), unscaled_twice),
    Rule("loss-not-scaled", "D", L_("Is each loss multiplied by the scale?"), unscaled_roots),
    Rule("scaled-penalty", "D", L_("Are gradients divided by the scale before they are penalised?"), scaled_penalty),
    Rule("clipped-after-step", "D", L_("Are gradients clipped before the step?"), clipped_after_step),
    Rule("stepped-twice", "D", L_("Has each parameter one optimizer?"), stepped_twice),
    Rule("validated-in-training-mode", "D", L_("Is the model validated in evaluation mode?"), validated_in_training),
    Rule("statistics-kept-out", "D", L_("Do running statistics take in batches?"), statistics_kept_out),
    Rule("left-in-evaluation", "D", L_("Is the model trained in training mode?"), left_in_evaluation),
)
