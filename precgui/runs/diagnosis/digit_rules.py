"""Group B: too few digits, in stored weights, in the loss, in products."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from precgui.runs.diagnosis.analysis import is_adaptive, learning_ends, median, percent, storage
from precgui.runs.diagnosis.findings import COMPARED, TOO_FEW_DIGITS, Evidence, Finding, RuledOut, Undecided
from precgui.runs.diagnosis.fp32_outlook import blame_of_small_steps
from precgui.runs.diagnosis.measurements import Measurements, RecordedRows, Values, thinned
from precgui.runs.diagnosis.nan_aware import largest, middle
from precgui.runs.diagnosis.number_formats import DIGITS, format_of, half_ulp
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.recorded_facts import number, text, texts, whole
from precgui.sentences import L_, Sentence

# Shares of the progress of a step that arrive in the weights: below the first an error, below the second a warning.
# Measured (docs/diagnosis.md): at the second the loss falls by 10 % less than in FP32.
_LIMITS = {True: (0.25, 0.4), False: (0.6, 0.8)}  # for adaptive optimizers, and for others
_MOMENTUM_STEPS = 10  # steps after which momentum has nearly grown to its size
_SAME_NORM = 0.01  # relative deviation of a copy in FP32
_FEWEST_KEPT, _MOSTLY = 2, 0.5  # steps that were made in FP64; of them, and of what rounding takes in one
_HISTOGRAMS = 5  # rows of them that are read
_REMAINDERS = ("kahan", "compensation", "remainder", "residue", "lower_bits")  # in names of optimizer state
_NAMES = {"bf16": "BF16", "fp16": "FP16"}
_REWRITTEN, _OF_UPDATE = 2, 0.5  # steps that find rounded weights; error of the rounding over the update before it


@np.errstate(all="ignore")
def changed_share(table: RecordedRows) -> Values:
    """The share of all elements that a step changed, shape (rows,)."""
    changed, count = table.stat("changed"), table.stat("count")
    share: Values = np.nansum(changed * count, 1) / np.nansum(np.where(np.isfinite(changed), count, 0), 1)
    return share


def stagnation(m: Measurements) -> Answer:
    """Weights stored in 16 bits, whose updates are below half an ulp and change nothing."""
    stored = storage(m)
    if stored not in DIGITS or not m.n or not np.nanmax(m.lr, initial=0.0) > 0:
        return None
    if (kept_elsewhere := compensated(m) or _masters(m)) is not None:
        return kept_elsewhere
    table = m.table("update")
    if table is None:
        return Undecided("stagnation", "updates (record.weights_every)")
    kept = (table.steps <= learning_ends(m)) & ~np.isin(table.steps, m.steps[m.skipped])
    share = changed_share(table)
    typical = median(share[kept])
    if not np.isfinite(typical):
        return None
    arrived = _arrived(m, table, kept)
    if not np.isfinite(arrived):
        return None
    grave, slow = _LIMITS[is_adaptive(m)]
    if not (table.steps[kept] > _MOMENTUM_STEPS).any() and grave / 2 < arrived < slow:
        return Undecided(
            "stagnation",
            Sentence(
                "updates after step {momentum_steps} (record.budget): momentum grows until then",
                momentum_steps=_MOMENTUM_STEPS,
            ),
        )
    if arrived >= slow:
        return RuledOut(
            "stagnation",
            Sentence(
                "because a step changes {typical} of the {name} weights, those that carry {arrived} of it",
                typical=percent(typical),
                name=_NAMES[stored],
                arrived=percent(arrived),
            ),
        )
    if _rounds_up(m, table):
        return RuledOut(
            "stagnation", Sentence(
                "because steps of the size of an ulp are made at a rate of {lr:.3g}, which rounding to nearest does "
                "not: weights are rounded stochastically",
                lr=median(m.lr),
            ),
        )  # fmt: skip
    return [_stagnation(m, table, share, typical, arrived, stored)]


def compensated(m: Measurements) -> RuledOut | None:
    """Weights whose rounding is made good: stochastically, or by a remainder that the optimizer keeps."""
    if m.precision == "bf16-sr":
        return RuledOut("stagnation", L_("because the updates of all weights are rounded stochastically (bf16-sr)"))
    state = m.table("optimizer")
    kept = [name for name in state.names if any(word in name for word in _REMAINDERS)] if state is not None else []
    if kept:
        return RuledOut(
            "stagnation",
            Sentence(
                "because the optimizer keeps what rounding loses of {kept_count} tensors",
                kept_count=len(kept),
            ),
        )
    if _is_kept_elsewhere(m):
        return RuledOut("stagnation", L_("because what rounding takes from an update is kept elsewhere"))
    return None


def _is_kept_elsewhere(m: Measurements) -> bool:
    """Whether a copy of more digits or a remainder was seen to hold what rounding takes, in the steps made in FP64."""
    updates = [row.get("updates") for row in m.fact_rows("exact_steps")]
    seen = [
        number(each, "kept_elsewhere") for each in updates if isinstance(each, Mapping) and "kept_elsewhere" in each
    ]
    return len(seen) >= _FEWEST_KEPT and sum(each > _MOSTLY for each in seen) > _MOSTLY * len(seen)


@np.errstate(all="ignore")
def _masters(m: Measurements) -> RuledOut | None:
    """FP32 copies of the weights in the optimizer's state: of a kind whose norm is that of its weight in each row.

    Not where the loop was seen to make them anew from the rounded weights, see `lost-updates`.
    """
    state, weights = m.table("optimizer"), m.table("weight")
    if state is None or weights is None or any(row.get("optimizer") for row in m.fact_rows("stored_updates")):
        return None
    known = {name: place for place, name in enumerate(weights.names)}
    steps, own, other = np.intersect1d(state.steps, weights.steps, return_indices=True)
    alike: dict[str, int] = {}
    for place, name in enumerate(state.names):
        owner, _, kind = name.rpartition(".")
        if owner in known and len(steps) > 1 and state.formats[place] == "fp32":
            ratio = state.stat("l2")[own, place] / weights.stat("l2")[other, known[owner]]
            alike[kind] = alike.get(kind, 0) + bool((np.abs(ratio - 1) < _SAME_NORM).all())
    copies = max(alike.values(), default=0)
    if 2 * copies < len(weights.names):
        return None
    return RuledOut(
        "stagnation",
        Sentence(
            "because the optimizer keeps {copies} of the weights in FP32",
            copies=copies,
        ),
    )


@np.errstate(all="ignore")
def _rounds_up(m: Measurements, table: RecordedRows) -> bool:
    """Whether most tensors have updates larger than rounding to nearest makes: at most twice the exact update.

    That is at most sqrt(1000) of the rate for Adam and its kin in principle, some 5 times it in practice; for SGD the
    rate times the largest gradient, and ten times that with momentum.
    """
    gradients, rate = m.table("gradient"), float(np.nanmax(m.lr)) if np.isfinite(m.lr).any() else 0.0
    largest_update = largest(table.stat("amax"), 0)
    if is_adaptive(m):
        exact = np.full(len(table.names), 5 * rate)
    elif gradients is not None:
        sizes = dict(zip(gradients.names, largest(gradients.stat("amax"), 0).tolist(), strict=True))
        exact = np.array([10 * rate * sizes.get(name, math.nan) for name in table.names])
    else:
        return False
    known = np.isfinite(largest_update) & np.isfinite(exact) & (exact > 0)
    return bool(known.any() and (largest_update > 2 * exact)[known].mean() > 0.5)


def _arrived(m: Measurements, table: RecordedRows, kept: NDArray[np.bool_]) -> float:
    """The share of the progress of a step, sum |g dw|, in elements that changed; a median over recorded steps.

    Adam and its kin move all elements alike, so that an element carries |dw| whatever its gradient: the share of the
    elements that changed, of those with a gradient. Else dw is proportional to g,
    the largest change first: the share of
    g^2 in as many of the largest elements. NaN where there are no gradients.
    """
    changed, sizes = table.stat("changed"), table.stat("count")
    results = []
    rows = np.flatnonzero(kept)
    for row in rows[:: max(len(rows) // _HISTOGRAMS, 1)]:
        step = int(table.steps[row])
        names, counts = m.histograms("gradient", step)
        known = {name: place for place, name in enumerate(names)}
        pairs = [
            (place, known[name])
            for place, name in enumerate(table.names)
            if name in known and np.isfinite(changed[row, place])
        ]
        if pairs:
            own = counts[[b for _, b in pairs]]
            parts = changed[row, [a for a, _ in pairs]]
            results.append(_progress(own, parts, sizes[row, [a for a, _ in pairs]], adaptive=is_adaptive(m)))
    return median(np.array(results)) if results else float("nan")


@np.errstate(all="ignore")
def _progress(counts: Values, changed: Values, sizes: Values, *, adaptive: bool) -> float:
    """The share of the progress in changed elements, from exponents (tensors, 256) and the changed share by tensor."""
    finite = counts[:, :255]
    alive = 1 - finite[:, 0] / np.maximum(finite.sum(1), 1)
    if adaptive:
        return (
            float((changed * sizes).sum() / max((alive * sizes).sum(), 1e-9))
            if (alive * sizes).sum() > 0.05 * sizes.sum()
            else float("nan")
        )
    energy = finite * 4.0 ** (np.arange(255.0) - 127)
    energy[:, 0] = 0
    from_top = np.cumsum(finite[:, ::-1], 1) / np.maximum(finite.sum(1, keepdims=True), 1)
    carried = np.cumsum(energy[:, ::-1], 1)
    part = [np.interp(share, own, sums) for share, own, sums in zip(changed, from_top, carried, strict=True)]
    total = energy.sum()
    return float(np.sum(part) / total) if total > 0 else float("nan")


def _stagnation(
    m: Measurements, table: RecordedRows, share: Values, changed: float, arrived: float, stored: str
) -> Finding:
    with np.errstate(all="ignore"):
        typical = middle(table.stat("changed"), 0)
    order = [int(place) for place in np.argsort(typical) if np.isfinite(typical[place])]
    names = tuple(table.names[place] for place in order if typical[place] < 0.5)
    rate = median(m.lr)
    grave, slow = _LIMITS[is_adaptive(m)]
    proof = Evidence(
        L_("share of sum |g dw| in elements with |dw| > ulp(w) / 2 < 0.4 (Adam), 0.8 (SGD)"),
        {"changed": changed, "arrived": arrived, "limit": slow, "half_ulp": half_ulp(stored), "lr": rate},
        Sentence(
            "A step changes {changed} of the weights, those that carry {arrived} of its progress: at a rate of "
            "{rate:.3g} the other updates are below half an ulp of {name} (1/{stored} of the weight) and lost.",
            changed=percent(changed), arrived=percent(arrived), rate=rate, name=_NAMES[stored],
            stored=round(1 / half_ulp(stored)),
        ),
        L_("share of weights that a step changes"),
        thinned(table.steps, share),
    )  # fmt: skip
    fix = L_("Keep FP32 master weights, or round updates stochastically (bf16-sr), or use autocast with FP32 weights.")
    blame = blame_of_small_steps(m, TOO_FEW_DIGITS)
    title = Sentence(
        "{arrived} of the updates are lost in the rounding of {name} weights",
        arrived=percent(1 - min(arrived, 1.0)), name=_NAMES[stored],
    )  # fmt: skip
    if blame.answer is False:
        title = Sentence("The steps are too small to learn anything in any format: {title}", title=title)
        fix = Sentence("Raise the learning rate from {rate:.3g}, then keep FP32 master weights.", rate=rate)
    return Finding(
        "stagnation", "error" if arrived < grave else "warning", title,
        int(table.steps[0]), int(table.steps[-1]), (proof, *blame.evidence), fix, 0.95 if arrived < grave else 0.75,
        "Zamirai et al. 2020, Revisiting BFloat16 Training; torchao issue 1124", "", names[:20],
        {"precision_options.master_weights": True} if not m.own_loop else {"precision": "bf16-amp"},
        blame=blame,
    )  # fmt: skip


def coarse_loss(m: Measurements) -> Answer:
    """All losses are numbers of 16 bits: the loss itself was computed in few digits."""
    finite = m.loss[m.finite_loss]
    if len(finite) < 20 or not m.own_loop:
        return None
    kept = format_of(np.abs(finite))
    exact = bool((finite.astype(np.float32).astype(np.float64) == finite).all())
    distinct = len(np.unique(finite))
    if not exact or kept not in DIGITS:
        return RuledOut(
            "coarse-loss",
            Sentence(
                "because {distinct} of {finite_count} losses are distinct and have the digits of FP32",
                distinct=distinct,
                finite_count=len(finite),
            ),
        )
    proof = Evidence(
        L_("loss = round_16(loss) in all steps"), {"distinct": distinct, "steps": len(finite)},
        Sentence(
            "All {finite_count} losses are numbers of {name}, {distinct} of them distinct: a step of {kept}.",
            finite_count=len(finite), name=_NAMES[kept], distinct=distinct, kept=percent(2 * half_ulp(kept)),
        ),
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "coarse-loss",
            "info",
            Sentence("The loss is computed in {name}", name=_NAMES[kept]),
            int(m.steps[0]),
            int(m.steps[-1]),
            (proof,),
            L_("Convert the outputs first: loss_function(outputs.float(), targets)."),
            0.7,
            "optax issue 1020",
            blame=TOO_FEW_DIGITS,
        )
    ]


def rounded_products(m: Measurements) -> Answer:
    """An FP32 run whose products were computed in TF32 or BF16."""
    if m.precision not in ("fp32", "fp64") or m.imported:
        return None
    executed, errors = m.certificate.get("fp32_products"), m.certificate.get("gemm_error")
    error = errors.get("fp32") if isinstance(errors, dict) else None
    if executed not in ("fp32", "tf32", "bf16"):
        return None if m.own_loop else Undecided("rounded-products", L_("the certificate of the run (its first step)"))
    number = float(error) if isinstance(error, int | float) else float("nan")
    if executed == "fp32":
        return RuledOut(
            "rounded-products",
            Sentence(
                "because a product of FP32 has an error of {number:.1e} (TF32: 3e-4)",
                number=number,
            ),
        )
    proof = Evidence(
        "|a b - fp64(a b)| / |a b| > 1e-5", {"error": number},
        Sentence(
            "A product of FP32 matrices has an error of {number:.1e}: that of {executed}; FP32 gives 3e-7.",
            number=number, executed=str(executed).upper(),
        ),
    )  # fmt: skip
    return [
        Finding(
            "rounded-products", "warning", Sentence(
                "FP32 products run in {executed}",
                executed=str(executed).upper(),
            ), m.begins_at, m.begins_at,
            (proof,),
            L_(
                "Set torch.backends.fp32_precision = 'ieee', and unset NVIDIA_TF32_OVERRIDE and "
                "ONEDNN_DEFAULT_FPMATH_MODE."
            ),
            0.99, "pytorch issues 67384 and 153195", blame=COMPARED,
        )
    ]  # fmt: skip


def rewritten_weights(m: Measurements) -> Answer:
    """Weights in FP32 that the loop rounds to 16 bits between two steps, and goes on with."""
    if not m.own_loop or not m.n or not m.fact("census"):
        return None
    rows = [row for row in m.fact_rows("rewritten_weights") if text(row, "format") in _NAMES]
    lost = [row for row in rows if number(row, "error") > _OF_UPDATE * number(row, "update")]
    if len(lost) < _REWRITTEN:
        return RuledOut(
            "rewritten-weights",
            Sentence(
                "because {lost_count} of the steps that were looked at found weights rounded since the step before "
                "by half an update or more",
                lost_count=len(lost),
            ),
        )
    row = max(lost, key=lambda each: number(each, "error") / max(number(each, "update"), 1e-30))
    step, name = whole(row, "step"), _NAMES[text(row, "format")]
    error, update, made = (number(row, key) for key in ("error", "update", "made"))
    tensors = texts(row, "tensors")
    steps = [whole(each, "step") for each in lost]
    proof = Evidence(
        L_("w(before a step) = round_16(w(after the step before)), and |round_16(w) - w| > |update| / 2"),
        {"step": step, "error": error, "update": update, "made": made, "steps": len(lost)},
        Sentence(
            "In steps {steps} the optimizer found weights ({tensors}) that equal the {name} rounding of those it had "
            "left. In step {step} this rounding changed them by {error:.3g} (L2 norm of a sample), the update "
            "before it by {update:.3g}.",
            steps=", ".join(map(str, steps[:6])), tensors=", ".join(tensors[:4]), name=name, step=step, error=error,
            update=update,
        ),
    )  # fmt: skip
    return [
        Finding(
            "rewritten-weights",
            "warning",
            Sentence("The weights are rounded to {name} between steps: small updates are lost", name=name),
            steps[0],
            int(m.steps[-1]),
            (proof,),
            L_(
                "Validate with a copy (copy.deepcopy(model).bfloat16()) or under torch.autocast, since "
                "model.bfloat16() or .half() changes the weights themselves and .float() does not bring their "
                "digits back."
            ),
            0.95,
            "torch.nn.Module.to documentation",
            tensors[0].rpartition(".")[0] if tensors else "",
            tensors,
            blame=COMPARED,
        )
    ]


RULES = (
    Rule("rewritten-weights", "B", L_("Do the weights keep their digits between steps?"), rewritten_weights),
    Rule("stagnation", "B", L_("Do updates change the stored weights?"), stagnation),
    Rule("coarse-loss", "B", L_("Has the loss the digits of FP32?"), coarse_loss),
    Rule("rounded-products", "B", "Are FP32 products FP32?", rounded_products),
)
