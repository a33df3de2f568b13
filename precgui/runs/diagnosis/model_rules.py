"""Rules on the model as newer run files record it: updated parameters, copies of weights, buffers, scaler."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from precgui.events import TENSOR_STATS
from precgui.runs.diagnosis.analysis import FOREIGN, learning_ends, median, narrow_range, percent
from precgui.runs.diagnosis.blame import has_another_scaler
from precgui.runs.diagnosis.findings import (
    BEYOND_RANGE,
    IN_ANY_FORMAT,
    TOO_FEW_DIGITS,
    UNDECIDED,
    Evidence,
    Finding,
    RuledOut,
    Undecided,
)
from precgui.runs.diagnosis.measurements import Measurements, RecordedRows, thinned
from precgui.runs.diagnosis.nan_aware import middle
from precgui.runs.diagnosis.number_formats import DIGITS
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import texts, whole
from precgui.sentences import L_, Sentence

_MOST_LEFT = 0.2  # share of the elements that may be in no optimizer
_LOST = 0.05  # of the steps, to searches for the scale
_FEWEST_SEARCHES = 3
_UNSEEN = 0.02  # share of an average that a step changes, where it may be replaced in steps that are not recorded
_FROZEN, _SLOW = 0.1, 0.5  # share of an average that a step changes: an error, a warning


def parameters_left_out(m: Measurements) -> Answer:
    """Parameters that require a gradient and get one, but that no optimizer updates."""
    if hidden := _hidden_parameters(m):
        return [hidden]
    known = [each for each in m.model.parameters if each.role == "parameter"]
    if not known:
        return (
            Undecided(
                "parameters-left-out",
                Sentence(
                    "the model ({unavailable})",
                    unavailable=m.model.unavailable,
                ),
            )
            if m.own_loop
            else None
        )
    if not any(each.updated for each in known):
        return None  # see foreign_parameters
    idle = [each.name for each in known if each.requires_grad and not each.updated]
    if idle and not any(each.backward_order >= 0 for each in known):
        return Undecided("parameters-left-out", L_("the order of the first backward pass (torch.compile was in use)"))
    out = [each.name for each in known if each.name in idle and each.backward_order >= 0]
    if not out:
        return RuledOut(
            "parameters-left-out",
            Sentence(
                "because an optimizer updates each of {known_count} parameters that learns",
                known_count=len(known),
            ),
        )  # fmt: skip
    if (stale := _replaced_since(m, out)) is not None:
        return [stale]
    sizes = {each.name: math.prod(each.shape) for each in known if each.requires_grad}
    share = sum(sizes[name] for name in out) / max(sum(sizes.values()), 1)
    proof = Evidence(
        L_("requires_grad and has a gradient and is in no optimizer: 20 % of the elements"),
        {"left_out": len(out), "of": len(known), "share": share},
        Sentence(
            "{out_count} of {known_count} parameters, {share} of the elements, get gradients and are in no "
            "optimizer: {out}.",
            out_count=len(out), known_count=len(known), share=percent(share), out=", ".join(out[:5]),
        ),
    )  # fmt: skip
    return [
        Finding(
            "parameters-left-out", "warning" if share > _MOST_LEFT else "info",
            Sentence(
                "No optimizer updates {out_count} of {known_count} parameters",
                out_count=len(out), known_count=len(known),
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_("Give them to the optimizer, or set requires_grad_(False) where they are meant to stay."), 0.7,
            "torch.optim documentation", out[0].rpartition(".")[0], tuple(out[:20]), blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _replaced_since(m: Measurements, out: list[str]) -> Finding | None:
    """Of the optimizer: parameters that are not the model's and never had a gradient, where parameters of the model
    that no optimizer has stay as they were: layers were replaced after the optimizer was made."""
    weights, gradients = m.table("weight"), m.table("gradient")
    row = next(iter(m.fact_rows("untrained_parameters")), None)
    if not m.own_loop or not m.n or weights is None or gradients is None or row is None:
        return None
    told = row.get("names")
    still = [name for name in out if isinstance(told, list) and name in told]
    learning = {name for name, some in zip(gradients.names, gradients.stat("amax").T, strict=True) if (some > 0).any()}
    stale = [name for name in weights.names if name.startswith(FOREIGN) and name not in learning]
    if not still or not stale:
        return None
    proof = Evidence(
        L_(
            "of the optimizer, not of the model, never a gradient; of the model, a gradient, of no optimizer, "
            "unchanged"
        ),
        {"stale": len(stale), "left_out": len(still), "of": len(weights.names), "step": whole(row, "step")},
        Sentence(
            "{stale_count} of {name_count} parameters of the optimizer are not the model's and never had a "
            "gradient, while {still_count} parameters of the model ({still}) get gradients, are in no optimizer and "
            "are in step {step} as they were in the step seen before.",
            stale_count=len(stale), name_count=len(weights.names), still_count=len(still),
            still=", ".join(still[:5]), step=whole(row, "step"),
        ),
    )  # fmt: skip
    module = still[0].rpartition(".")[0]
    return Finding(
        "parameters-left-out", "warning",
        Sentence(
            "The optimizer was made before a part of the model was replaced: {still_count} parameters are never "
            "trained",
            still_count=len(still),
        ),
        int(m.steps[0]), int(m.steps[-1]), (proof,),
        L_(
            "Make the optimizer after the last change of the model, such as a new head, or give it the new "
            "parameters (optimizer.add_param_group)."
        ), 0.9, "torch.optim documentation", module, tuple(still[:20]),
        blame=IN_ANY_FORMAT,
    )  # fmt: skip


def _hidden_parameters(m: Measurements) -> Finding | None:
    """Parameters that the model computes with and does not hold, so that `model.parameters()` leaves them out."""
    row = next(iter(m.fact_rows("hidden_parameters")), None)
    if not m.own_loop or not m.n or row is None:
        return None
    count, elements, trained = (whole(row, name) for name in ("parameters", "elements", "trained"))
    share = elements / max(elements + trained, 1)
    where = next(iter(texts(row, "modules")), "") or L_("The model")
    proof = Evidence(
        L_(
            "used in the forward pass, with a gradient, of no optimizer, not of the model, unchanged between two "
            "steps"
        ),
        {"parameters": count, "elements": elements, "share": share},
        Sentence(
            "{where} computes with {count} parameters ({share} of all elements that could learn) that the model "
            "does not hold; they get gradients and are in step {step} as they were in the step seen before.",
            where=where, count=count, share=percent(share), step=whole(row, "step"),
        ),
    )  # fmt: skip
    return Finding(
        "parameters-left-out",
        "warning" if share > _MOST_LEFT else "info",
        Sentence("{count} parameters of layers that the model does not hold are never trained", count=count),
        int(m.steps[0]),
        int(m.steps[-1]),
        (proof,),
        L_(
            "Keep layers in nn.ModuleList or nn.ModuleDict (parameters in nn.ParameterList), not in a list, a dict "
            "or a closure, and make the optimizer afterwards; or set requires_grad_(False) where they are meant to "
            "stay."
        ),
        0.85,
        "torch.nn.ModuleList documentation",
        "" if where == "The model" else where,
        certainty="estimate",
        blame=IN_ANY_FORMAT,
    )


def frozen_average(m: Measurements) -> Answer:
    """A moving average of the weights in 16 bits that does not move: (1 - decay) (w - average) is below half an ulp."""
    table = m.table("ema")
    if table is None or len(table.steps) < 2:
        return None
    low = [place for place, result in enumerate(table.formats) if result in DIGITS]
    if not low:
        return RuledOut(
            "frozen-average",
            Sentence(
                "because the {name_count} averages of weights are in FP32",
                name_count=len(table.names),
            ),
        )  # fmt: skip
    learning = table.steps <= learning_ends(m)  # later the average is where the weights are
    changed = middle(table.stat("changed")[learning if learning.any() else slice(None)][:, low], 0)
    typical = median(changed)
    if not typical < _SLOW:
        return RuledOut(
            "frozen-average",
            Sentence(
                "because a step changes {typical} of the averages of the weights",
                typical=percent(typical),
            ),
        )  # fmt: skip
    if not _moves(table, low):
        return RuledOut(
            "frozen-average",
            Sentence(
                "because the {low_count} copies of weights in 16 bits never change at all, as a model kept for "
                "reference",
                low_count=len(low),
            ),
        )  # fmt: skip
    if typical < _UNSEEN and (_replaced(table, low) or _keeps_up(m, table, low)):
        return RuledOut("frozen-average", L_("because the copies are replaced as a whole now and then"))
    names = tuple(table.names[place] for place in low)
    proof = Evidence(
        L_("share of elements of the average that a step changes < 0.5 (an error below 0.1)"),
        {"changed": typical, "tensors": len(low)},
        Sentence(
            "A step changes {typical} of the averages, which are stored in {format}.",
            typical=percent(typical),
            format=table.formats[low[0]].upper(),
        ),
        Sentence("share of {name} that a step changes", name=names[0]),
        thinned(table.steps, table.stat("changed")[:, low[0]]),
    )  # fmt: skip
    return [
        Finding(
            "frozen-average", "error" if typical < _FROZEN else "warning",
            Sentence(
                "{typical} of the moving average of the weights stays where it is",
                typical=percent(1 - typical),
            ), int(table.steps[0]),
            int(table.steps[-1]), (proof,), L_("Keep the average in FP32."), 0.9, "diffae issue 16", "", names[:20],
            blame=TOO_FEW_DIGITS,
        )
    ]  # fmt: skip


def _moves(table: RecordedRows, places: list[int]) -> bool:
    """Whether the copies have changed at all: a model that is kept for reference does not."""
    changed = np.nan_to_num(table.stat("changed")[:, places])
    sums = table.stats[:, places][:, :, [TENSOR_STATS.index(name) for name in ("mean", "l2")]]
    return bool((changed > 0).any() or (np.ptp(sums, 0) > 0).any())


def _replaced(table: RecordedRows, places: list[int]) -> bool:
    """Whether a recorded step changed more than half of all elements of the copies."""
    changed, count = np.nan_to_num(table.stat("changed")[:, places]), np.nan_to_num(table.stat("count")[:, places])
    return bool(((changed * count).sum(1) > 0.5 * count.sum(1)).any())


def _keeps_up(m: Measurements, table: RecordedRows, places: list[int]) -> bool:
    """Whether the copies have come at least 0.3 of the way of the weights, by the L2 norm of all: some are replaced as
    a whole in steps that are not recorded."""
    weights = m.table("weight")
    own = np.sqrt(np.nansum(table.stat("l2")[:, places] ** 2, 1))
    if weights is None or not own[0] > 0 or not weights.total_l2[0] > 0:
        return False
    way = abs(float(weights.total_l2[-1] / weights.total_l2[0]) - 1)
    return bool(abs(float(own[-1] / own[0]) - 1) > 0.3 * way > 0)


def poisoned_buffers(m: Measurements) -> Answer:
    """Running statistics that are not finite although the weights are: an evaluation will not be finite."""
    table = m.table("buffer")
    if table is None:
        return None
    bad = table.bad[-1] & _running(m, table)
    if not bad.any():
        return RuledOut(
            "poisoned-buffers",
            Sentence(
                "because the {name_count} buffers are finite at step {steps}",
                name_count=len(table.names),
                steps=table.steps[-1],
            ),
        )
    if m.n and not m.finite_loss[-1]:
        return None  # a consequence
    names = tuple(name for name, is_bad in zip(table.names, bad.tolist(), strict=True) if is_bad)
    row = int(np.flatnonzero(table.bad[:, bad].any(1))[0])
    step = int(table.steps[row])
    before = m.steps[(m.skipped | ~m.finite_loss) & (m.steps <= step)]
    proof = Evidence(
        L_("buffers not finite, loss finite"), {"step": step, "buffers": len(names), "of": len(table.names)},
        Sentence(
            "{bad} of {all} buffers hold NaN or Inf from step {step} on ({first}), the loss is finite; step {before} "
            "was skipped or not finite.",
            bad=len(names), all=len(table.names), step=step, first=names[0], before=before[-1],
        )
        if len(before) else Sentence(
            "{bad} of {all} buffers hold NaN or Inf from step {step} on ({first}), the loss is finite.",
            bad=len(names), all=len(table.names), step=step, first=names[0],
        ),
    )  # fmt: skip
    own = np.flatnonzero(bad)
    overflown = all(table.formats[place] == "fp16" and table.infinite[-1, place] for place in own.tolist())
    if overflown and not len(before):
        return [_overflown(names, step, int(table.steps[-1]), proof)]
    return [
        Finding(
            "poisoned-buffers", "error", L_("Running statistics are not finite: every evaluation will be NaN"), step,
            int(table.steps[-1]), (proof,),
            L_("Restore the buffers after a skipped step, or leave it out of the statistics."),
            0.95, "pytorch issues 96798 and 115500", names[0].rpartition(".")[0], names[:20],
             blame=UNDECIDED,
        )
    ]  # fmt: skip


def _overflown(names: tuple[str, ...], step: int, last: int, proof: Evidence) -> Finding:
    """Statistics in FP16 that hold Inf after steps that were all finite: their sum is beyond 65504."""
    return Finding(
        "poisoned-buffers", "error", Sentence(
            "Running statistics overflow FP16: {name} is Inf from step {step} on",
            name=names[0], step=step,
        ),
        step, last, (proof,),
        L_(
            "Keep these buffers in FP32: a sum of values or of squares goes beyond 65504, where FP16 ends. A mean "
            "in place of the sum stays smaller."
        ),
        0.9, "pytorch issues 96798 and 115500", names[0].rpartition(".")[0], names[:20], certainty="estimate",
        blame=BEYOND_RANGE,
    )  # fmt: skip


def _running(m: Measurements, table: RecordedRows) -> NDArray[np.bool_]:
    """Buffers that are statistics: of a norm, called running, or finite at first. A mask may hold -Inf for ever."""
    types = [m.model.module_types.get(name.rpartition(".")[0], "").lower() for name in table.names]
    named = ["norm" in kind or "running" in name for name, kind in zip(table.names, types, strict=True)]
    return np.array(named) | (~table.bad & table.recorded).any(0)


def unused_scaler(m: Measurements) -> Answer:
    """A loss scaler that no loss was ever multiplied by."""
    scaler = m.fact("scaler")
    if not scaler.get("enabled"):
        return None
    if scaler.get("used") is not False:
        return RuledOut("unused-scaler", L_("because the loss was multiplied by the scale of the scaler"))
    if has_another_scaler(m):
        return [_another_scaler(m)]
    grave = narrow_range(m)
    proof = Evidence(
        L_("scaler.enabled and scaler.used = False"), {"enabled": "true", "used": "false"},
        L_(
            "The recorder was given an enabled scaler, and no loss was multiplied by its scale in the first step."
        ),
    )  # fmt: skip
    return [
        Finding(
            "unused-scaler",
            "warning" if grave else "info",
            L_("The loss scaler is made and not used"),
            int(m.steps[0]),
            int(m.steps[-1]),
            (proof,),
            L_(
                "Use scaler.scale(loss).backward(), scaler.step(optimizer) and scaler.update(); or leave it out for "
                "BF16."
            ),
            0.95,
            "torch.amp documentation",
            blame=IN_ANY_FORMAT,
        )
    ]


def _another_scaler(m: Measurements) -> Finding:
    lost, searches = float(m.skipped.mean()), _searches(m)
    title = L_("The loop scales by another scaler than the recorder was given")
    if searches >= _FEWEST_SEARCHES:
        title = Sentence(
            "The loop seems to make its loss scaler anew: {searches} times it skips steps until the scale is low",
            searches=searches,
        )  # fmt: skip
    proof = Evidence(
        L_("scaler.used = False, and gradients are unscaled in the first step"), {"used": "false", "skipped": lost},
        Sentence(
            "A scaler unscaled gradients in the first step, and it was not the one that the recorder was given; "
            "{lost} of the steps were skipped.",
            lost=percent(lost),
        ), "skipped", m.series_of(m.skipped.astype(float)),
    )  # fmt: skip
    return Finding(
        "unused-scaler",
        "warning" if lost > _LOST else "info",
        title,
        int(m.steps[0]),
        int(m.steps[-1]),
        (proof,),
        L_(
            "Make one scaler before the loop and give it to the recorder: one that is made in each epoch looks for "
            "its scale again each time."
        ),
        0.9,
        "torch.amp documentation",
        certainty="estimate",
        blame=IN_ANY_FORMAT,
    )


def _searches(m: Measurements) -> int:
    """How often two or more steps in a row were skipped, as a new scaler does that begins at a scale too high."""
    begins = m.skipped & ~np.concatenate(([False], m.skipped[:-1]))
    return int((begins[:-1] & m.skipped[1:]).sum())


RULES = (
    Rule("parameters-left-out", "D", L_("Does an optimizer update every parameter that learns?"), parameters_left_out),
    Rule("frozen-average", "B", L_("Does the average of the weights move?"), frozen_average),
    Rule("poisoned-buffers", "D", L_("Are running statistics finite?"), poisoned_buffers),
    Rule("unused-scaler", "D", L_("Is the loss scaler used?"), unused_scaler),
)
