"""Group C: trainings that learn little though nothing is lost: batch norm over few values, decay, saturated units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.runs.diagnosis import origin
from precgui.runs.diagnosis.analysis import growth, median, percent, recorded_optimizers
from precgui.runs.diagnosis.blame import blame_of_symptom
from precgui.runs.diagnosis.chance_rules import LITTLE, chance_of, chance_proof, flat_at_chance
from precgui.runs.diagnosis.findings import IN_ANY_FORMAT, Blame, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements, RecordedRows
from precgui.runs.diagnosis.nan_aware import least, middle, nonzero
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.diagnosis.setup_rules import LARGE_GAIN, initial_gains, large_gains
from precgui.runs.recorded_facts import number, text, whole
from precgui.sentences import L_, Sentence

_FEW_VALUES = 16.0  # in each mean of a batch norm: its error is then a quarter of a standard deviation
_FEWEST_VALUES = 3.0  # two values become 1 and -1, whatever they are
_FEW_SAMPLES = 4.0  # of a batch; the values of one sample are alike
_LEARNT = 0.8  # of the first loss is gone
_GAP = 1.5  # times the training loss
_SHRUNK = 0.3  # of the norm that the weights began with
_NEARLY_HALF, _TIMES = 0.6, 3.0  # of that norm, where a decay inside Adam is so many times the gradient
_DIVIDING = {"Adam", "Adamax", "NAdam", "RAdam", "RMSprop"}  # by the size of gradients, the decay among them
_PULLED, _SETTLED = 0.1, 100  # of that norm; steps after which a loss is compared with that of a constant
_CONSTANT = 0.97  # of the loss of the best constant
_PULL_ALIKE, _PULL_SHARE, _FEWEST_PULLED = 0.15, 0.8, 4  # deviation of |g| / |w|; of the elements; parameters
_SATURATED = 0.97  # rms of outputs that end at 1
_LITTLE_LEARNT = 0.5  # of the loss of the best constant is left
_SEEN_UNSHIFTED, _REPEATED = 2, 0.1  # steps with targets that are the inputs; of the first loss is left
_PEEKED, _COUPLED = 0.25, 0.1  # of the loss without the next token; of what the token is worth, in other sequences
_FLAT = 0.6  # share of the results of a function, in a model that is no better than a constant


def batch_norm_gap(m: Measurements) -> Answer:
    """Batch norm over two or three values, which keeps little but their signs, or over few with a validation loss above
    that of the training from the beginning."""
    few, result = _values_of_batch_norm(m), growth(m, m.n)
    if few is None or result is None or m.n < 20 or (m.loss[m.finite_loss] <= 0).any():
        return None
    module, count = few
    samples = _samples_of_a_pass(m)
    if count > _FEW_VALUES and not 0 < samples <= _FEW_SAMPLES:  # 0: the loop did not say
        return RuledOut(
            "batch-norm-gap",
            Sentence(
                "because each mean of {module} is taken over {count:.0f} values",
                module=module,
                count=count,
            ),
        )  # fmt: skip
    ratio = _gap(m)
    lowest = float(np.min(ratio)) if len(ratio) > 1 else float("nan")
    fall = 1 - result.last_loss / result.first_loss
    if not (lowest > _GAP or (count <= _FEWEST_VALUES and fall < _LEARNT)):
        return RuledOut(
            "batch-norm-gap",
            Sentence(
                "because the validation loss is {lowest:.2g} times that of the training in one of {ratio_count} "
                "evaluations",
                lowest=lowest, ratio_count=len(ratio),
            )
            if len(ratio) > 1 else Sentence("because the loss falls by {fall}", fall=percent(fall)),
        )  # fmt: skip
    gap = (
        Sentence(
            "the validation loss, with running statistics, is at least {lowest:.2g} times that of the training in "
            "each of {ratio_count} evaluations.",
            lowest=lowest, ratio_count=len(ratio),
        ) if lowest > _GAP else Sentence(
            "the loss falls by {fall} only.",
            fall=percent(max(fall, 0)),
        )
    )  # fmt: skip
    blame = blame_of_symptom(m)
    if count <= _FEWEST_VALUES:
        blame = Blame(False, L_("so few values are normalised to nearly the same numbers in any format"))
    proof = Evidence(
        L_(
            "values in a mean <= 16, or samples <= 4, and val_loss > 1.5 x train_loss in every evaluation; or "
            "values <= 3"
        ),
        {"values": count, "least_ratio": lowest, "fall": fall},
        Sentence("{module} takes each mean over {count:.0f} values; {gap}", module=module, count=count, gap=gap),
        "loss", m.series_of(m.loss, m.finite_loss),
    )  # fmt: skip
    return [
        Finding(
            "batch-norm-gap", "warning", Sentence(
                "Batch norm over {count:.0f} values trains another model than is evaluated",
                count=count,
            ),
            int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_("Use a larger batch, or GroupNorm or LayerNorm, which do not depend on the batch."), 0.75,
            "Wu and He 2018, Group Normalization", module, (module,), certainty="estimate", blame=blame,
        )
    ]  # fmt: skip


def _samples_of_a_pass(m: Measurements) -> float:
    """The median number of samples of a forward pass; 0 where the loop told none. precgui's own loop counts no passes
    of a step, but has as many as its config says."""
    passes = median(m.backward_passes) if m.own_loop else float(m.config.train.accumulation)
    return median(m.run.series("samples")[1]) / (passes if passes >= 1 else 1.0)


def _gap(m: Measurements) -> NDArray[np.float64]:
    """The validation loss over the median training loss before it, of each evaluation after the first tenth."""
    steps, values = m.run.series("val_loss")
    chosen = (steps > m.n // 10) & np.isfinite(values)
    before = [m.loss[max(step - max(m.n // 10, 5), 0) : step] for step in steps[chosen].astype(int)]
    training = nonzero(np.array([median(each) for each in before]))
    ratio: NDArray[np.float64] = values[chosen] / training
    return ratio[np.isfinite(ratio)]


def _values_of_batch_norm(m: Measurements) -> tuple[str, float] | None:
    """The batch norm with the fewest values in each of its means, and how many; None without one."""
    table, fewest = m.table("activation"), None
    for place, name in enumerate(table.names if table is not None else ()):
        weight = m.model.by_name.get(f"{name}.weight")
        if table is None or weight is None or ".batchnorm." not in m.model.module_types.get(name, ""):
            continue
        count = median(table.stat("count")[:, place]) / max(math.prod(weight.shape), 1)
        if np.isfinite(count) and (fewest is None or count < fewest[1]):
            fewest = name, float(count)
    return fewest


def _decays(optimizers: Sequence[Mapping[str, Any]]) -> list[float]:
    """The weight decay of each optimizer, or of each of its groups where they differ."""
    groups = [each["groups"].values() for each in optimizers if isinstance(each.get("groups"), Mapping)]
    settings = [*optimizers, *(group for of_one in groups for group in of_one if isinstance(group, Mapping))]
    return [number(each, "weight_decay") for each in settings if isinstance(each.get("weight_decay"), int | float)]


def weights_shrink(m: Measurements) -> Answer:
    """Weights that a decay drives to zero, in a training whose loss hardly falls."""
    table, result = m.table("weight"), growth(m, m.n) if m.n >= 20 and m.finite_loss.all() else None
    if table is None or len(table.steps) < 2 or result is None or not table.total_l2[0] > 0 or table.bad.any():
        return None
    optimizers = recorded_optimizers(m)
    decays = _decays(optimizers)
    shrinkage = max(decays, default=math.inf) * float(np.nansum(m.lr))  # the exponent of what a decay leaves
    kept = float(table.total_l2[-1] / table.total_l2[0])
    fall = 1 - result.last_loss / result.first_loss if result.first_loss > 0 else 1.0
    if kept < _PULLED and (found := _pulled_to_zero(m, kept)) is not None:
        return [found]
    first, last = float(table.total_l2[0]), float(table.total_l2[-1])
    leads = _decay_leads(optimizers, first, result.first_norm)
    stays = _decay_leads(optimizers, first, _TIMES * result.first_norm) and _decay_leads(
        optimizers, last, _TIMES * result.last_norm
    )
    if not kept < (_NEARLY_HALF if stays else _SHRUNK) or fall > 0.3 or not (shrinkage > 0.5 or leads):
        return RuledOut(
            "weights-shrink",
            Sentence(
                "because the weights end at {kept:.2g} times their first norm, the loss at {fall:.2g} times its first",
                kept=kept,
                fall=1 - fall,
            ),
        )
    decay, rate = max(decays, default=float("nan")), median(m.lr)
    blame = Blame(False, L_("decay and rate alone make the weights so small")) if decays else blame_of_symptom(m)
    known = Sentence("; the decay is {decay:g}, the rate {rate:.3g}", decay=decay, rate=rate) if decays else ""
    proof = Evidence(
        L_(
            "|weights| < 0.3 of the first, decay x sum of the rates > 0.5 (of Adam and its like: decay x |weights| > "
            "|gradient| at first; where it is three times that, at first and at last: |weights| < 0.6), and the loss "
            "falls by < 30 %"
        ),
        {"kept": kept, "fall": fall, "decay": decay, "lr": rate},
        Sentence(
            "The norm of the weights falls to {kept} of its first value, the loss by {fall}{known}.",
            kept=percent(kept), fall=percent(max(fall, 0)), known=known,
        ),
        L_("norm of the weights"), m.points_of(table.steps, table.total_l2),
    )  # fmt: skip
    return [
        Finding(
            "weights-shrink", "error" if kept < _SHRUNK / 3 else "warning",
            L_("The weights shrink away: the weight decay is too strong"), int(m.steps[0]), int(m.steps[-1]), (proof,),
            L_("Lower the weight decay to 0.01 or less (in SGD, 1e-4)."), 0.8, "docs/diagnosis.md",
            config_change={"optimizer.weight_decay": 1e-4}, certainty="estimate", blame=blame,
        )
    ]  # fmt: skip


def _decay_leads(optimizers: Sequence[Mapping[str, Any]], weights: float, gradient: float) -> bool:
    """Whether a decay that an optimizer adds to the gradients before it divides by their size is larger than these:
    then each step takes weights towards zero by the rate, however small the decay is."""
    coupled = (
        each for each in optimizers
        if text(each, "name") in _DIVIDING and each.get("decoupled_weight_decay") is not True
    )  # fmt: skip
    return any(number(each, "weight_decay") * weights > gradient for each in coupled)


def _pulled_to_zero(m: Measurements, kept: float) -> Finding | None:
    """Weights that lose nearly all of their norm while the term of the loss which compares with targets does no better
    than a constant: a penalty, which is part of the recorded loss, outweighs it."""
    rows = [row for row in m.fact_rows("constant_answers") if whole(row, "step") >= _SETTLED and not row.get("void")]
    table, gradients = m.table("weight"), m.table("gradient")
    if not m.own_loop or len(recorded_optimizers(m)) != 1 or not rows or table is None or gradients is None:
        return None
    loss, constant = (float(np.mean([number(row, key) for row in rows])) for key in ("loss", "constant"))
    factor, alike = _pull(table, gradients)
    if loss < _CONSTANT * constant or not alike > _PULL_SHARE:
        return None
    proof = Evidence(
        L_(
            "|weights| < 0.1 of the first; loss > 97 % of that of the best constant; |g| / |w| alike in most "
            "parameters"
        ),
        {"kept": kept, "loss": loss, "constant": constant, "factor": factor, "alike": alike},
        Sentence(
            "The norm of the weights falls to {kept} of its first value, and the {kind} of steps {step} to {step2} "
            "is {loss:.4g}, where the same answer to all inputs has {constant:.4g}. In the first step the gradients "
            "of parameters with {alike} of the elements are all about {factor:.3g} times the norm of their weights, "
            "as those of a penalty {factor2:.3g} |w|^2 are.",
            kept=percent(kept), kind=text(rows[-1], "kind"), step=whole(rows[0], "step"),
            step2=whole(rows[-1], "step"), loss=loss,
            constant=constant, alike=percent(alike), factor=factor, factor2=factor / 2,
        ),
        L_("norm of the weights"), m.points_of(table.steps, table.total_l2),
    )  # fmt: skip
    return Finding(
        "weights-shrink", "error", L_("The weights shrink away: a penalty on them outweighs the loss"), int(m.steps[0]),
        int(m.steps[-1]), (proof,),
        Sentence(
            "Lower the factor of the penalty, {factor:.1g}, to 1e-4 or less, or take its mean over the weights.",
            factor=factor / 2,
        ), 0.85,
        "docs/diagnosis.md", certainty="estimate",
        blame=Blame(False, L_(
            "the gradients are those of the penalty, which pulls weights to zero in any format"
        )),
    )  # fmt: skip


@np.errstate(all="ignore")
def _pull(weights: RecordedRows, gradients: RecordedRows) -> tuple[float, float]:
    """The median of |g| / |w| over parameters in the first step, and the share of elements whose parameters have it."""
    if weights.steps[0] > 1 or not len(gradients.steps) or gradients.steps[0] > 1:
        return 0.0, 0.0
    known = {name: place for place, name in enumerate(gradients.names)}
    pairs = [(place, known[name]) for place, name in enumerate(weights.names) if name in known]
    ratio = np.array([gradients.stat("l2")[0, b] / weights.stat("l2")[0, a] for a, b in pairs])
    sizes = np.array([weights.stat("count")[0, a] for a, _ in pairs])
    finite = np.isfinite(ratio) & (ratio > 0) & np.isfinite(sizes)
    if finite.sum() < _FEWEST_PULLED:
        return 0.0, 0.0
    typical = float(np.median(ratio[finite]))
    near = np.abs(ratio[finite] / typical - 1) < _PULL_ALIKE
    return typical, float(sizes[finite][near].sum() / sizes[finite].sum())


def saturated_units(m: Measurements) -> Answer:
    """A module whose outputs are all at 1 or -1, where a tanh has no derivative."""
    table = m.table("activation")
    if table is None or not m.n or not m.finite_loss.all():
        return None
    with np.errstate(all="ignore"):
        ends = (table.stat("amax") <= 1) & (table.stat("amax") > 0.99)
        share = np.where(ends, table.stat("rms"), 0.0)
    share = np.where(table.recorded, share, np.nan)
    lowest = least(share, 0)
    names = [
        name for place, name in enumerate(table.names)
        if lowest[place] > _SATURATED and name not in origin.WHOLE and _may_saturate(m, name)
    ]  # fmt: skip
    if not names and (other := _saturated_inside(m)) is not None:
        return [other]
    if not names:
        most = float(np.nanmax(middle(share, 0))) if np.isfinite(share).any() else 0.0
        return RuledOut(
            "saturated-units",
            Sentence(
                "because outputs that end at 1 have a root mean square of at most {most:.2g} in a typical step",
                most=most,
            ),
        )
    result = growth(m, m.n)
    learns = result is not None and result.last_loss < 0.5 * result.first_loss
    place = table.names.index(names[0])
    proof = Evidence(
        L_("largest output 1 and rms > 0.97 in every recorded step"),
        {"rms": float(lowest[place]), "modules": len(names)},
        Sentence(
            "The outputs of {name} have a root mean square of at least {lowest:.3g} and none is beyond 1: all are "
            "next to 1 or -1, where the derivative is next to zero.",
            name=names[0],
            lowest=lowest[place],
        ),
        Sentence("rms of {name}", name=names[0]),
        m.points_of(table.steps, share[:, place]),
    )
    return [
        Finding(
            "saturated-units", "info" if learns else "warning", Sentence(
                "{name} is saturated: all outputs are 1 or -1",
                name=names[0],
            ),
            int(table.steps[0]), int(table.steps[-1]), (proof,),
            L_("Initialise the layer before it with smaller weights (Xavier), or normalise its inputs."), 0.8,
            "Glorot and Bengio 2010", names[0], tuple(names[:20]), certainty="estimate", blame=blame_of_symptom(m),
        )
    ]  # fmt: skip


def _saturated_inside(m: Measurements) -> Finding | None:
    """The same of functions inside modules."""
    if (wide := _too_wide(m)) is not None:
        return wide
    flat = flat_at_chance(m, ("tanh", "sigmoid"), _FLAT)
    return _saturated_at_chance(m, flat) if flat else None


def _too_wide(m: Measurements) -> Finding | None:
    """Layers that began with weights far too large for the tanh or sigmoid behind them, which is flat for most of its
    inputs to the end, in a training that learns little."""
    found = chance_of(m)
    flat = [row for row in m.fact_rows("flat_units") if row.get("function") in ("tanh", "sigmoid")]
    flat = [row for row in flat if number(row, "share") >= _FLAT]
    if found is None or not flat:
        return None
    gains = initial_gains(m)
    wide = large_gains(gains)
    if not wide or not found.late > _LITTLE_LEARNT * found.constant:
        return None
    share, gain = number(flat[0], "share"), gains[wide[0]]
    proof = Evidence(
        L_(
            "rms(weights) sqrt(inputs) > 3 before the first step, in half of the layers, and tanh or sigmoid with "
            "less than 0.06 of its largest derivative in >= 60 % of its results; loss > half of that of the best "
            "constant"
        ),
        {"gain": gain, "layers": len(wide), "share": share, "loss": found.late, "constant": found.constant},
        Sentence(
            "Before the first step the weights of {wide_count} of {gain_count} layers had a root mean square of "
            "more than {wide:g} / sqrt(inputs) ({wide2}: {gain:.3g}; 1 keeps the size of its inputs), and {share} "
            "of the results of a {function} behind them are flat; the loss at the end is {late:.3g}, that of the "
            "best constant answer {constant:.3g}.",
            wide_count=len(wide), gain_count=len(gains), wide=LARGE_GAIN, wide2=wide[0], gain=gain,
            share=percent(share), function=flat[0]["function"], late=found.late, constant=found.constant,
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return Finding(
        "saturated-units", "warning", L_(
            "The weights began so large that a tanh or sigmoid behind them is saturated"
        ),
        int(m.steps[0]), int(m.steps[-1]), (proof,),
        L_(
            "Initialise these layers with smaller weights (Xavier: a standard deviation of 1 / sqrt(inputs)), or "
            "normalise their inputs."
        ), 0.8, "Glorot and Bengio 2010", wide[0].rpartition(".")[0], tuple(wide[:20]),
        certainty="estimate", blame=IN_ANY_FORMAT,
    )  # fmt: skip


def _saturated_at_chance(m: Measurements, flat: tuple[tuple[str, float], ...]) -> Finding:
    """Functions inside modules that are flat for most of their inputs, in a training that stands still at chance."""
    module, share = flat[0]
    proof = Evidence(
        L_(
            "tanh or sigmoid with less than 0.06 of its largest derivative, in >= 60 % of the results of a module"
        ),
        {"share": share, "modules": len(flat)},
        Sentence(
            "{share} of the results of the function in {module} are next to its ends, where the derivative is next to "
            "zero, and 60 % or more in {more} more modules.",
            share=percent(share), module=module or Sentence("the model"), more=len(flat) - 1,
        )
        if flat[1:] else Sentence(
            "{share} of the results of the function in {module} are next to its ends, where the derivative is next to "
            "zero.",
            share=percent(share), module=module or Sentence("the model"),
        ),
    )  # fmt: skip
    return Finding(
        "saturated-units", "warning",
        (
            Sentence("{module} is saturated, and the model is hardly better than a constant", module=module)
            if module
            else L_("The model is saturated, and the model is hardly better than a constant")
        ),
        int(m.steps[0]), int(m.steps[-1]), (*chance_proof(m, LITTLE), proof),
        L_(
            "Initialise the layers before such functions with smaller weights (Xavier: a standard deviation of 1 / "
            "sqrt(inputs)), or normalise their inputs."
        ), 0.8, "Glorot and Bengio 2010", module,
        tuple(name for name, _ in flat[:20]), certainty="estimate", blame=blame_of_symptom(m),
    )  # fmt: skip


def _may_saturate(m: Measurements, name: str) -> bool:
    """Whether a module is an activation that ends at 1 and -1; signs, as of a binary network, are meant to be there."""
    kind = m.model.module_types.get(name, "").rpartition(".")[2].lower()
    return "tanh" in kind or kind == "softsign"


def unshifted_targets(m: Measurements) -> Answer:
    """A causal model that learns to repeat what it has just read."""
    rows, result = m.fact_rows("unshifted_targets"), growth(m, m.n)
    if not m.own_loop or not m.n or result is None or not m.fact("census"):
        return None
    if any(row.get("reads_ahead") is True for row in m.fact_rows("exact_steps")):
        return RuledOut("unshifted-targets", L_("because the answers depend on tokens that come after them, too"))
    left = result.last_loss / result.first_loss if result.first_loss > 0 else 1.0
    if len(rows) < _SEEN_UNSHIFTED or not left < _REPEATED:
        return RuledOut(
            "unshifted-targets",
            L_("because no causal model was seen to get its own inputs for targets") if not rows
            else Sentence("because {left} of the loss is left", left=percent(left)),
        )  # fmt: skip
    step, positions = whole(rows[0], "step"), whole(rows[0], "positions")
    proof = Evidence(
        L_(
            "targets = indices that embeddings read, at each position, causal attention, loss < 0.1 of the first"
        ),
        {"step": step, "positions": positions, "steps": len(rows), "left": left},
        Sentence(
            "In step {step} the targets of the cross entropy are, at all {positions} positions, the indices that "
            "the embedding has read there, and attention is causal; {left} of the loss is left at the end.",
            step=step, positions=positions, left=percent(left),
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "unshifted-targets", "warning",
            L_("The targets are the inputs, not shifted by one: the model learns to repeat"),
            step, int(m.steps[-1]), (proof,),
            L_(
                "Let each position predict the next one: outputs of tokens[:, :-1] against targets tokens[:, 1:]."
            ), 0.85,
            "docs/diagnosis.md", certainty="estimate", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


def _worth(row: Mapping[str, Any]) -> float:
    """How much of its loss a model is spared since it sees the next token."""
    return number(row, "hidden") - number(row, "loss")


def reads_ahead(m: Measurements) -> Answer:
    """A model that is to predict the next token of a sequence, and sees it."""
    rows = [
        (whole(each, "step"), each["next_token"]) for each in m.fact_rows("exact_steps")
        if isinstance(each.get("next_token"), Mapping)
    ]  # fmt: skip
    if not m.own_loop or not m.n or not rows:
        return None
    step, row = max(rows, key=lambda pair: float(np.nan_to_num(_worth(pair[1]), nan=-np.inf)))
    if not _worth(row) > _PEEKED * number(row, "hidden") or not number(row, "others") < _COUPLED * _worth(row):
        return RuledOut(
            "reads-ahead",
            Sentence(
                "because the loss at a position goes from {loss:.3g} to {hidden:.3g} where the next token is another "
                "one",
                loss=number(row, "loss"), hidden=number(row, "hidden"),
            ),
        )  # fmt: skip
    proof = Evidence(
        L_("targets = next tokens; (loss with another next token - loss) / loss with another next token > 0.25"),
        {"step": step, "loss": number(row, "loss"), "hidden": number(row, "hidden"), "others": number(row, "others")},
        Sentence(
            "In step {step} position {position} is to predict the next token of its sequence: the cross entropy is "
            "{loss:.3g}. With another token in its place at the input, and the same target, it is {hidden:.3g} "
            "({sequences} sequences): the model reads what it is to predict. A causal model has the same loss in both.",
            step=step, position=whole(row, "position"), loss=number(row, "loss"), hidden=number(row, "hidden"),
            sequences=whole(row, "sequences"),
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "reads-ahead", "warning", L_("Each position sees the token that it is to predict: there is no causal mask"),
            step, int(m.steps[-1]), (proof,),
            L_(
                "Give each attention a causal mask (is_causal=True, or a mask that leaves out all later positions), "
                "and pad convolutions before the sequence only."
            ), 0.95,
            "docs/diagnosis.md", certainty="exact", blame=IN_ANY_FORMAT,
        )
    ]  # fmt: skip


RULES = (
    Rule("reads-ahead", "C", L_("Is the next token hidden from the model that predicts it?"), reads_ahead),
    Rule("unshifted-targets", "C", L_("Are the targets others than the inputs?"), unshifted_targets),
    Rule("batch-norm-gap", "C", L_("Has batch norm enough values?"), batch_norm_gap),
    Rule("weights-shrink", "C", L_("Do the weights keep their size?"), weights_shrink),
    Rule("saturated-units", "C", L_("Are there saturated modules?"), saturated_units),
)
