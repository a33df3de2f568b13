"""Group C: parameters whose gradients are zero or missing: the graph is cut, units are dead, or the loop rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from precgui.runs.diagnosis.analysis import narrow_range, percent
from precgui.runs.diagnosis.blame import blame_of_symptom
from precgui.runs.diagnosis.findings import IN_ANY_FORMAT, Blame, Evidence, Finding, RuledOut
from precgui.runs.diagnosis.measurements import Measurements, RecordedRows, module_of
from precgui.runs.diagnosis.nan_aware import largest
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.diagnosis.setup_rules import initial_gains
from precgui.runs.diagnosis.zero_gradient_rules import of_cleared, of_none, zero_factors
from precgui.runs.recorded_facts import text, whole
from precgui.sentences import L_, Sentence

_FEWEST_ROWS = 10


def no_gradients(m: Measurements) -> Answer:
    """Weights of which no gradient was ever recorded."""
    weights, gradients = m.table("weight"), m.table("gradient")
    if weights is None or m.skipped.all():
        return None
    if gradients is None:
        known = np.isfinite(m.grad_norm)
        others_learn = any(each.backward_order >= 0 and not each.updated for each in m.model.parameters)
        if known.any() or m.n < 3 or not m.finite_loss.any() or others_learn:
            return None  # of the last, see foreign-parameters and parameters-left-out
        if rows := m.fact_rows("cleared_gradients"):
            return [of_cleared(m, rows)]
        by_itself = float((~m.skipped & np.isnan(m.lr)).mean())  # no optimizer, and yet other weights
        if by_itself > 0.5:
            share = percent(by_itself)
            why = Sentence(
                "because in {share} of the steps the loop changed its weights by itself, without gradients",
                share=share,
            )
            return RuledOut("zero-gradients", why)
        return [of_none(m)]
    missing = [name for name in weights.names if name not in set(gradients.names)]
    if (behind := _before_rounding(m, gradients)) is not None:
        return [behind]
    zero = _always_zero(m, gradients)
    if zero and not _cut_off(m, missing, [name for name in weights.names if name not in missing]):
        return [_zero_throughout(m, gradients, zero)]
    if not missing:
        return RuledOut(
            "no-gradients",
            Sentence(
                "because each of {name_count} parameters has gradients",
                name_count=len(weights.names),
            ),
        )
    return [_missing(m, missing, [name for name in weights.names if name not in missing])]


def _before_rounding(m: Measurements, gradients: RecordedRows) -> Finding | None:
    """Parameters without a gradient before a module that rounds, through which no gradient of theirs comes back."""
    rows, order = m.fact_rows("rounded_activations"), m.model.forward_order()
    zero = [name for name in _zero_in_all_rows(gradients) if module_of(name, "gradient") in order]
    for row in rows if zero and m.finite_loss.all() else ():
        places = {name: order.index(own) for name in gradients.names if (own := module_of(name, "gradient")) in order}
        end = _place_of_rounding(order, row.get("module"), places, max(places[name] for name in zero))
        learning = [name for name in places if name not in zero]
        if end is not None and all(places[n] <= end for n in zero) and all(places[n] >= end for n in learning):
            return _rounded_before(m, row, zero, len(gradients.names))
    return None


def _place_of_rounding(order: list[str], module: object, places: Mapping[str, int], last: int) -> float | None:
    """Where in the forward order a module rounds: as it returns or, where it holds others with parameters, right behind
    the last parameter without a gradient, if anywhere."""
    if not isinstance(module, str):
        return None
    inside = [place for place, name in enumerate(order) if not module or f"{name}.".startswith(f"{module}.")]
    own = [place for place, name in enumerate(order) if name == module]
    held = any(place in inside and place not in own for place in places.values())
    return last + 0.5 if held else max(inside, default=None)


def _rounded_before(m: Measurements, row: Mapping[str, Any], names: list[str], count: int) -> Finding:
    module, operation, step = (
        str(row.get("module") or L_("the model")),
        str(row.get("operation")),
        whole(row, "step"),
    )
    proof = Evidence(
        L_("max |g| = 0 in every recorded step, of all parameters before a rounding of what has a gradient"),
        {"zero": len(names), "of": count, "step": step, "operation": operation},
        Sentence(
            "In step {step} {module} applies {operation}() to numbers with a gradient; the gradient of all "
            "{name_count} parameters before it ({names}) is exactly zero in each recorded step, and no other one is.",
            step=step, module=module, operation=operation, name_count=len(names), names=", ".join(names[:5]),
        ),
    )  # fmt: skip
    return Finding(
        "no-gradients", "warning",
        Sentence(
            "No gradient comes back through {operation}() in {module}: {name_count} of {count} parameters do not "
            "learn",
            operation=operation, module=module, name_count=len(names), count=count,
        ),
        int(m.steps[0]), int(m.steps[-1]), (proof,),
        Sentence(
            "Let the gradient through (a straight-through estimator): x + ({operation}(x) - x).detach(), or an "
            "autograd.Function that returns it.",
            operation=operation,
        ), 0.95, "Bengio et al. 2013", module, tuple(names[:20]),
        blame=Blame(False, L_("the derivative of a rounding is zero in any format")),
    )  # fmt: skip


def _zero_in_all_rows(gradients: RecordedRows) -> list[str]:
    """Parameters whose gradient was recorded at least `_FEWEST_ROWS` times, and was zero each time."""
    zero = (gradients.recorded & (gradients.stat("amax") == 0)).sum(0)
    rows = gradients.recorded.sum(0)
    return [name for name, a, b in zip(gradients.names, zero, rows, strict=True) if a == b >= _FEWEST_ROWS]


def _always_zero(m: Measurements, gradients: RecordedRows) -> list[str]:
    """Parameters whose gradient is zero in every recorded step, where these are half of all or more.

    Not where all are zero (see zero-gradients), nor in FP16, where numbers are lost below the range, unless all weights
    of layers are zero, too.
    """
    if len(gradients.steps) < _FEWEST_ROWS or not m.finite_loss.all():
        return []
    if narrow_range(m) and not _are_all_zero(m):
        return []
    written = _written_by_the_loop(m)
    names = [name for name in _zero_in_all_rows(gradients) if name not in written]
    with np.errstate(all="ignore"):
        sizes = dict(zip(gradients.names, largest(gradients.stat("count"), 0).tolist(), strict=True))
    elements = sum(sizes[name] for name in names) >= 0.5 * sum(sizes.values())
    return names if len(names) < len(sizes) and (elements or 2 * len(names) >= len(sizes)) else []


def _are_all_zero(m: Measurements) -> bool:
    """Whether the matrices of all layers are zero throughout, so that each gradient is a product with zeros."""
    matrices = initial_gains(m).keys()
    return len(matrices) > 1 and matrices <= set(zero_factors(m))


@np.errstate(all="ignore")
def _written_by_the_loop(m: Measurements) -> set[str]:
    """Parameters whose norm or mean changes more than all steps of the optimizer can make it: the loop sets them anew,
    as it does after it has merged an adapter."""
    weights, updates = m.table("weight"), m.table("update")
    if weights is None or len(weights.steps) < 2:
        return set()
    known = {name: place for place, name in enumerate(updates.names)} if updates is not None else {}
    result = set()
    for place, name in enumerate(weights.names):
        moved = max(
            float(np.nanmax(np.abs(np.diff(weights.stat(stat)[:, place])), initial=0.0)) for stat in ("l2", "mean")
        )
        own = updates.stat("l2")[:, known[name]] if updates is not None and name in known else np.zeros(1)
        possible = float(np.nan_to_num(own).max(initial=0.0)) * float(np.diff(weights.steps).max())
        if moved > 2 * possible + 1e-6 * float(np.nanmax(weights.stat("l2")[:, place], initial=0.0)):
            result.add(name)
    return result


def _zero_throughout(m: Measurements, gradients: RecordedRows, names: list[str]) -> Finding:
    proof = Evidence(
        L_("max |g| = 0 in every recorded step, in half of the parameters or more"),
        {"zero": len(names), "of": len(gradients.names), "recorded_steps": len(gradients.steps)},
        Sentence(
            "The gradient of {name_count} of {name_count2} parameters is exactly zero in each of {step_count} "
            "recorded steps: {names}.",
            name_count=len(names), name_count2=len(gradients.names), step_count=len(gradients.steps),
            names=", ".join(names[:5]),
        ),
    )  # fmt: skip
    rounded = {text(row, "tensor") for row in m.fact_rows("rounded_weights")}
    if len(rounded & set(names)) > len(names) / 2:
        return _rounded_away(m, proof, names)
    zeros = [name for name in zero_factors(m) if name in names]
    if len(zeros) > 1:
        return _behind_zero_weights(m, proof, zeros)
    lost = _reached_by_others(gradients, names)
    blame = blame_of_symptom(m)
    if lost or m.fact_rows("lost_values"):
        blame = Blame(needs=L_("the same run without roundings of its own"))
    return Finding(
        "no-gradients", "warning",
        Sentence(
            "The gradients of {name_count} of {name_count2} parameters are zero in all steps: they do not learn",
            name_count=len(names), name_count2=len(gradients.names),
        ),
        int(m.steps[0]), int(m.steps[-1]), (proof,),
        Sentence(
            "{lost} is zero although other parameters of its module have gradients: look at the backward pass for a "
            "rounding without a scale (below the range of its format all becomes zero), and for factors of zero.",
            lost=lost,
        )
        if lost
        else L_(
            "Look for dead units (a bias far below zero before a ReLU), for experts that are never chosen (balance "
            "the router), and for factors of zero; initialise these parts anew."
        ),
        0.8, "docs/diagnosis.md", module_of(names[0], "gradient"), tuple(names[:20]),
        certainty="exact" if blame.answer is not None else "estimate", blame=blame,
    )  # fmt: skip


def _behind_zero_weights(m: Measurements, proof: Evidence, names: list[str]) -> Finding:
    """Matrices that began as zeros: each has the gradient times the others, and so stays zero."""
    begun = Evidence(
        L_("max |w| = 0 in every recorded step, of two matrices that learn or more"), {"matrices": len(names)},
        Sentence(
            "All elements of {name_count} weights are zero in each recorded step: {names}.",
            name_count=len(names), names=", ".join(names[:5]),
        ),
    )  # fmt: skip
    return Finding(
        "zero-weights", "error",
        Sentence("The weights of {name_count} layers begin as zeros and stay so", name_count=len(names)),
        int(m.steps[0]), int(m.steps[-1]), (begun, proof),
        L_(
            "Initialise weights at random, as the layers of torch do (torch.nn.init.kaiming_uniform_); biases, and the "
            "last layer alone, may begin as zeros."
        ),
        0.95, "Goodfellow et al. 2016, Deep Learning, section 8.4", module_of(names[0], "weight"), tuple(names[:20]),
        blame=Blame(False, L_("each of two factors is exactly zero, as it was before the first step")),
    )  # fmt: skip


def _reached_by_others(gradients: RecordedRows, zero: list[str]) -> str:
    """A parameter without a gradient in a module of which another parameter has one, as a weight beside its bias."""
    alive = {module_of(name, "gradient") for name in gradients.names if name not in set(zero)}
    return next((name for name in zero if module_of(name, "gradient") in alive), "")


def _rounded_away(m: Measurements, proof: Evidence, names: list[str]) -> Finding:
    return Finding(
        "no-gradients", "warning",
        Sentence(
            "The gradients of {name_count} parameters are zero in all steps: the loop rounds them, and rounding has "
            "a derivative of zero",
            name_count=len(names),
        ),
        int(m.steps[0]), int(m.steps[-1]), (proof,),
        L_(
            "Let the gradient through (a straight-through estimator): w + (rounded - w).detach(), or an "
            "autograd.Function that returns it."
        ),
        0.9, "Bengio et al. 2013", module_of(names[0], "gradient"), tuple(names[:20]), blame=IN_ANY_FORMAT,
    )  # fmt: skip


def _missing(m: Measurements, missing: list[str], learning: list[str]) -> Finding:
    cut = _cut_off(m, missing, learning)
    named = cut or missing
    proof = Evidence(
        L_("parameters of the optimizer without a gradient"),
        {"missing": len(missing), "of": len(missing) + len(learning)},
        Sentence(
            "{missing_count} of {missing_count2} parameters never had a gradient: {named}.",
            missing_count=len(missing),
            missing_count2=len(missing) + len(learning),
            named=", ".join(named[:5]),
        ),
    )
    part = named[0].partition(".")[0] if len({name.partition(".")[0] for name in named}) == 1 else ""
    fix = (
        L_(
            "Look for detach(), torch.no_grad(), .data, .item() or a reentrant checkpoint (use_reentrant=False) "
            "behind them; set requires_grad_(False) where they are meant to stay."
        )
        if cut else L_(
            "Expected of experts that are not chosen and of parts that are not used; else look for a cut graph."
        )
    )  # fmt: skip
    title = Sentence(
        "{missing_count} of {missing_count2} parameters get no gradient",
        missing_count=len(missing),
        missing_count2=len(missing) + len(learning),
    )
    return Finding(
        "no-gradients", "warning" if cut else "info",
        Sentence("{title}: the graph is cut behind {part}", title=title, part=part or named[0]) if cut else title,
        int(m.steps[0]), int(m.steps[-1]), (proof,), fix, 0.8 if cut else 0.6, "docs/diagnosis.md",
        part if cut else "", tuple(named[:20]), blame=IN_ANY_FORMAT,
    )  # fmt: skip


def _cut_off(m: Measurements, missing: list[str], learning: list[str]) -> list[str]:
    """Parameters that the optimizer holds, whose modules ran in the first step, and that no gradient ever reaches.

    Those that ran before everything that learns: the graph is cut behind them. Of the others, those that are a fifth
    of the elements and not one of several alike, as an expert that is not chosen is (`experts.3` beside `experts.0`).
    """
    order = {name: place for place, name in enumerate(m.model.forward_order())}
    known = m.model.by_name
    ran = [
        name for name in missing
        if module_of(name, "gradient") in order and name in known
        and known[name].updated and known[name].requires_grad and known[name].backward_order < 0
    ]  # fmt: skip
    begins = min((order[own] for name in learning if (own := module_of(name, "gradient")) in order), default=None)
    if begins is None or not ran:
        return []
    before = [name for name in ran if order[module_of(name, "gradient")] < begins]
    if before:
        return before
    alike = {_pattern(name) for name in learning}
    single = [name for name in ran if _pattern(name) not in alike]
    sizes = {name: math.prod(known[name].shape) for name in (*missing, *learning) if name in known}
    return single if sum(sizes[name] for name in single) > 0.2 * sum(sizes.values()) else []


def _pattern(name: str) -> str:
    """The name of a parameter without the numbers of the modules that hold it."""
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


RULES = (Rule("no-gradients", "C", L_("Has every parameter a gradient?"), no_gradients),)
