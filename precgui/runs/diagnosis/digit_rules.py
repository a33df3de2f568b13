"""Group B: too few digits, in stored weights, in the optimizer's state, in the loss, in products."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from precgui.runs.diagnosis.analysis import growth, is_adaptive, learning_ends, median, optimizer_of, percent, storage
from precgui.runs.diagnosis.findings import Evidence, Finding, RuledOut, Undecided
from precgui.runs.diagnosis.measurements import Measurements, RecordedRows, Values, thinned
from precgui.runs.diagnosis.nan_aware import largest, middle
from precgui.runs.diagnosis.number_formats import DIGITS, format_of, half_ulp
from precgui.runs.diagnosis.rule import Answer, Rule

# Shares of the progress of a step that arrive in the weights: below the first an error, below the second a warning.
# Measured (docs/diagnosis.md): at the second the loss falls by 10 % less than in FP32.
_LIMITS = {True: (0.25, 0.4), False: (0.6, 0.8)}  # for adaptive optimizers, and for others
_MOMENTUM_STEPS = 10  # steps after which momentum has nearly grown to its size
_HISTOGRAMS = 5  # rows of them that are read
_REMAINDERS = ("kahan", "compensation", "remainder", "residue", "lower_bits")  # in names of optimizer state
_UNDERFLOWN = 0.1  # of the elements of a state are zero although their gradient is not
_LARGE_EPSILON = 2.0**-14  # near the root of FP16's smallest number: what is divided by is not zero without it
_NAMES = {"bf16": "BF16", "fp16": "FP16"}


@np.errstate(all="ignore")
def changed_share(table: RecordedRows) -> Values:
    """The share of all elements that a step changed, shape (rows,)."""
    changed, count = table.stat("changed"), table.stat("count")
    share: Values = np.nansum(changed * count, 1) / np.nansum(np.where(np.isfinite(changed), count, 0), 1)
    return share


def stagnation(m: Measurements) -> Answer:
    """Weights stored in 16 bits, whose updates are below half an ulp and change nothing."""
    stored = storage(m)
    if stored not in DIGITS or not m.n:
        return None
    if (kept_elsewhere := _compensated(m)) is not None:
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
            "stagnation", f"updates after step {_MOMENTUM_STEPS} (record.budget): momentum grows until then"
        )
    if arrived >= slow:
        return RuledOut(
            "stagnation",
            f"because a step changes {percent(typical)} of the {_NAMES[stored]} weights, those that carry "
            f"{percent(arrived)} of it",
        )
    if _rounds_up(m, table):
        return RuledOut(
            "stagnation", f"because steps of the size of an ulp are made at a rate of {median(m.lr):.3g}, which "
            "rounding to nearest does not: weights are rounded stochastically",
        )  # fmt: skip
    return [_stagnation(m, table, share, typical, arrived, stored)]


def _compensated(m: Measurements) -> RuledOut | None:
    """Weights whose rounding is made good: stochastically, or by a remainder that the optimizer keeps."""
    if m.precision == "bf16-sr":
        return RuledOut("stagnation", "because the updates of all weights are rounded stochastically (bf16-sr)")
    state = m.table("optimizer")
    kept = [name for name in state.names if any(word in name for word in _REMAINDERS)] if state is not None else []
    if kept:
        return RuledOut("stagnation", f"because the optimizer keeps what rounding loses of {len(kept)} tensors")
    return None


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
        "share of sum |g dw| in elements with |dw| > ulp(w) / 2 < 0.4 (Adam), 0.8 (SGD)",
        {"changed": changed, "arrived": arrived, "limit": slow, "half_ulp": half_ulp(stored), "lr": rate},
        f"A step changes {percent(changed)} of the weights, those that carry {percent(arrived)} of its progress: at a "
        f"rate of {rate:.3g} the other updates are below half an ulp of {_NAMES[stored]} "
        f"(1/{round(1 / half_ulp(stored))} of the weight) and lost.",
        "share of weights that a step changes",
        thinned(table.steps, share),
    )  # fmt: skip
    fix = "Keep FP32 master weights, or round updates stochastically (bf16-sr), or use autocast with FP32 weights."
    return Finding(
        "stagnation", "error" if arrived < grave else "warning",
        f"{percent(1 - min(arrived, 1.0))} of the updates are lost in the rounding of {_NAMES[stored]} weights",
        int(table.steps[0]), int(table.steps[-1]), (proof,), fix, True, 0.95 if arrived < grave else 0.75,
        "Zamirai et al. 2020, Revisiting BFloat16 Training; torchao issue 1124", "", names[:20],
        {"precision_options.master_weights": True} if not m.own_loop else {"precision": "bf16-amp"},
    )  # fmt: skip


def frozen_moments(m: Measurements) -> Answer:
    """Adam's second moment in 16 bits: v * 0.999 rounds back to v, so that it never falls."""
    table = m.table("optimizer")
    if table is None:
        return None
    own = [place for place, name in enumerate(table.names) if name.endswith("exp_avg_sq")]
    low = [place for place in own if table.formats[place] in DIGITS]
    if not own:
        return None
    if not low:
        return RuledOut("frozen-moments", f"because the second moments of {len(own)} parameters are in FP32")
    ratio = _moment_ratio(m, table, low)
    worst = median(ratio)
    if not np.isfinite(worst):
        return None
    if worst < 4:
        return RuledOut(
            "frozen-moments", f"because the second moments are {worst:.2g} times those that the gradients give in FP32"
        )
    stored = table.formats[low[0]]
    proof = Evidence(
        "mean(v) / (sum of (1 - b2) b2^(T - t) mean(g_t^2)) > 4", {"ratio": worst, "tensors": len(low)},
        f"At the end the second moments ({_NAMES[stored]}) are {worst:.2g} times those that the recorded gradients "
        f"give: the "
        f"decay of 0.001 is below half an ulp, 2^-{DIGITS[stored]}.",
    )  # fmt: skip
    return [
        Finding(
            "frozen-moments", "warning", f"Adam's second moments do not fall in {_NAMES[stored]}: the steps get too "
            f"small",
            int(table.steps[0]), int(table.steps[-1]), (proof,), "Keep the optimizer's state in FP32, or lower beta2 "
            "to 0.95.", True, 0.6,
            "OneTrainer issue 1005; AReaL issue 1292", "", tuple(table.names[place] for place in low[:20]),
            {"precision_options.master_weights": True}, "estimate",
        )
    ]  # fmt: skip


@np.errstate(all="ignore")
def _moment_ratio(m: Measurements, table: RecordedRows, places: list[int]) -> Values:
    """Mean of v in the last row over the sum of (1 - b2) b2^(T - t) g_t^2 of the recorded gradients, b2 = 0.999."""
    gradients = m.table("gradient")
    if gradients is None or m.config.train.clip_norm is not None or m.skipped.mean() > 0.1:
        return np.empty(0)
    known = {name: place for place, name in enumerate(gradients.names)}
    last = int(table.steps[-1])
    grid = np.unique(np.linspace(1, last, min(last, 2000)).astype(int))
    weight = 0.001 * 0.999 ** (last - grid) * (last / len(grid))
    results = []
    for place in places:
        own = known.get(table.names[place].removesuffix(".exp_avg_sq"))
        square = gradients.stat("rms")[:, own] ** 2 if own is not None else np.empty(0)
        visited = np.isfinite(square)
        if visited.sum() >= 5:
            expected = float((np.interp(grid, gradients.steps[visited], square[visited]) * weight).sum())
            results.append(table.stat("mean")[-1, place] / expected)
    return np.array(results)


def moments_underflow(m: Measurements) -> Answer:
    """State of the optimizer in FP16 that is zero where the gradient is not: squares below 6e-8."""
    table, gradients = m.table("optimizer"), m.table("gradient")
    if table is None or gradients is None:
        return None
    low = [place for place, name in enumerate(table.formats) if name == "fp16" and table.names[place].count(".")]
    if not low or optimizer_of(m)[1] >= _LARGE_EPSILON:
        return None
    lost = _zeros_of_its_own(table, gradients, low)
    if not lost:
        return RuledOut(
            "moments-underflow",
            f"because the {len(low)} tensors of the optimizer's state in FP16 are zero only where gradients are",
        )
    name = max(lost, key=lambda each: lost[each])
    proof = Evidence(
        "zeros(state) - zeros(gradient) > 0.1, state in FP16",
        {"more_than_gradient": lost[name], "tensors": len(lost)},
        f"{percent(lost[name])} of {name} is zero in a step in which its gradient is not: squares below 2^-25 are zero "
        "in FP16, and the update is the mean divided by the epsilon alone.",
        f"share of zeros in {name}", m.points_of(table.steps, table.share_zero()[:, table.names.index(name)]),
    )  # fmt: skip
    broken, grown = not bool(m.finite_loss.all()), growth(m, m.n)
    learns = grown is not None and grown.last_loss < 0.8 * grown.first_loss
    return [
        Finding(
            "moments-underflow", "error" if broken else "info" if learns else "warning",
            "The optimizer's second moments are zero in FP16: updates are divided by next to nothing",
            int(table.steps[0]), int(table.steps[-1]), (proof,),
            "Keep the optimizer's state in FP32 or BF16.", True, 0.9, "optax issue 1754", name.rpartition(".")[0]
            .rpartition(".")[0], tuple(sorted(lost, key=lambda each: -lost[each]))[:20], certainty="estimate",
        )
    ]  # fmt: skip


def _zeros_of_its_own(table: RecordedRows, gradients: RecordedRows, places: list[int]) -> dict[str, float]:
    """By how much of a state more is zero than of its gradient in the same step, the most over all recorded steps."""
    _, own, other = np.intersect1d(table.steps, gradients.steps, return_indices=True)
    zeros, alive = table.share_zero()[own], gradients.share_zero()[other]
    known = {name: place for place, name in enumerate(gradients.names)}
    result = {}
    for place in places:
        gradient = known.get(table.names[place].rpartition(".")[0])
        if gradient is not None and len(own):
            more = largest((zeros[:, place] - alive[:, gradient])[:, None], 0)[0]
            result[table.names[place]] = float(more)
    return {name: more for name, more in result.items() if more > _UNDERFLOWN}


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
            "coarse-loss", f"because {distinct} of {len(finite)} losses are distinct and have the digits of FP32"
        )
    proof = Evidence(
        "loss = round_16(loss) in all steps", {"distinct": distinct, "steps": len(finite)},
        f"All {len(finite)} losses are numbers of {_NAMES[kept]}, {distinct} of them distinct: a step of "
        f"{percent(2 * half_ulp(kept))}.",
        "loss", m.series_of(m.loss),
    )  # fmt: skip
    return [
        Finding(
            "coarse-loss", "info", f"The loss is computed in {_NAMES[kept]}", int(m.steps[0]), int(m.steps[-1]),
            (proof,),
            "Convert the outputs first: loss_function(outputs.float(), targets).", True, 0.7, "optax issue 1020",
        )
    ]  # fmt: skip


def rounded_products(m: Measurements) -> Answer:
    """An FP32 run whose products were computed in TF32 or BF16."""
    if m.precision not in ("fp32", "fp64") or m.imported:
        return None
    executed, errors = m.certificate.get("fp32_products"), m.certificate.get("gemm_error")
    error = errors.get("fp32") if isinstance(errors, dict) else None
    if executed not in ("fp32", "tf32", "bf16"):
        return None if m.own_loop else Undecided("rounded-products", "the certificate of the run (its first step)")
    number = float(error) if isinstance(error, int | float) else float("nan")
    if executed == "fp32":
        return RuledOut("rounded-products", f"because a product of FP32 has an error of {number:.1e} (TF32: 3e-4)")
    proof = Evidence(
        "|a b - fp64(a b)| / |a b| > 1e-5", {"error": number},
        f"A product of FP32 matrices has an error of {number:.1e}: that of {str(executed).upper()}; FP32 gives 3e-7.",
    )  # fmt: skip
    return [
        Finding(
            "rounded-products", "warning", f"FP32 products run in {str(executed).upper()}", m.begins_at, m.begins_at,
            (proof,),
            "Set torch.backends.fp32_precision = 'ieee', and unset NVIDIA_TF32_OVERRIDE and "
            "ONEDNN_DEFAULT_FPMATH_MODE.",
            True, 0.99, "pytorch issues 67384 and 153195",
        )
    ]  # fmt: skip


RULES = (
    Rule("stagnation", "B", "Do updates change the stored weights?", stagnation),
    Rule("frozen-moments", "B", "Does the optimizer's second moment fall?", frozen_moments),
    Rule("moments-underflow", "B", "Does the optimizer's state reach below the range?", moments_underflow),
    Rule("coarse-loss", "B", "Has the loss the digits of FP32?", coarse_loss),
    Rule("rounded-products", "B", "Are FP32 products FP32?", rounded_products),
)
