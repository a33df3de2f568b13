"""Group A: values beyond the range of a format, above or below."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from precgui.runs.diagnosis import origin
from precgui.runs.diagnosis.analysis import (
    FP16_LARGEST,
    FP16_SMALLEST,
    learning_ends,
    median,
    narrow_range,
    percent,
    power,
)
from precgui.runs.diagnosis.blame import made_by
from precgui.runs.diagnosis.depth_rules import SHARP_FALL, fall_per_layer
from precgui.runs.diagnosis.findings import BEYOND_RANGE, COMPARED, Blame, Evidence, Finding, RuledOut, Undecided
from precgui.runs.diagnosis.fp32_outlook import blame_of_small_gradients
from precgui.runs.diagnosis.measurements import Measurements, RecordedRows, Values
from precgui.runs.diagnosis.nan_aware import largest, middle, nonzero
from precgui.runs.diagnosis.origin import forward_order
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, whole
from precgui.sentences import L_, Sentence

_EMPTY = 0.5  # of the recorded steps in which a layer gets next to no gradient
_NEAR_END = 256.0  # times the smallest number of FP16
_FEW = 4.0  # times the smallest number of FP16: a gradient below has one digit or two at most
_UNDERFLOW_ERROR = 0.15  # of a gradient's L2 norm, lost to zeros and subnormals


def headroom(m: Measurements) -> Answer:
    """Activations in FP16 that come near its largest number, 65504."""
    table = m.table("activation")
    if table is None:
        return Undecided("headroom", L_("outputs of modules (record.activations_every)")) if narrow_range(m) else None
    own = [place for place, name in enumerate(table.formats) if name == "fp16"]
    if not own or (~m.finite_loss).any():
        return None
    with np.errstate(all="ignore"):
        amax = table.stat("amax")[:, own]
        most = largest(amax, 0)
    worst = int(np.nanargmax(most))
    left = float(np.log2(FP16_LARGEST / most[worst]))
    name = table.names[own[worst]]
    if left > 1:
        return RuledOut(
            "headroom",
            Sentence(
                "because the largest output in FP16 is {most:.3g} ({name}), {left:.1f} octaves below 65504",
                most=most[worst],
                name=name,
                left=left,
            ),
        )
    proof = Evidence(
        "log2(65504 / amax) < 1", {"amax": float(most[worst]), "octaves_left": left},
        Sentence(
            "The outputs of {name} reach {most:.4g}: {left:.2f} octaves below 65504.",
            name=name, most=most[worst], left=left,
        ),
        Sentence("largest output of {name}", name=name), _points(table, amax[:, worst]), FP16_LARGEST,
    )  # fmt: skip
    return [
        Finding(
            "headroom", "info", Sentence("The outputs of {name} are near the end of FP16's range", name=name),
            int(table.steps[0]), int(table.steps[-1]), (proof,), L_("Use BF16, or keep this module in FP32."),
            0.6, "transformers issue 9295", name, (name,),
            {"precision_options.keep_fp32": [name]}, "lower bound", blame=BEYOND_RANGE,
        )
    ]  # fmt: skip


def gradient_underflow(m: Measurements) -> Answer:
    """Gradients of FP16 of which a part is zero or subnormal, so that their error is large."""
    if not narrow_range(m) or m.finite_loss.mean() < 0.5:  # gradients of few losses say little
        return None
    worst: tuple[float, RecordedRows, Values] | None = None
    for kind in ("gradient", "activation_gradient"):
        table = m.table(kind)
        if table is None or not m.n:
            continue
        errors = _flush_errors(m, table)
        score = _weighted(table, errors)
        if np.isfinite(score) and (worst is None or score > worst[0]):
            worst = score, table, errors
    if worst is None:
        return Undecided("gradient-underflow", "gradients (record.gradients_every)")
    score, table, errors = worst
    if score < 0.2 and (emptied := _emptied_layers(m)) is not None:
        return [_vanishing(m, emptied)]
    if score < 0.2:
        typical = median(middle(errors, 0)) if errors.size else float("nan")
        return RuledOut(
            "gradient-underflow",
            Sentence(
                "because zeros and subnormals of FP16 cost at most {typical} of the norm of a typical gradient and "
                "more than {underflow_error} in only {score} of the elements",
                typical=percent(typical),
                underflow_error=percent(_UNDERFLOW_ERROR),
                score=percent(score),
            ),
        )
    return [_vanishing(m, _underflow(m, score, table, errors))]


@np.errstate(all="ignore")
def _emptied_layers(m: Measurements) -> Finding | None:
    """Layers with next to no gradient, in a run without loss scaling, where FP32 would hold what FP16 does not.

    The gradient that reaches a layer is that of the layer after it times the weights of that one: of a root mean square
    of about rms(g) rms(w) sqrt(outputs). Below half of the smallest number of FP16 nearly all of it is zero there.
    """
    flowing, gradients, weights = m.table("activation_gradient"), m.table("gradient"), m.table("weight")
    if m.loops_scale or flowing is None or gradients is None or weights is None:
        return None
    learning = (flowing.steps <= learning_ends(m)) & np.isfinite(m.at_loss(flowing.steps))
    order = [name for name in forward_order(m) if name in flowing.names and f"{name}.weight" in gradients.names]
    for before, after in itertools.pairwise(order):
        here, there = flowing.names.index(before), flowing.names.index(after)
        held = f"{after}.weight"
        if held not in weights.names or not {flowing.formats[here], flowing.formats[there]} <= {"fp16", ""}:
            continue
        arrived, sent = flowing.stat("amax")[learning, here], flowing.stat("rms")[learning, there]
        size, place = m.model.by_name.get(held), weights.names.index(held)
        outputs = size.shape[0] if size is not None and len(size.shape) > 1 else 0
        expected = sent * median(weights.stat("rms")[:, place]) * np.sqrt(outputs)
        empty = (arrived < _FEW * FP16_SMALLEST) & (expected > 0) & (expected < FP16_SMALLEST / 2)
        if outputs and len(empty) and empty.mean() > _EMPTY:
            return _emptied(m, flowing, before, after, float(empty.mean()), median(sent), median(expected))
    return None


def _emptied(
    m: Measurements, flowing: RecordedRows, before: str, after: str, share: float, sent: float, expected: float
) -> Finding:
    zeros = flowing.share_zero()[:, flowing.names.index(before)]
    proof = Evidence(
        L_(
            "max|g| < 2^-22 in a layer where rms(g) rms(w) sqrt(n) of the next one is below 2^-25, at a scale of 1"
        ),
        {"share_of_steps": share, "rms_of_next": sent, "expected": expected, "half_smallest": FP16_SMALLEST / 2},
        Sentence(
            "In {share} of the recorded steps next to no gradient reaches {before}: that of {after}, {sent:.2g}, "
            "times its weights is about {expected:.1g}, which FP32 holds and FP16, without a loss scale, rounds to "
            "zero below {fp16_smallest:.1g}.",
            share=percent(share), before=before, after=after, sent=sent, expected=expected,
            fp16_smallest=FP16_SMALLEST / 2,
        ),
        Sentence("share of zeros in the gradient of {before}", before=before), _points(flowing, zeros),
    )  # fmt: skip
    needs = L_("the same run with a scaler, or in fp32")
    return Finding(
        "gradient-underflow", "warning",
        Sentence(
            "Next to no gradient reaches {before}: it is below the range of FP16, and no loss scaling is used",
            before=before,
        ),
        int(flowing.steps[0]), int(flowing.steps[-1]), (proof,),
        "Use a scaler (torch.amp.GradScaler), or BF16." if m.own_loop else L_(
            "Use dynamic loss scaling, or BF16."
        ),
        0.85, "Micikevicius et al. 2018, section 3.2", before,
        (f"{before}.weight",), {"scaling.mode": "dynamic"}, "estimate",
        Blame(True, BEYOND_RANGE.proof, needs) if expected > sent / SHARP_FALL else Blame(needs=needs),
    )  # fmt: skip


@np.errstate(all="ignore")
def _flush_errors(m: Measurements, table: RecordedRows) -> Values:
    """Relative error of each gradient by flushing to zero and by subnormals, shape (rows, tensors).

    An element that is lost is below half of the smallest subnormal s, with a mean square of s^2 / 12 for a uniform
    density; one among the subnormals has an error of s^2 / 12, too. s = 2^-24 / scale. All elements of a tensor that is
    zero as a whole count as lost where another tensor shows that numbers of the size of s occur: an error of 1. Tensors
    with NaN or Inf have no such error: they were not lost below the range.
    """
    scale = nonzero(np.array([m.scale_at.get(int(step), 1.0) for step in table.steps]))
    smallest = np.minimum(FP16_SMALLEST / scale[:, None], table.stat("amin_nonzero"))
    smallest = np.where(np.isfinite(smallest), smallest, FP16_SMALLEST / scale[:, None])
    norm, count = table.stat("l2"), table.stat("count")
    error = np.where(table.bad, np.nan, np.sqrt(count * smallest**2 / 12) / nonzero(norm))
    near = (error > 0.02).any(1) | (largest(table.stat("amax"), 1) < 64 * smallest.min(1))
    zero = table.recorded & ~table.bad & ~(table.stat("amax") > 0)
    error = np.where(zero & near[:, None], 1.0, np.where(zero, np.nan, error))
    skipped = np.isin(table.steps, m.steps[m.skipped])
    kept = (table.steps <= learning_ends(m)) & np.isfinite(m.at_loss(table.steps)) & ~skipped
    return error[kept] if kept.any() else np.full_like(error[:1], np.nan)


def _weighted(table: RecordedRows, errors: Values) -> float:
    """The share of the elements whose gradient has too large an error, as a median over the recorded steps."""
    with np.errstate(all="ignore"):
        size = largest(table.stat("count"), 0)
        typical = middle(errors, 0)
    known = np.isfinite(typical) & np.isfinite(size)
    return float(size[known & (typical > _UNDERFLOW_ERROR)].sum() / size[known].sum()) if known.any() else float("nan")


def _lost_below(m: Measurements, score: float, table: RecordedRows, place: int, error: float) -> Evidence:
    """Which share of the elements is in gradients that lose much, and what is lost of the worst of these."""
    name, scale, zeros = table.names[place], median(m.scale), median(table.share_zero()[:, place])
    sizes = {
        "fp16_smallest": FP16_SMALLEST / scale, "score": percent(score), "name": name, "zeros": percent(zeros),
        "typical": percent(min(error, 1.0)),
    }  # fmt: skip
    return Evidence(
        "sqrt(n / 12) * 2^-24 / scale / |g| > 0.15",
        {"scale": scale, "share_of_elements": score, "error": error, "zeros": zeros},
        Sentence(
            "At a scale of {scale} FP16 ends at {fp16_smallest:.2g}: {score} of the elements are in gradients of "
            "which zeros and subnormals take {typical} ({name}: {zeros} zeros).",
            scale=power(scale), **sizes,
        )
        if m.loops_scale or not m.own_loop else Sentence(
            "FP16 ends at {fp16_smallest:.2g}: {score} of the elements are in gradients of which zeros and subnormals "
            "take {typical} ({name}: {zeros} zeros), as the optimizer gets them.",
            **sizes,
        ),
        Sentence("share of zeros in {name}", name=name),
        _points(table, table.share_zero()[:, place]),
    )  # fmt: skip


def _divided_early(
    m: Measurements, row: Mapping[str, Any], score: float, proof: Evidence, table: RecordedRows, names: tuple[str, ...]
) -> Finding:
    """Gradients that a loop with a loss scale of its own divides by it while they are in FP16."""
    scale, step = number(row, "scale"), whole(row, "step")
    seen = Evidence(
        L_("gradients in FP16 / scale in FP16, then a cast to FP32"),
        {"step": step, "scale": scale, "parameters": whole(row, "parameters")},
        Sentence(
            "In step {step} the gradients of {parameters} parameters were divided by {scale:g} in FP16, and widened to "
            "FP32 afterwards.",
            step=step, parameters=whole(row, "parameters"), scale=scale,
        ),
    )  # fmt: skip
    return Finding(
        "gradient-underflow", "error" if score > 0.5 else "warning",
        Sentence(
            "{score} of the gradient is lost below the range of FP16: it is divided by the loss scale {scale:g} before "
            "it is widened",
            score=percent(score), scale=scale,
        ),
        int(table.steps[0]), int(table.steps[-1]), (seen, proof),
        L_("Widen gradients first, and divide them in FP32: p.grad.float() / scale."), 0.95,
        "Micikevicius et al. 2018, section 3.2", "", names[:20], certainty="lower bound", blame=BEYOND_RANGE,
    )  # fmt: skip


def _underflow(m: Measurements, score: float, table: RecordedRows, errors: Values) -> Finding:
    with np.errstate(all="ignore"):
        typical = np.nan_to_num(middle(errors, 0))
    order = np.argsort(-typical)
    names = tuple(table.names[place] for place in order if typical[place] > _UNDERFLOW_ERROR)
    scale = median(m.scale)
    amax = table.stat("amax")
    most = float(np.nanmax(amax)) if np.isfinite(amax).any() else 0.0
    proposed = 2.0 ** int(np.floor(np.log2(FP16_LARGEST / most)) - 2) if most > 0 else 2.0**16
    proposed = float(np.clip(proposed, 2.0**8, 2.0**24))
    proof = _lost_below(m, score, table, int(order[0]), float(typical[order[0]]))
    early = next(iter(m.fact_rows("early_divisions") if m.own_loop else ()), None)
    if early is not None:
        return _divided_early(m, early, score, proof, table, names)
    scaled = m.loops_scale
    own = (
        L_(
            "Use a scaler (torch.amp.GradScaler), or BF16. Where the loop has a loss scale of its own, divide "
            "gradients by it in FP32, once they are widened."
        )
        if m.own_loop
        else Sentence("Use dynamic loss scaling from {proposed}.", proposed=power(proposed))
    )
    fix = (
        Sentence(
            "Raise the loss scale to {proposed}, with a shorter growth interval.",
            proposed=power(proposed),
        )
        if scaled
        else own
    )
    change: dict[str, object] = {"scaling.mode": "dynamic", "scaling.initial_scale": proposed}
    if scaled and proposed <= scale:
        fix = Sentence(
            "Use BF16, or keep {name} in FP32: a higher scale lets the largest gradients overflow.",
            name=names[0].rpartition(".")[0] or names[0],
        )
        change = {"precision": "bf16-amp"}
    return Finding(
        "gradient-underflow", "error" if score > 0.5 else "warning",
        Sentence("{score} of the gradient is lost below the range of FP16", score=percent(score)),
        int(table.steps[0]), int(table.steps[-1]), (proof,), fix, 0.9,
        "Micikevicius et al. 2018, section 3.2", "", names[:20],
        change, "lower bound", blame=BEYOND_RANGE,
    )  # fmt: skip


def _vanishing(m: Measurements, finding: Finding) -> Finding:
    """The finding as it is, or undecided where gradients vanish with the depth, so that few would reach the layers in
    FP32, or where those that are lost are too small to move the weights."""
    fall = fall_per_layer(m)
    if fall is None or _are_all_small(m):
        blame = blame_of_small_gradients(m, finding.blame)
        return replace(finding, blame=blame, evidence=(*finding.evidence, *blame.evidence))
    proof = Evidence(
        L_("rms(gradient of a layer) < 1/8 of the next layer's, layer by layer"), {"fall": fall},
        Sentence(
            "The gradient falls {fall:.3g}-fold from each layer to the one before it: the first layers would hardly "
            "learn in FP32, either.",
            fall=fall,
        ),
    )  # fmt: skip
    return replace(
        finding, title=Sentence(
            "The gradients vanish on their way to the first layers: {title}",
            title=finding.title,
        ),
        evidence=(proof, *finding.evidence),
        fix=L_(
            "Add residuals or norms, or use another initialisation or activation; a higher loss scale alone does "
            "not help gradients that vanish with the depth."
        ),
        config_change={}, certainty="estimate", blame=Blame(needs=L_("the same run in fp32")),
    )  # fmt: skip


@np.errstate(all="ignore")
def _are_all_small(m: Measurements) -> bool:
    """Whether the gradients of no parameter are far above the end of FP16, so that it empties the first layers at any
    fall."""
    table = m.table("gradient")
    most = float(largest(middle(table.stat("rms"), 0), 0)) if table is not None else math.inf
    return most * median(m.scale) < _NEAR_END * FP16_SMALLEST


def hidden_overflow(m: Measurements) -> Answer:
    """Zeros behind an overflow: a square beyond 65504 became Inf, and x / Inf is zero."""
    rows = [
        row for row in m.fact_rows("finite_in_fp32") if row.get("use") == "hidden" and row.get("kind") == "overflow"
    ]
    if rows and m.n:
        return [_emptied_by_infinity(m, rows)]
    return _of_norms(m)


def _of_norms(m: Measurements) -> Answer:
    """The same by the outputs of norms, where no operation was seen."""
    table = m.table("activation")
    if table is None or not narrow_range(m):
        return None
    order = [place for place, name in enumerate(table.names) if name not in origin.WHOLE]
    zeros, amax = table.share_zero(), table.stat("amax")
    results = []
    for before, place in itertools.pairwise(order):
        kind = m.model.module_types.get(table.names[place], table.names[place]).lower()
        if not any(word in kind for word in ("norm", "ln", "rms", "bn")):
            continue
        with np.errstate(all="ignore"):
            dead = (zeros[:, place] > 0.02) & (amax[:, before] > 256) & (zeros[:, before] < zeros[:, place] / 2)
        if dead.sum() >= max(1, len(dead) // 3):
            results.append((place, before, dead))
    if not results:
        return RuledOut(
            "hidden-overflow", L_("because no normalisation returns zeros for inputs above 256 (256^2 > 65504)")
        )
    place, before, dead = results[0]
    row = int(np.flatnonzero(dead)[0])
    name = table.names[place]
    proof = Evidence(
        L_("zeros(out) > 0.02 and amax(in) > 256"), {"zeros": float(zeros[row, place]), "amax_in": float(amax[row,
        before])},
        Sentence(
            "{zeros} of the outputs of {name} are zero while its inputs reach {amax:.4g}, whose square is beyond "
            "65504.",
            zeros=percent(float(zeros[row, place])), name=name, amax=amax[row, before],
        ),
        Sentence("zeros of {name}", name=name), _points(table, zeros[:, place]),
    )  # fmt: skip
    return [
        Finding(
            "hidden-overflow", "error", Sentence(
                "{name} returns zeros: a square overflows FP16 inside it",
                name=name,
            ),
            int(table.steps[row]), int(table.steps[-1]), (proof,),
            L_(
                "Compute the norm in FP32 (torch.nn.RMSNorm, LayerNorm under autocast), or keep the module in FP32."
            ),
            0.8, "transformers issue 25938", name, (name,), {"precision_options.keep_fp32": [name]}, blame=BEYOND_RANGE,
        )
    ]  # fmt: skip


def _emptied_by_infinity(m: Measurements, rows: Sequence[Mapping[str, Any]]) -> Finding:
    """A number beyond the range, most results behind which are 0, as 1 / Inf is, and are not in FP32."""
    row = rows[0]
    made, module, step = made_by(row), str(row.get("made_in") or ""), whole(row, "step")
    value, low, where = number(row, "value"), str(row.get("format")).upper(), str(row.get("operation"))
    name = module if module not in origin.WHOLE else L_("the loop") if row.get("made_in") is None else L_("the model")
    steps = sorted({whole(each, "step") for each in rows})
    proof = Evidence(
        L_("Inf in 16 bits, finite in FP32, and 0 behind it in > 50 % of a result that FP32 and FP16 hold"),
        {"step": step, "operation": where, "largest_in_fp32": value},
        Sentence(
            "In step {step} {made} in {name} goes beyond the range of {low}; most results of the {where} behind it "
            "are 0, and up to {value:.3g} where FP32 computes both.",
            step=step, made=made, name=name, low=low, where=where, value=value,
        ),
    )  # fmt: skip
    own = name == module
    return Finding(
        "hidden-overflow", "error", Sentence(
            "{made} in {name} overflows {low}, and what is divided by it becomes 0",
            made=made, name=name, low=low,
        ),
        steps[0], int(m.steps[-1]), (proof,),
        L_(
            "Compute squares and their sum in FP32, x.float() first (torch.nn.RMSNorm and LayerNorm under autocast "
            "do), or keep the module in FP32."
        )
        if row.get("made_in") is not None
        else L_(
            "Compute norms and sums in FP32 (torch.nn.utils.clip_grad_norm_ does): a norm that is Inf makes the "
            "factor of clipping 0."
        ),
        0.9, "transformers issue 25938", module if own else "", (module,) if own else (),
        {"precision_options.keep_fp32": [module]} if own else {}, blame=COMPARED,
    )  # fmt: skip


def _points(table: RecordedRows, values: Values) -> tuple[tuple[int, float], ...]:
    return tuple(zip(table.steps.tolist(), values.tolist(), strict=True))


RULES = (
    Rule("hidden-overflow", "A", L_("Does a norm return zeros after an overflow inside?"), hidden_overflow),
    Rule("headroom", "A", L_("Are outputs near the end of the range?"), headroom),
    Rule("gradient-underflow", "A", L_("Are gradients lost below the range?"), gradient_underflow),
)
