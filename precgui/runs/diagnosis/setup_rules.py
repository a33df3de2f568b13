"""Group C: how model and optimizer are set up: initial weights, the axis of an attention, betas, the direction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from precgui.runs.diagnosis.analysis import median, recorded_optimizers
from precgui.runs.diagnosis.blame import blame_of_symptom
from precgui.runs.diagnosis.findings import IN_ANY_FORMAT, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, text, whole
from precgui.sentences import L_, Sentence, filled

_SLOW = 0.98  # beta of a first moment that remembers 50 steps
_ALIKE = 1e-3  # relative deviation of a loss from the negative one
_RISE = 1.2  # of the loss, end over begin
LARGE_GAIN = 3.0  # times 1 / sqrt(inputs), the rms of weights that keep the size of their inputs
_FAR_ABOVE, _STILL_ABOVE = 10.0, 0.9  # of the loss of the best constant: before any update, and at the end
_SAME_UNIT = 0.02  # relative deviation of the factor between a recorded loss and the one that was seen
_SEQUENCE = "sequence-axis"
_CONVOLUTION = "torch.nn.modules.conv."


def softmax_over_wrong_axis(m: Measurements) -> Answer:
    """Attention whose weights are normalised over another axis than the one that is summed over."""
    rows = m.fact_rows("softmax_axes")
    if not m.own_loop:
        return None
    if not rows:
        return RuledOut("softmax-over-wrong-axis", L_("because no attention was seen whose weights do not add up to 1"))
    first = rows[0]
    step, module = whole(first, "step"), str(first.get("module") or "")
    least, largest = number(first, "least"), number(first, "largest")
    proof = Evidence(
        L_("the softmax is over one axis of the scores, the product that it weighs sums over another one"),
        {"least": least, "largest": largest, "modules": len(rows)},
        Sentence(
            "In step {step} the weights that one result adds up with sum to between {least:.3g} and {largest:.3g}: the "
            "softmax was over the {normalised} queries, not over the {summed} keys.",
            step=step, least=least, largest=largest, normalised=whole(first, "normalised"),
            summed=whole(first, "summed"),
        ),
    )  # fmt: skip
    return [
        Finding(
            "softmax-over-wrong-axis", "warning",
            L_("The softmax of an attention is over the wrong axis: its weights do not add up to 1"),
            step, int(m.steps[-1]), (proof,),
            L_("Take the softmax over the axis of the keys, the last one of scores [..., queries, keys]: dim=-1."),
            0.9, "docs/diagnosis.md", module, certainty="exact", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def mixed_axes(m: Measurements) -> Answer:
    """A view where axes should have changed places: numbers of several positions stand for the features of one."""
    rows = m.fact_rows("mixed_axes")
    if not m.own_loop:
        return None
    known = [each for each in rows if text(each, "kind") in _MIXED]
    if not known:
        ruled_out = RuledOut("mixed-axes", L_("because no view was seen to mix positions with features"))
        return ruled_out if m.fact("census") else None
    first = known[0]
    title, seen, fix = _MIXED[text(first, "kind")]
    step, module, size = whole(first, "step"), str(first.get("module") or ""), whole(first, "size")
    proof = Evidence(
        L_("a view splits an axis of positions, and joins a part of it with an axis of features"),
        {"size": size, "places": len(known)},
        filled(seen, step=step, size=size, shape=str(_sizes(first))),
    )  # fmt: skip
    return [
        Finding(
            "mixed-axes", "warning", title, step, int(m.steps[-1]), (proof,), fix, 0.9,
            "Informer2020 issue 59; torch documentation of Tensor.view", module, certainty="exact", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _sizes(row: Mapping[str, Any]) -> list[int]:
    given = row.get("shape")
    return [each for each in given if isinstance(each, int)] if isinstance(given, list) else []


def sequence_axis(m: Measurements) -> Answer:
    """A recurrent layer or an attention that takes the samples of a batch for the steps of one sequence."""
    rows = [row for row in m.fact_rows("sequence_axes") if whole(row, "rows") > 1]
    if not m.own_loop:
        return None
    if not rows:
        ruled_out = RuledOut(_SEQUENCE, L_("because no module was seen to run along the samples of a batch"))
        return ruled_out if m.fact("census") else None
    row = next((each for each in rows if text(each, "use") == "place"), rows[0])
    is_place, step, module = text(row, "use") == "place", whole(row, "step"), text(row, "module")
    axis = 0 if row.get("batch_first") is True else 1
    sizes = _sizes(row)
    sequences = sizes[axis] if len(sizes) > axis else 0
    values = {"step": step, "kind": text(row, "kind"), "shape": str(sizes), "axis": axis, "rows": whole(row, "rows"),
              "sequences": sequences, "place": whole(row, "place")}  # fmt: skip
    seen = (
        Sentence(
            "In step {step} the result of {kind} had the shape {shape}, its batch being axis {axis}. Of these "
            "{sequences} sequences only number {place} was used, and each of the {rows} steps of it had a target of "
            "its own: the module went from one target to the next.",
            **values,
        )
        if is_place
        else Sentence(
            "In step {step} the result of {kind} had the shape {shape}, its batch being axis {axis}. The mean over "
            "these {sequences} sequences was used, and each of the {rows} steps that were left had a target of its "
            "own.",
            **values,
        )
    )
    proof = Evidence(
        L_("axes that a module runs along, and that it has as its batch; the one that is reduced, and that of targets"),
        {"sequences": sequences, "rows": whole(row, "rows"), "axis": axis}, seen,
    )  # fmt: skip
    title = (
        Sentence("{kind} runs along the samples of the batch, not along the steps of a sequence", kind=values["kind"])
        if is_place
        else Sentence("{kind} may run along the samples of the batch, not along steps", kind=values["kind"])
    )
    fix = (
        L_(
            "Set batch_first=True for inputs [batch, steps, features], or exchange both axes before the module: the "
            "last step is out[:, -1] with batch_first=True, and out[-1] without."
        )
        if is_place
        else L_(
            "Set batch_first=True for inputs [batch, steps, features]. Where the targets belong to the steps, and a "
            "mean over several sequences is meant, this is right."
        )
    )  # fmt: skip
    return [
        Finding(
            _SEQUENCE, "warning" if is_place else "info", title, step, int(m.steps[-1]), (proof,), fix,
            0.85 if is_place else 0.4, "torch.nn.LSTM and torch.nn.MultiheadAttention documentation, batch_first",
            module, certainty="estimate", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


# By what got the mixed axis: title, what was seen, and the cure.
_MIXED = {
    "heads": (
        L_("A view mixes the positions of an attention with its features: axes must change places instead"),
        L_("In step {step} each of the {size} queries of a head held a part of the features of a position of {shape}, "
           "and a head had only a part of the positions."),
        L_("Make heads with x.view(batch, length, heads, -1).transpose(1, 2): view alone cuts memory in its order, and "
           "does not exchange heads and positions. Put them together with transpose(1, 2).reshape(batch, length, -1)."),
    ),
    "merged": (
        L_("Heads of an attention are put together by a view: numbers of several positions become features of one"),
        L_("In step {step} the {size} features that a layer got were those of one head of {shape} at several "
           "positions, not those of all heads at one."),
        L_("Exchange heads and positions before: out.transpose(1, 2).reshape(batch, length, -1)."),
    ),
    "features": (
        L_("A view takes neighbouring pixels of one channel for the channels of one pixel"),
        L_("In step {step} the {size} features that a layer got were pixels of one channel of {shape}, not all "
           "channels of one pixel."),
        L_(
            "Use x.flatten(2).transpose(1, 2), or permute(0, 2, 3, 1), before the layer: view alone does not move axes."
        ),
    ),
    "channels": (
        L_("A view takes numbers of several positions for the channels of one"),
        L_("In step {step} the {size} channels that a convolution got at a position came from several positions of "
           "{shape}."),
        L_("Use x.transpose(1, 2) before a convolution over positions: view alone does not move axes."),
    ),
    "classes": (
        L_("A view mixes the scores of several positions: the classes of a cross entropy are not those of one"),
        L_("In step {step} the {size} scores of a row of a cross entropy came from several positions of {shape}."),
        L_(
            "Move the classes with scores.transpose(1, 2) (permute for images), or flatten positions and targets: "
            "cross_entropy(scores.flatten(0, 1), targets.flatten())."
        ),
    ),
}  # fmt: skip


def betas_swapped(m: Measurements) -> Answer:
    """Adam with a first moment that remembers longer than the second one."""
    if not m.own_loop:
        return None
    known = [each for each in recorded_optimizers(m) if _betas(each) is not None]
    if not known:
        return None
    wrong = next((pair for each in known if (pair := _betas(each)) and pair[0] > pair[1] and pair[0] >= _SLOW), None)
    if wrong is None:
        return RuledOut("betas-swapped", L_("because no first moment remembers longer than the second one"))
    proof = Evidence(
        "beta1 > beta2, beta1 >= 0.98", {"beta1": wrong[0], "beta2": wrong[1]},
        Sentence(
            "The optimizer has betas of {first:g} and {second:g}: a step follows the gradients of the last {long:.0f} "
            "steps, divided by the size of the last {short:.0f}.",
            first=wrong[0], second=wrong[1], long=1 / max(1 - wrong[0], 1e-9), short=1 / max(1 - wrong[1], 1e-9),
        ),
    )  # fmt: skip
    return [
        Finding(
            "betas-swapped", "warning",
            Sentence("The betas of the optimizer are swapped: {first:g}, {second:g}", first=wrong[0], second=wrong[1]),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            Sentence("Swap them: betas=({second:g}, {first:g}).", first=wrong[0], second=wrong[1]),
            0.9, "Kingma and Ba 2015", certainty="exact", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _betas(optimizer: Mapping[str, Any]) -> tuple[float, float] | None:
    betas = optimizer.get("betas")
    if not isinstance(betas, list) or len(betas) != 2 or not all(isinstance(each, int | float) for each in betas):
        return None
    return float(betas[0]), float(betas[1])


@np.errstate(all="ignore")
def loss_climbed(m: Measurements) -> Answer:
    """A loss of fixed targets that rises since the backward pass begins with its negative, or the optimizer climbs."""
    optimizers = recorded_optimizers(m)
    losses = [row for row in m.fact_rows("constant_answers") if number(row, "loss") > 0]
    known = m.at_loss(np.array([whole(row, "step") for row in losses], np.int64))
    if not m.own_loop or len(optimizers) != 1 or m.n < 5 or not (known > 0).all() or not losses:
        return None
    finite = m.loss[m.finite_loss]
    rises = len(finite) > 4 and float(np.median(finite[-3:])) > _RISE * float(np.median(finite[:3])) > 0
    turned = [row for row in m.fact_rows("exact_steps") if _is_negative(m, row)]
    climbs = optimizers[0].get("maximize") is True
    if not rises or not (climbs or len(turned) > 1):
        return RuledOut("loss-climbed", L_("because the steps go down the loss that is recorded, or it falls"))
    text = (
        L_("The optimizer has maximize=True.") if climbs
        else Sentence("In step {step} the backward pass began with {root:.4g}, the loss was {loss:.4g}.",
                      step=whole(turned[0], "step"), root=number(turned[0], "loss"),
                      loss=float(m.at_loss(np.array([whole(turned[0], "step")], np.int64))[0]))
    )  # fmt: skip
    proof = Evidence(
        L_("the sign of what the steps go down, beside a loss that rises"),
        {"loss_first": float(np.median(finite[:3])), "loss_last": float(np.median(finite[-3:]))}, text,
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "loss-climbed", "error", L_("The steps go up the loss: its sign is turned"), int(m.steps[0]),
            int(m.steps[-1]), (proof,),
            L_("Call backward() of the loss itself, and leave maximize at False."), 0.95, "docs/diagnosis.md",
            certainty="exact", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _is_negative(m: Measurements, row: Mapping[str, Any]) -> bool:
    """Whether the backward pass of a step began with the negative of the loss that is recorded, scaled."""
    step, root = whole(row, "step"), number(row, "loss")
    scaled = float(m.at_loss(np.array([step], np.int64))[0]) * m.scale_at.get(step, 1.0)
    return root < 0 and abs(root + scaled) <= _ALIKE * abs(scaled)


@np.errstate(all="ignore")
def initial_gains(m: Measurements) -> dict[str, float]:
    """Of the matrices of layers before the first step: rms(weights) sqrt(inputs), which is 1 where sizes are kept."""
    table, gains = m.table("weight"), {}
    if table is None or not len(table.steps) or table.steps[0] > 0:
        return {}
    for name, rms in zip(table.names, table.stat("rms")[0].tolist(), strict=True):
        known, kind = m.model.by_name.get(name), m.model.module_types.get(name.rpartition(".")[0], "")
        if known is not None and len(known.shape) >= 2 and kind.startswith(("torch.nn.modules.linear.", _CONVOLUTION)):
            gains[name] = rms * math.sqrt(math.prod(known.shape[1:]))
    return gains


def large_gains(gains: Mapping[str, float]) -> list[str]:
    """Those that are far too large, the largest first; [] where these are not half of all, and two at least."""
    wide = sorted((name for name in gains if gains[name] > LARGE_GAIN), key=lambda name: -gains[name])
    return wide if len(wide) >= 2 and 2 * len(wide) >= len(gains) else []


@np.errstate(all="ignore")
def large_initial_weights(m: Measurements) -> Answer:
    """Weights that began so large that the first loss was far above that of a constant, and that stays so."""
    every, gains = m.fact_rows("constant_answers"), initial_gains(m)
    rows = [row for row in every if number(row, "constant") > 0 and number(row, "loss") > 0]
    moves = any(row.get("void") and number(row, "constant") > 0 for row in every)
    if not m.own_loop or m.n < 2 or not rows or moves or not gains or not m.finite_loss[0]:
        return None
    recorded = m.at_loss(np.array([whole(row, "step") for row in rows], np.int64))
    factors = recorded / np.array([number(row, "loss") for row in rows])
    unit = median(factors[np.isfinite(factors)])
    constant = unit * float(np.mean([number(row, "constant") for row in rows]))
    if not unit > 0 or not (np.abs(factors[np.isfinite(factors)] / unit - 1) < _SAME_UNIT).all():
        return None
    wide, first, late = large_gains(gains), float(m.loss[0]), float(m.loss[-max(m.n // 4, 1) :].mean())
    stays = not late < _STILL_ABOVE * constant  # NaN, too
    if not wide or not first > _FAR_ABOVE * constant or not stays:
        return RuledOut(
            "large-initial-weights",
            Sentence(
                "because the first loss was {first:.3g}, where the best constant answer has {constant:.3g}, or "
                "weights of layers began at {most:.3g} / sqrt(inputs) at most, or it ended below",
                first=first, constant=constant, most=max(gains.values()),
            ),
        )  # fmt: skip
    gain = gains[wide[0]]
    proof = Evidence(
        L_("rms(weights) sqrt(inputs) > 3 before the first step, in half of the layers, and a first loss > 10 times "
           "that of the best constant answer, which the end does not reach, either"),
        {"gain": gain, "layers": len(wide), "loss_first": first, "loss_last": late, "constant": constant},
        Sentence(
            "Before the first step the weights of {count} of {all} layers had a root mean square of more than "
            "{least:g} / sqrt(inputs) ({name}: {gain:.3g}; 1 keeps the size of its inputs). The first loss, before any "
            "update, was {first:.4g}; the same answer to all inputs has {constant:.4g}.",
            count=len(wide), all=len(gains), least=LARGE_GAIN, name=wide[0], gain=gain, first=first, constant=constant,
        ),
        "loss", m.series_of(m.loss, m.finite_loss),
    )  # fmt: skip
    return [
        Finding(
            "large-initial-weights", "error" if not np.isfinite(late) else "warning",
            Sentence(
                "The weights began too large: the first loss is {times:.2g} times that of a constant answer",
                times=first / constant,
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_(
                "Initialise these layers with smaller weights: a standard deviation of sqrt(2 / inputs) before a ReLU "
                "(He), of 1 / sqrt(inputs) else, as torch's own initialisation is; or put norms behind them."
            ),
            0.85, "He et al. 2015", wide[0].rpartition(".")[0], tuple(wide[:20]), certainty="estimate",
            blame=blame_of_symptom(m),
        )
    ]  # fmt: skip


RULES = (
    Rule("large-initial-weights", "C", L_("Do the weights begin at a size that suits?"), large_initial_weights),
    Rule("softmax-over-wrong-axis", "C", L_("Do the weights of an attention add up to 1?"), softmax_over_wrong_axis),
    Rule(_SEQUENCE, "C", L_("Do recurrent layers and attentions run along their sequences?"), sequence_axis),
    Rule("mixed-axes", "C", L_("Do views leave positions and features apart?"), mixed_axes),
    Rule("betas-swapped", "C", L_("Does the second moment remember longer than the first?"), betas_swapped),
    Rule("loss-climbed", "C", L_("Do the steps go down the loss?"), loss_climbed),
)
